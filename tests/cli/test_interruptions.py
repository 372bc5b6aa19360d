"""A fit that is stopped or killed continues from its checkpoint and ends with the same numbers."""

import os
import signal
import sys
import time

import numpy as np
import pytest
from cli_cases import people, started

import cavity

# Loops that never end by themselves, and a checkpoint after each of them.
ENDLESS, ALWAYS = ("--tol", "0", "--max-iter", "1000000"), ("--every", "0")


@pytest.fixture
def files(tmp_path):
    people(200)[["age", "height", "town", "income"]].to_csv(tmp_path / "a.csv", index=False)
    return tmp_path


def fit(files, *extra, name="m.cavity"):
    return started("fit", files / "a.csv", "--target", "income", "--model", files / name, *extra)


def wait_for(path, process, patience=120.0):
    """Wait until a process has written a file."""
    end = time.monotonic() + patience
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "no file in time"
        time.sleep(0.01)


def test_the_first_ctrl_c_keeps_the_loop_and_says_how_to_go_on(files):
    checkpoint = files / "run.ckpt"
    process = fit(files, "--checkpoint", checkpoint, *ENDLESS, *ALWAYS)
    wait_for(checkpoint, process)
    process.send_signal(signal.SIGINT)
    out, told = process.communicate(timeout=120)
    assert process.returncode == 130, told
    assert "cavity: stopping after this loop; Ctrl-C again stops at once" in told
    assert f"cavity: interrupted; run the same command again to continue from {checkpoint}" in told
    assert out == ""
    assert sorted(path.name for path in files.iterdir()) == ["a.csv", "run.ckpt"]


def test_without_a_checkpoint_ctrl_c_stops_at_once_and_writes_nothing(files):
    process = fit(files, *ENDLESS)
    for line in process.stderr:
        if line.startswith("loop 3:"):
            break
    process.send_signal(signal.SIGINT)
    told = process.communicate(timeout=120)[1]
    assert process.returncode == 130, told
    assert "cavity: interrupted; nothing was written" in told
    assert [path.name for path in files.iterdir()] == ["a.csv"]


@pytest.mark.skipif(sys.platform == "win32", reason="there is no kill -9")
def test_a_fit_that_is_killed_ends_as_one_that_was_not(files):
    options = ("--tol", "0", "--max-iter", "150")
    undisturbed = fit(files, *options, name="whole.cavity")
    told = undisturbed.communicate(timeout=300)
    assert undisturbed.returncode == 1, told  # a tolerance of zero is not reached
    expected, checkpoint = cavity.load(files / "whole.cavity"), files / "run.ckpt"
    for seconds in (0.0, 0.05, 0.2):
        process = fit(files, "--checkpoint", checkpoint, *options, *ALWAYS)
        wait_for(checkpoint, process)
        time.sleep(seconds)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    last = fit(files, "--checkpoint", checkpoint, *options, *ALWAYS)
    told = last.communicate(timeout=300)[1]
    assert last.returncode == 1, told
    assert "loop 1:" not in told  # it went on from a later one
    found = cavity.load(files / "m.cavity")
    assert np.array_equal(found.coef_, expected.coef_)
    assert np.array_equal(found.covariance_, expected.covariance_)
    assert found.n_iter_ == expected.n_iter_ == 150
    assert sorted(path.name for path in files.iterdir()) == ["a.csv", "m.cavity", "whole.cavity"]
