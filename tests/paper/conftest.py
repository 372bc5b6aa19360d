import time
from concurrent.futures import Future
from contextlib import contextmanager

import pytest
from typer.testing import CliRunner

from paper import runner
from paper.command import app

# One set of each size keeps a quick run short.
DATA = ("haberman", "bank")
# Seconds, on a machine with other things to do: only what hangs for ever exceeds it.
PATIENCE = 600.0


@pytest.fixture(scope="session")
def report(tmp_path_factory):
    """The folder of one quick run through the real command and real workers, shared by all test processes.

    It takes some 20 seconds, which a dozen tests and those of the browser share.
    """
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if base.name.startswith("popen-") else base
    folder, done = shared / "quick-report", shared / "quick-report.done"
    try:
        (shared / "quick-report.lock").mkdir()
    except FileExistsError:
        deadline = time.monotonic() + PATIENCE
        while not done.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert done.read_text() == "0", "the quick run failed in another test process"
        return folder
    arguments = ["--out", str(folder), "--quick", "--data", ",".join(DATA), "--jobs", "2"]
    result = CliRunner().invoke(app, arguments)
    done.write_text(str(result.exit_code))
    assert result.exit_code == 0, result.output
    return folder


class InlinePool:
    """Runs tasks at once, in this process; remembers what it ran."""

    def __init__(self):
        self.tasks = []

    def submit(self, function, task):
        self.tasks.append(task)
        future = Future()
        try:
            future.set_result(function(task))
        except Exception as error:
            future.set_exception(error)
        return future


@pytest.fixture
def inline(monkeypatch):
    """Replace the workers by this process."""
    pool = InlinePool()

    @contextmanager
    def workers(count):
        yield pool

    monkeypatch.setattr(runner, "workers", workers)
    return pool


@pytest.fixture
def invoke():
    """Run the command in this process."""
    return lambda *arguments: CliRunner().invoke(app, [str(a) for a in arguments])
