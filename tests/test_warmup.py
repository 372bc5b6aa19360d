"""Compiling ahead of time: what was compiled is found by the next process."""

import os
import subprocess
import sys

import pytest

from cavity import losses, warmup


def test_the_next_process_compiles_nothing(tmp_path):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "cavity.warmup", "--schemes", "qla", "--losses", "Hinge"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0].startswith("compiling 2 forms of loops")
    assert [line.split()[:3] for line in lines[1:3]] == [["qla", "Hinge", "dense"], ["qla", "Hinge", "sparse"]]
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nbc")}
    assert written
    subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nbc")} == written


@pytest.mark.parametrize("loss", losses.__all__)
def test_every_loss_can_be_warmed_up(loss, monkeypatch):
    """The small problem has targets that the loss takes; nothing is compiled to see that."""
    seen = []
    monkeypatch.setattr(warmup, "fit", lambda factors, *rest, **options: seen.append(type(factors[0].loss).__name__))
    warmup.compile_for("qla", loss, "dense")
    assert seen == [loss, loss]


def test_an_unknown_scheme_is_named_with_the_known_ones(capsys):
    with pytest.raises(SystemExit):
        warmup.main(["--schemes", "newton"])
    assert "invalid choice: 'newton'" in capsys.readouterr().err
