"""Files keep models to the last bit, run no code, and are refused as soon as anything about them is wrong."""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import os
import pickle
import stat
import zipfile

import numpy as np
import pytest
from estimator_cases import (
    Broken,
    SquaredHinge,
    assert_same_model,
    classifier,
    gaussian_regressor,
    line,
    product_classifier,
    regressor,
    three_classes,
    two_classes,
    unsettled,
)
from scipy import sparse
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import cavity
from cavity.estimators import _persistence, load, save
from cavity.losses import Huber, Logistic


def through_file(model, path, **options):
    save(model, path)
    return load(path, **options)


def of_two():
    return classifier(), two_classes()


def of_three():
    return classifier(class_weight={"ash": 2.0}, prior_variance=[1.0, 2.0, 3.0, 4.0]), three_classes()


def of_a_product():
    return product_classifier(), two_classes()


def of_reals():
    return regressor(loss="huber"), line()


def of_numbers():
    return gaussian_regressor(loss=Huber(1.0, 0.5), random_state=np.random.RandomState(0)), line()


def by_default():
    return cavity.EPClassifier(random_state=0), two_classes()


def regression_by_default():
    return cavity.EPRegressor(random_state=0), line()


MODELS = [by_default, regression_by_default, of_two, of_three, of_a_product, of_reals, of_numbers]
every_model = pytest.mark.parametrize("build", MODELS)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.cavity"


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    """Bytes of a file, and the model in it."""
    path = tmp_path_factory.mktemp("files") / "model.cavity"
    model = classifier().fit(*two_classes())
    save(model, path)
    return path.read_bytes(), model


# There and back.


@every_model
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_models_come_back_to_the_last_bit(build, method, path):
    model, (X, y) = build()
    first = {"classes": np.unique(y)} if hasattr(model, "class_weight") and method == "partial_fit" else {}
    with unsettled():
        getattr(model, method)(X, y, **first)
    again = through_file(model, path)
    assert type(again) is type(model)
    assert_same_model(again, model)
    for name in ("coef_", "coef_std_", "intercept_", "intercept_std_", "prior_variance_"):
        np.testing.assert_array_equal(getattr(again, name), getattr(model, name))
    assert (again.log_evidence_, again.n_iter_, again.status_) == (model.log_evidence_, model.n_iter_, model.status_)
    assert again.trace_ == model.trace_
    params, wanted = again.get_params(), model.get_params()
    assert repr({**params, "random_state": 0}) == repr({**wanted, "random_state": 0})
    assert type(params["random_state"]) is type(wanted["random_state"])
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    if hasattr(model, "predict_proba"):
        np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
        np.testing.assert_array_equal(again.classes_, model.classes_)
        assert again.classes_.dtype == model.classes_.dtype
    else:
        np.testing.assert_array_equal(again.predict(X, return_std=True), model.predict(X, return_std=True))


@every_model
def test_streams_go_on_after_a_file_as_if_there_had_been_none(build, path):
    model, (X, y) = build()
    first = {"classes": np.unique(y)} if hasattr(model, "class_weight") else {}
    with unsettled():
        model.partial_fit(X[:40], y[:40], **first)
        again = through_file(model, path)
        assert_same_model(
            again.partial_fit(X[40:57], y[40:57], forget=0.1), model.partial_fit(X[40:57], y[40:57], forget=0.1)
        )
        assert again.trace_ == model.trace_
        assert again.status_ is model.status_
        assert_same_model(through_file(again, path), model)


def test_a_model_that_is_not_fitted_comes_back_too(path):
    again = through_file(classifier(prior_variance=3.0), path)
    assert again.get_params() == classifier(prior_variance=3.0).get_params()
    assert not hasattr(again, "coef_")
    again.fit(*two_classes())


def test_refused_updates_are_kept_on_record(path):
    X, y = two_classes()
    model = classifier(loss=Broken()).partial_fit(X, y, [0, 1])
    with unsettled():
        model.partial_fit(np.full((1, 4), 1e8), [1])
    again = through_file(model, path, trusted=["estimator_cases.Broken"])
    assert again.trace_ == model.trace_
    assert again.trace_.refused == 1
    assert again.status_ is model.status_
    again.partial_fit(X, y)
    assert again.trace_.refused == 1


def test_pipelines_come_back_with_the_model_in_them(path):
    X, y = two_classes()
    pipeline = make_pipeline(StandardScaler(), classifier()).fit(X, y)
    again = through_file(pipeline, path)
    assert_same_model(again[-1], pipeline[-1])
    np.testing.assert_array_equal(again.predict_proba(X), pipeline.predict_proba(X))
    texts = ["red apple", "green pear", "red cherry", "green apple"] * 3
    words = make_pipeline(TfidfVectorizer(), classifier()).fit(texts, [0, 1, 0, 1] * 3)
    np.testing.assert_array_equal(through_file(words, path).predict_proba(texts), words.predict_proba(texts))


def test_names_of_columns_and_sparse_training_survive(path):
    pd = pytest.importorskip("pandas")
    X, y = two_classes()
    named = through_file(classifier().fit(pd.DataFrame(X, columns=list("abcd")), y), path)
    assert named.feature_names_in_.tolist() == list("abcd")
    of_csr = classifier().fit(sparse.csr_array(X), y)
    np.testing.assert_array_equal(through_file(of_csr, path).predict_proba(X), of_csr.predict_proba(X))


def test_the_library_offers_both_at_its_door(path):
    assert (cavity.save, cavity.load) == (save, load)
    save(classifier(), str(path))
    assert isinstance(load(os.fspath(path)), cavity.EPClassifier)


def test_the_note_tells_of_version_and_kind(content):
    data, _ = content
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        note = json.loads(archive.read("cavity.json"))
    assert note["cavity"] == cavity.__version__
    assert note["model"] == "EPClassifier"


# Trust.


def test_types_of_ones_own_need_to_be_trusted(path):
    X, y = two_classes()
    model = classifier(loss=SquaredHinge()).fit(X, y)
    save(model, path)
    with pytest.raises(ValueError, match=r"not trusted: estimator_cases\.SquaredHinge.*trusted=") as refusal:
        load(path)
    assert "estimator_cases.SquaredHinge" in str(refusal.value)
    again = load(path, trusted=["estimator_cases.SquaredHinge"])
    assert_same_model(again, model)
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    with pytest.raises(ValueError, match="not trusted"):
        load(path, trusted=["some.OtherLoss"])


class Mischief:
    """What a pickle would run."""

    done = False

    def __reduce__(self):
        return setattr, (Mischief, "done", True)


def test_a_pickle_is_refused_and_not_run(path):
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        path.write_bytes(pickle.dumps(Mischief(), protocol=protocol))
        with pytest.raises(ValueError, match="not a model written by cavity"):
            load(path)
    path.write_bytes(pickle.dumps(classifier().fit(*two_classes())))
    with pytest.raises(ValueError, match="a pickle, which can run code"):
        load(path)
    assert not Mischief.done


def test_what_is_no_estimator_is_not_saved(path):
    for thing in (None, {"coef": 1.0}, cavity.EPClassifier, Logistic()):
        with pytest.raises(TypeError, match="model must be an estimator"):
            save(thing, path)
    assert not path.exists()


# Damage.


def test_a_truncated_file_is_refused(content, path):
    data, _ = content
    for length in (*range(8), 30, 200, len(data) // 4, len(data) // 2, len(data) - 30, len(data) - 2, len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(ValueError, match=r"damaged or truncated|not (a model|one) written by cavity"):
            load(path)


def test_bytes_added_or_lost_are_noticed_or_harmless(content, path):
    data, model = content
    for changed in (data + b"more", b"more" + data, data[:500] + data[501:], data[:500] + b"x" + data[500:], data * 2):
        path.write_bytes(changed)
        assert_refused_or_same(path, model)


def assert_refused_or_same(path, model):
    try:
        found = load(path)
    except ValueError:
        return True
    assert_same_model(found, model)
    assert found.get_params() == model.get_params()
    return False


@pytest.mark.parametrize("mask", [0x01, 0x08, 0x0E, 0x80, 0xFF])
def test_every_flipped_byte_gives_an_error_or_the_same_model(mask, content, path):
    """All bytes of the archive's own tables, where damage can take many forms, and a sample of the rest."""
    data, model = content
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        starts = [info.header_offset for info in archive.infolist()]
        tables = archive.start_dir
    heads = [i for start in starts for i in range(start, start + 64)]
    sample = np.random.default_rng(mask).integers(0, len(data), 60).tolist()
    places = sorted({*heads, *range(tables, len(data)), *sample})
    refused = 0
    for place in places:
        damaged = bytearray(data)
        damaged[place] ^= mask
        path.write_bytes(damaged)
        refused += assert_refused_or_same(path, model)
    # What may pass are dates, attributes and versions of tools in the tables of a zip archive, which carry no model.
    assert refused > 0.6 * len(places)


def test_no_flipped_byte_of_the_model_itself_passes(content, path):
    data, _ = content
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        info = archive.getinfo("model.skops")
    begin = info.header_offset + 30 + len(info.filename)
    for place in np.random.default_rng(0).integers(begin, begin + info.compress_size, 100):
        damaged = bytearray(data)
        damaged[place] ^= 0x40
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="damaged"):
            load(path)


def rewritten(data, **changes):
    """A well-formed archive with another note or other content."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        note, model = json.loads(archive.read("cavity.json")), archive.read("model.skops")
    if "content" in changes:
        model = changes.pop("content")
        note.update(size=len(model), sha256=hashlib.sha256(model).hexdigest())
    note = changes.pop("note", {**note, **changes})
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("cavity.json", json.dumps(note))
        archive.writestr("model.skops", model)
    return out.getvalue()


def test_a_format_that_is_not_known_is_refused(content, path):
    data, _ = content
    for changes in ({"format": 99, "cavity": "9.0"}, {"format": "1"}, {"note": []}, {"note": "none"}, {"note": {}}):
        path.write_bytes(rewritten(data, **changes))
        with pytest.raises(ValueError, match=r"a format that cavity .* does not know"):
            load(path)
    path.write_bytes(rewritten(data, format=99, cavity="9.0"))
    with pytest.raises(ValueError, match=r"written by cavity 9\.0 .* update cavity"):
        load(path)


def test_content_that_does_not_fit_its_digest_is_refused(content, path):
    data, _ = content
    for changes in (
        {"content": b"something else", "sha256": "0" * 64},
        {"sha256": "0" * 64},
        {"sha256": None},
        {"size": 5},
        {"size": None},
    ):
        path.write_bytes(rewritten(data, **changes))
        with pytest.raises(ValueError, match="does not fit its size and digest"):
            load(path)


@pytest.mark.parametrize("inner", [b"", b"something else", b"PK\x03\x04"], ids=["nothing", "text", "half a zip"])
def test_content_that_fits_its_digest_and_is_no_model_is_refused(inner, content, path):
    data, _ = content
    path.write_bytes(rewritten(data, content=inner))
    with pytest.raises(ValueError, match=r"damaged|not a model"):
        load(path)


def test_another_zip_is_refused(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(ValueError, match="is a zip archive, but not one written by cavity"):
        load(path)
    skops = importlib.import_module("skops.io")
    skops.dump(classifier(), path)
    with pytest.raises(ValueError, match="is a zip archive, but not one written by cavity"):
        load(path)


def test_absent_files_and_folders_give_the_errors_of_the_system(tmp_path):
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "absent")
    with pytest.raises(IsADirectoryError):
        load(tmp_path)
    with pytest.raises(FileNotFoundError):
        save(classifier(), tmp_path / "no" / "folder" / "model")
    with pytest.raises(OSError, match="directory"):
        save(classifier(), tmp_path)
    assert os.listdir(tmp_path) == []


# Whole or not at all.


@pytest.mark.parametrize("what", ["dump", "write", "sync", "replace"])
def test_a_failure_leaves_the_old_file_and_nothing_else(what, path, monkeypatch):
    X, y = two_classes()
    save(classifier().fit(X, y), path)
    before = path.read_bytes()

    def fail(*args, **kwargs):
        raise OSError("the disk is full")

    target = {
        "dump": lambda: monkeypatch.setattr(_persistence._skops(), "dumps", fail),
        "write": lambda: monkeypatch.setattr(zipfile.ZipFile, "writestr", fail),
        "sync": lambda: monkeypatch.setattr(os, "fsync", fail),
        "replace": lambda: monkeypatch.setattr(_persistence.Path, "replace", fail),
    }
    target[what]()
    with pytest.raises(OSError, match="the disk is full"):
        save(classifier(prior_variance=7.0).fit(X, y), path)
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_a_file_is_replaced_and_readable_as_any_other(path, tmp_path):
    save(classifier(prior_variance=2.0), path)
    save(classifier(prior_variance=3.0), path)
    assert load(path).prior_variance == 3.0
    assert os.listdir(path.parent) == [path.name]
    other = tmp_path / "other"
    other.write_bytes(b"")
    assert path.stat().st_mode == other.stat().st_mode


def test_a_new_file_has_the_mode_of_the_process_and_an_old_one_keeps_its_own(path):
    before = os.umask(0o027)
    try:
        save(classifier(), path)
        assert path.stat().st_mode & 0o777 == 0o640
        for mode in (0o600, 0o444, 0o666):
            path.chmod(mode)
            save(classifier(prior_variance=3.0), path)
            assert path.stat().st_mode & 0o777 == mode
            assert load(path).prior_variance == 3.0
    finally:
        os.umask(before)


def test_a_link_stays_and_its_target_is_written(tmp_path):
    folder, link = tmp_path / "models", tmp_path / "current"
    folder.mkdir()
    link.symlink_to("models/first")
    for variance in (2.0, 3.0):  # a target that is not there yet, and one that is
        save(classifier(prior_variance=variance), link)
        assert link.is_symlink()
        assert load(folder / "first").prior_variance == variance
    assert os.listdir(folder) == ["first"]
    assert sorted(os.listdir(tmp_path)) == ["current", "models"]


def test_a_file_is_on_the_disk_before_it_has_its_name_and_the_name_after(path, monkeypatch):
    events, sync, replace = [], os.fsync, _persistence.Path.replace

    def note_sync(number):
        events.append("folder" if stat.S_ISDIR(os.fstat(number).st_mode) else "file")
        sync(number)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(_persistence.Path, "replace", lambda *a: events.append("name") or replace(*a))
    save(classifier(), path)
    assert events == ["file", "name", "folder"]


def test_what_is_no_file_is_not_replaced(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with pytest.raises(OSError, match="not a regular file"):
        save(classifier(), fifo)
    assert stat.S_ISFIFO(fifo.stat().st_mode)


def test_without_skops_the_error_says_what_to_install(path, monkeypatch):
    save(classifier(), path)
    monkeypatch.setitem(__import__("sys").modules, "skops.io", None)
    for use in (lambda: save(classifier(), path), lambda: load(path)):
        with pytest.raises(ImportError, match=r"pip install cavity\[save\]"):
            use()
