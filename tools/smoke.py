"""A first use of an installed cavity: run outside the repository, with the Python of the environment to be tested.

    python -I tools/smoke.py

It needs the extra `save`. Every step prints a line; the first that fails ends it with an error.
"""

from __future__ import annotations

import tempfile
from importlib import metadata, resources
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import cavity

ROOT = Path(__file__).resolve().parents[1]


def the_installed_package() -> str:
    place = Path(cavity.__file__).resolve()
    if place.is_relative_to(ROOT / "src"):
        raise RuntimeError(f"this is the source in {place}, not an installed package; run it with `python -I`")
    if cavity.__version__ != metadata.version("cavity"):
        raise RuntimeError(f"version {cavity.__version__} in the code, {metadata.version('cavity')} in its metadata")
    if not (resources.files("cavity") / "py.typed").is_file():
        raise RuntimeError("py.typed is missing: type checkers would ignore the annotations")
    return f"cavity {cavity.__version__}"


def a_classifier_saved_and_loaded() -> str:
    X, y = load_breast_cancer(return_X_y=True)
    model = make_pipeline(StandardScaler(), cavity.EPClassifier()).fit(X, y)
    if not model.score(X, y) > 0.97:
        raise RuntimeError(f"accuracy {model.score(X, y):.3f} on the training rows; it should be about 0.99")
    with tempfile.TemporaryDirectory() as folder:
        cavity.save(model, Path(folder) / "model")
        again = cavity.load(Path(folder) / "model")
    if not np.array_equal(again.predict_proba(X), model.predict_proba(X)):
        raise RuntimeError("a model that was saved and loaded predicts something else")
    return f"accuracy {model.score(X, y):.3f}, the same after saving and loading"


def the_shipped_data_in_compiled_loops() -> str:
    data = cavity.datasets.paper("ionosphere")
    prior = cavity.FactorialGaussian.from_moments(np.zeros(data.X.shape[1]), 25.0)
    factors = cavity.LinearFactor.batches(cavity.losses.Logistic(), data.X, data.y, batch_size=10)
    result = cavity.fit(factors, prior, scheme="qla", sites="none")
    if not np.all(np.isfinite(result.mean)):
        raise RuntimeError(f"the mean is not finite: {result.mean}")
    return f"{result.status}"


def nothing_but_the_package() -> str:
    found = [name for name in ("paper", "benchmarks", "reference", "tests") if find_spec(name)]
    if found:
        raise RuntimeError(f"packages that belong to the repository alone are installed: {', '.join(found)}")
    return "no other package came with it"


def main() -> None:
    for step in (
        the_installed_package,
        a_classifier_saved_and_loaded,
        the_shipped_data_in_compiled_loops,
        nothing_but_the_package,
    ):
        print(f"{step.__name__.replace('_', ' ')}: {step()}")


if __name__ == "__main__":
    main()
