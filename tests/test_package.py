"""The face of the package: what `dir` shows, what an import loads, and what can be reached."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import cavity

FRESH = """
import sys
import cavity
assert set(dir(cavity)) == set(cavity.__all__), dir(cavity)
heavy = {name.partition(".")[0] for name in sys.modules} & {"sklearn", "numba", "jax", "matplotlib", "pandas"}
assert not heavy and not {"scipy.stats", "scipy.optimize"} & set(sys.modules), heavy
cavity.EPClassifier
assert "sklearn.metrics" not in sys.modules
for name in cavity.__all__:
    getattr(cavity, name)
assert "sklearn" in sys.modules and set(dir(cavity)) == set(cavity.__all__)
print("as it should be")
"""


def test_tab_completion_shows_the_public_names_and_only_those():
    assert dir(cavity) == sorted(cavity.__all__)
    assert {"EPClassifier", "EPRegressor", "datasets", "fit", "load", "minimize", "save"} <= set(dir(cavity))
    assert not {"Any", "TYPE_CHECKING", "import_module"} & set(dir(cavity))


@pytest.mark.parametrize("name", cavity.__all__)
def test_every_public_name_can_be_reached(name):
    assert getattr(cavity, name) is not None


def test_a_fresh_process_sees_the_same_and_loads_neither_scikit_learn_nor_numba():
    done = subprocess.run([sys.executable, "-c", FRESH], capture_output=True, text=True, check=False)
    assert done.stdout == "as it should be\n", done.stderr


def test_estimators_compile_nothing_by_default():
    code = (
        "import sys, numpy as np, cavity\n"
        "from scipy import sparse\n"
        "X = np.random.default_rng(0).normal(size=(60, 3))\n"
        "labels, numbers = X[:, 0] > 0.3, X @ [1.0, 2.0, 0.0] + 0.1 * X[:, 1] ** 2\n"
        "for rows in (X, sparse.csr_array(X)):\n"
        "    c = cavity.EPClassifier().fit(rows, labels).partial_fit(rows, labels)\n"
        "    c.predict(rows), c.predict_proba(rows), c.summary(), c.sample_coef(2)\n"
        "    r = cavity.EPRegressor().fit(rows, numbers).partial_fit(rows, numbers)\n"
        "    r.predict(rows, return_std=True), r.predict(rows, quantile=0.9)\n"
        "cavity.EPClassifier().fit(X, np.digitize(X[:, 1], [-0.5, 0.5])).predict(X)\n"
        "print('numba' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "False\n", done.stderr


def test_a_warning_loads_scikit_learn_when_it_is_due():
    code = (
        "import sys, warnings, numpy as np, cavity\n"
        "factor = cavity.CostFactor(lambda t: float(t @ t), dim=1)\n"
        "prior = cavity.FactorialGaussian.from_moments(np.zeros(1), 1.0)\n"
        "assert cavity.fit([factor], prior).status.is_success and 'sklearn' not in sys.modules\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    cavity.fit([factor], prior, tol=0.0)\n"
        "from sklearn.exceptions import ConvergenceWarning\n"
        "print([w.category is ConvergenceWarning for w in caught])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "[True]\n", done.stderr


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'cavity' has no attribute 'nothing'"):
        _ = cavity.nothing


def test_nothing_but_its_own_tests_and_tools_imports_the_reproduction():
    root = Path(__file__).parents[1]
    allowed = (root / "paper", root / "tests" / "paper", root / "tools")
    for folder in ("src", "reference", "benchmarks", "examples", "tests"):
        for path in (root / folder).rglob("*.py"):
            if not any(path.is_relative_to(place) for place in allowed):
                assert not re.search(r"^\s*(from|import) paper\b", path.read_text(), re.MULTILINE), path
