"""A fit that is interrupted continues from its checkpoint to the same numbers, bit for bit."""

import errno
import shutil
import zipfile

import numpy as np
import pytest

from cavity import EPClassifier, EPRegressor
from cavity.estimators import _checkpoints
from cavity.tables import Table


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 4))
    return X, (X[:, 0] + rng.normal(size=300) > 0.0).astype(int) + (X[:, 1] > 1.0)


@pytest.fixture
def path(data, tmp_path):
    X, y = data
    np.savez(tmp_path / "rows.npz", X=X, y=y)
    return tmp_path / "rows.npz"


class Stop(BaseException):
    """Stands for a signal."""


@pytest.fixture
def stopping(monkeypatch):
    """Raise after so many checkpoints were written."""

    def after(count):
        original, written = _checkpoints.Checkpoint._write, [0]

        def write(self, *args):
            original(self, *args)
            written[0] += 1
            if written[0] == count:
                raise Stop

        monkeypatch.setattr(_checkpoints.Checkpoint, "_write", write)
        return lambda: monkeypatch.setattr(_checkpoints.Checkpoint, "_write", original)

    return after


MODELS = {
    "softmax": lambda: EPClassifier(tol=1e-6),
    "one against the rest": lambda: EPClassifier("hinge", tol=1e-4),
    "noise scale": lambda: EPRegressor(loss="absolute", tol=1e-6),
}


@pytest.mark.parametrize("source", ["array", "table", "spool"])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("count", [1, 4])
def test_an_interrupted_fit_ends_as_one_that_was_not(name, source, count, data, path, tmp_path, stopping):
    rows = {"array": data, "table": (Table(path, target="y"),), "spool": (Table(path, target="y", memory=0),)}[source]
    whole, checkpoint = MODELS[name]().fit(*rows), tmp_path / "run.ckpt"
    release = stopping(count)
    with pytest.raises(Stop):
        MODELS[name]().fit(*rows, checkpoint=checkpoint, every=0.0)
    release()
    found = MODELS[name]().fit(*rows, checkpoint=checkpoint, every=0.0)
    for one, other in zip(found.posterior_, whole.posterior_, strict=True):
        np.testing.assert_array_equal(one.mean, other.mean)
        np.testing.assert_array_equal(one.variance, other.variance)
    assert found.n_iter_ == whole.n_iter_
    assert found.log_evidence_ == whole.log_evidence_
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.startswith(".")] == []


def test_a_finished_fit_is_read_from_its_checkpoint(data, tmp_path):
    first = EPClassifier().fit(*data, checkpoint=tmp_path / "run.ckpt")
    again = EPClassifier().fit(*data, checkpoint=tmp_path / "run.ckpt")
    np.testing.assert_array_equal(first.coef_, again.coef_)


@pytest.mark.filterwarnings("ignore:EP ended")  # it is given too few loops
def test_checkpoints_are_not_written_too_often(data, tmp_path, monkeypatch):
    times = []
    original = _checkpoints.Checkpoint._write
    monkeypatch.setattr(_checkpoints.Checkpoint, "_write", lambda *args: (times.append(1), original(*args)))
    EPClassifier("hinge", tol=0.0, max_iter=8, prior_variance=1.0).fit(
        data[0], data[1] > 0, checkpoint=tmp_path / "run.ckpt", every=1e9
    )
    assert times == []


def test_a_checkpoint_of_another_fit_is_refused_with_what_differs(data, tmp_path):
    X, y = data
    checkpoint = tmp_path / "run.ckpt"
    EPClassifier().fit(X, y, checkpoint=checkpoint)
    content = checkpoint.read_bytes()
    with pytest.raises(ValueError, match=r"belongs to another fit: parameters .*tol=0\.5"):
        EPClassifier(tol=0.5).fit(X, y, checkpoint=checkpoint)
    with pytest.raises(ValueError, match="belongs to another fit: data"):
        EPClassifier().fit(X + 1.0, y, checkpoint=checkpoint)
    with pytest.raises(ValueError, match="belongs to another fit: model"):
        EPRegressor().fit(X, y, checkpoint=checkpoint)
    assert checkpoint.read_bytes() == content


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "another archive"])
def test_a_damaged_checkpoint_is_refused_and_stays(damage, data, tmp_path):
    checkpoint = tmp_path / "run.ckpt"
    EPClassifier().fit(*data, checkpoint=checkpoint)
    content = bytearray(checkpoint.read_bytes())
    if damage == "truncated":
        content = content[: len(content) // 2]
    elif damage == "flipped":
        content[len(content) // 2] ^= 255
    elif damage == "empty":
        content = bytearray()
    checkpoint.write_bytes(content)
    if damage == "another archive":
        with zipfile.ZipFile(checkpoint, "w") as archive:
            archive.writestr("something", "else")
    before = checkpoint.read_bytes()
    with pytest.raises(ValueError, match=r"run\.ckpt is damaged: .*delete it to start over"):
        EPClassifier().fit(*data, checkpoint=checkpoint)
    assert checkpoint.read_bytes() == before


def test_a_full_disk_leaves_the_last_checkpoint_and_the_fit_goes_on(data, tmp_path, monkeypatch):
    checkpoint, whole = tmp_path / "run.ckpt", EPClassifier(tol=1e-6).fit(*data)
    original, written = _checkpoints._write_array, [0]

    def full(member, value):
        written[0] += 1
        if written[0] > 30:
            raise OSError(errno.ENOSPC, "No space left on device")
        original(member, value)

    monkeypatch.setattr(_checkpoints, "_write_array", full)
    with pytest.warns(UserWarning, match="could not be written .*No space left") as caught:
        found = EPClassifier(tol=1e-6).fit(*data, checkpoint=checkpoint, every=0.0)
    assert len(caught) == 1
    np.testing.assert_array_equal(found.coef_, whole.coef_)
    monkeypatch.setattr(_checkpoints, "_write_array", original)
    kept = tmp_path / "kept.ckpt"
    shutil.copy(checkpoint, kept)
    np.testing.assert_array_equal(EPClassifier(tol=1e-6).fit(*data, checkpoint=kept).coef_, whole.coef_)
