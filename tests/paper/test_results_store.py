import json

import pytest

from paper import store
from paper.experiment import Settings

MACHINE = {"processor": "p"}


def test_results_come_back_as_they_were(tmp_path):
    saved = store.save(tmp_path, "fig1", Settings(), 1.5, MACHINE, {"a": [1.0, 2]})
    assert store.read(tmp_path, "fig1") == saved
    assert store.is_made_with(saved, Settings())
    assert not store.is_made_with(saved, Settings(quick=True))
    assert not store.is_made_with(saved, Settings(data=("bank",)))
    assert not store.is_made_with(None, Settings())


def test_what_json_cannot_hold_becomes_null(tmp_path):
    store.save(tmp_path, "fig1", Settings(), 0.0, MACHINE, {"a": [float("nan"), float("inf"), 1.0]})
    assert json.loads((tmp_path / "fig1.json").read_text())["results"] == {"a": [None, None, 1.0]}


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"experiment": "fig2", "format": 1}', b"\xff\xfe"])
def test_what_is_not_ours_counts_as_absent(tmp_path, content):
    (tmp_path / "fig1.json").write_bytes(content)
    assert store.read(tmp_path, "fig1") is None


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "fig1.json"
    store.replace_bytes(path, b"old")

    def fail(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store.os, "replace", fail)
    with pytest.raises(store.OutputError, match="No space left"):
        store.replace_bytes(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["fig1.json"]


def test_a_folder_is_made_with_its_parents(tmp_path):
    store.prepare(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(store.OutputError, match="cannot write to the output folder"):
        store.prepare(tmp_path / "file")
