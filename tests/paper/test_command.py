"""The command from outside: help, versions, bad input, interruptions."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

import cavity
from paper.catalogue import EXPERIMENTS
from paper.command import app

PACKAGE, ROOT = Path(cavity.__file__).parent, Path(__file__).parents[2]
# Seconds, on a machine with other things to do: only what hangs for ever exceeds it.
PATIENCE = 240.0


@pytest.fixture
def invoke():
    return lambda *arguments: CliRunner().invoke(app, [str(a) for a in arguments])


def run(*arguments, source=PACKAGE.parent, **options):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (source, ROOT)))}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=PATIENCE, **options)


def one_line(result):
    """The error, which must be one line on standard error, with status 2 and no traceback."""
    assert getattr(result, "exit_code", None) == 2 or getattr(result, "returncode", None) == 2
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("error: ")
    return lines[0]


def test_help_names_everything_valid(invoke):
    result = invoke("--help")
    assert result.exit_code == 0
    text = " ".join(result.stdout.replace("│", " ").split())
    for option in ("--out", "--only", "--data", "--quick", "--resume", "--redraw", "--jobs"):
        assert option in text
    for name in (*EXPERIMENTS, "haberman", "breast_cancer"):
        assert name in text


def test_unknown_experiment(invoke, tmp_path):
    error = one_line(invoke("--out", tmp_path / "out", "--only", "fig2,fig9"))
    assert "unknown experiment 'fig9'" in error
    assert all(name in error for name in EXPERIMENTS)
    assert not (tmp_path / "out").exists()


def test_unknown_data_set(invoke, tmp_path):
    error = one_line(invoke("--out", tmp_path / "out", "--data", "iris"))
    assert "unknown data set 'iris'" in error
    assert all(name in error for name in cavity.datasets.NAMES)
    assert not (tmp_path / "out").exists()


def test_output_folder_that_is_a_file(invoke, tmp_path):
    (tmp_path / "file").write_text("mine")
    error = one_line(invoke("--out", tmp_path / "file", "--only", "fig1"))
    assert "cannot write to the output folder" in error
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder that nobody can write to")
def test_output_folder_that_cannot_be_written(invoke):
    assert "--out" in one_line(invoke("--out", "/proc/cavity", "--only", "fig1"))


def test_redraw_without_numbers(invoke, tmp_path):
    error = one_line(invoke("--out", tmp_path, "--redraw"))
    assert "no numbers of any experiment" in error
    error = one_line(invoke("--out", tmp_path / "none", "--redraw", "--only", "fig2"))
    assert "no numbers of fig2" in error
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("arguments", [(), ("--out", "x", "--jobs", "0"), ("produce",)])
def test_wrong_use_has_status_2(invoke, arguments):
    assert invoke(*arguments).exit_code == 2


def test_damaged_data_file(tmp_path):
    source = tmp_path / "source"
    shutil.copytree(PACKAGE, source / "cavity", ignore=shutil.ignore_patterns("__pycache__"))
    packed = source / "cavity" / "data" / "haberman.data.bz2"
    packed.write_bytes(packed.read_bytes()[:-10])
    out = tmp_path / "out"
    arguments = ("--out", out, "--quick", "--data", "haberman", "--only", "fig2", "--jobs", 1)
    error = one_line_after_bars(run("-m", "paper", *arguments, source=source))
    assert "haberman.data.bz2" in error
    assert "reinstall" in error


def one_line_after_bars(result):
    """The error as above, below the progress bars."""
    assert result.returncode == 2, result.stderr
    assert "Traceback" not in result.stderr
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert result.stderr.strip().endswith(errors[0].strip())
    return errors[0]


@pytest.mark.parametrize("module", ["typer", "matplotlib"])
def test_a_missing_extra_is_asked_for(module):
    code = f"import sys; sys.modules[{module!r}] = None; from paper.__main__ import main; main()"
    error = one_line(run("-c", code))
    assert module in error
    assert "pip install '.[reproduce]'" in error


def test_importing_cavity_does_not_pay_for_the_report():
    code = "import sys, cavity; print([m for m in ('matplotlib', 'typer', 'rich', 'jinja2') if m in sys.modules])"
    assert run("-c", code).stdout == "[]\n"


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs POSIX signals and the /proc of Linux")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("workers_started", [1, 2])
def test_a_stopped_run_leaves_whole_files_and_no_workers(tmp_path, workers_started, how):
    """At whichever moment of their start: an interrupt reaches all processes, as from a terminal."""
    out = tmp_path / "out"
    arguments = ["-m", "paper", "--out", out, "--quick", "--only", "fig1,fig3,table1", "--jobs", "2"]
    command = [sys.executable, *map(str, arguments)]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True, cwd=ROOT
    )
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    # Beside the workers there is the process in which multiprocessing tracks its resources.
    wait_until(lambda: len(children.read_text().split()) > workers_started)
    workers = children.read_text().split()
    (os.killpg if how == signal.SIGINT else os.kill)(process.pid, how)
    _, stderr = process.communicate(timeout=PATIENCE)
    if how == signal.SIGINT:
        assert process.returncode == 130
        assert "--resume" in stderr
        assert "Traceback" not in stderr
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
    for path in out.glob("*.json"):
        json.loads(path.read_text())


def wait_until(holds):
    """Wait for what must come; how long it takes is the machine's affair."""
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)
