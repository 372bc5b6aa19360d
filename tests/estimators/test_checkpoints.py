"""A fit that is interrupted continues from its checkpoint to the same numbers, bit for bit."""

import errno
import shutil
import zipfile
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest

from cavity import EPClassifier, EPRegressor
from cavity.estimators import checkpoints as _checkpoints
from cavity.estimators.checkpoints import described
from cavity.losses.joint import Softmax
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
    with pytest.raises(ValueError, match=r"belongs to another fit: parameter tol is .* and '0\.5' here"):
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
    original, written = _checkpoints.write_array, [0]

    def full(archive, name, value):
        written[0] += 1
        if written[0] > 30:
            raise OSError(errno.ENOSPC, "No space left on device")
        original(archive, name, value)

    monkeypatch.setattr(_checkpoints, "write_array", full)
    with pytest.warns(UserWarning, match="could not be written .*No space left") as caught:
        found = EPClassifier(tol=1e-6).fit(*data, checkpoint=checkpoint, every=0.0)
    assert len(caught) == 1
    np.testing.assert_array_equal(found.coef_, whole.coef_)
    monkeypatch.setattr(_checkpoints, "write_array", original)
    kept = tmp_path / "kept.ckpt"
    shutil.copy(checkpoint, kept)
    np.testing.assert_array_equal(EPClassifier(tol=1e-6).fit(*data, checkpoint=kept).coef_, whole.coef_)


# Parameters are told apart by their content.


def other_in_the_middle(size):
    values = np.ones(size)
    values[size // 2] = 2.0
    return values


@dataclass(frozen=True)
class Costly:
    """A loss with a field that is printed in part."""

    parts: np.ndarray


class Plain:
    """A loss that is printed by its address."""

    def __init__(self, parts):
        self.parts = parts


class Stateless:
    """A loss without fields."""


KINDS = {
    "array": np.asarray,
    "list": list,
    "objects": lambda values: np.array([*values, "a", None], dtype=object),
    "series": lambda values: pd.Series(values, name="a"),
    "frame": lambda values: pd.DataFrame({"a": values, "b": "c"}),
    "index": pd.Index,
    "group": lambda values: {"some": list(values), "rest": values},
    "named tuple": lambda values: Softmax(int(np.sum(values))),
    "dataclass": Costly,
    "object": Plain,
    "random state": lambda values: np.random.RandomState(int(np.sum(values))),
    "generator": lambda values: np.random.default_rng(int(np.sum(values))),
}


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_are_described_by_their_content(kind):
    make, same, other = KINDS[kind], np.ones(5000), other_in_the_middle(5000)
    assert described(make(same)) == described(make(same.copy()))
    assert described(make(same)) != described(make(other))
    assert len(described(make(same))) < 300


def test_names_and_types_are_part_of_a_parameter():
    assert described(pd.Series([1.0], name="a")) != described(pd.Series([1.0], name="b"))
    assert described(pd.DataFrame({"a": [1.0]})) != described(pd.DataFrame({"b": [1.0]}))
    assert described([1, 2]) != described([[1], 2])
    assert described("1") != described(1)
    assert described(np.float64(0.5)) == described(0.5) == "0.5"
    assert described({"a": 1, "b": 2}) == described({"b": 2, "a": 1})
    assert described(Stateless()) == described(Stateless()) != described(Plain(1.0))


@pytest.mark.parametrize("kind", ["series", "objects"])
def test_a_checkpoint_of_another_prior_is_refused_and_of_an_equal_one_goes_on(kind, data, tmp_path, stopping):
    X, y = np.tile(data[0], 20), data[1]
    make = {"series": pd.Series, "objects": lambda values: np.array(values, dtype=object)}[kind]

    def model(middle):
        values = np.full(X.shape[1], 0.1)
        values[X.shape[1] // 2] = middle
        return EPClassifier("hinge", prior_mean=make(values), random_state=np.random.RandomState(0), tol=1e-6)

    file, restore = tmp_path / "fit.checkpoint", stopping(2)
    with pytest.raises(Stop):
        model(0.1).fit(X, y, checkpoint=file, every=0.0)
    restore()
    with pytest.raises(ValueError, match="belongs to another fit: parameter prior_mean is"):
        model(0.2).fit(X, y, checkpoint=file)
    found = model(0.1).fit(X, y, checkpoint=file)
    np.testing.assert_array_equal(found.coef_, model(0.1).fit(X, y).coef_)
