"""Every example runs, writes its picture, and finds what it is meant to show."""

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
SCRIPTS = sorted(path.stem for path in EXAMPLES.glob("[a-z]*.py"))


@pytest.fixture(scope="module", autouse=True)
def _beside_the_examples():
    sys.path.insert(0, str(EXAMPLES))
    yield
    sys.path.remove(str(EXAMPLES))


def found(name, out):
    numbers = runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"](out)
    assert (out / f"{name}.png").stat().st_size > 10_000
    return numbers


def test_all_examples_are_tested():
    linear = ["census_income", "drifting_stream", "quantile_bands", "sparse_text", "thompson_sampling"]
    assert sorted([*linear, "registration", "robust_curve"]) == SCRIPTS


def test_census_income(tmp_path):
    numbers = found("census_income", tmp_path)
    assert numbers["accuracy"] > 0.84
    assert numbers["log loss"] < numbers["log loss of LogisticRegression"] + 0.002


def test_drifting_stream(tmp_path):
    all_alike, forgetting, sgd = found("drifting_stream", tmp_path).values()
    assert forgetting < 0.5 * all_alike
    assert forgetting < sgd


def test_thompson_sampling(tmp_path):
    thompson, plug_in = found("thompson_sampling", tmp_path).values()
    assert thompson < plug_in


def test_quantile_bands(tmp_path):
    shares = list(found("quantile_bands", tmp_path).values())
    assert shares == pytest.approx([0.1, 0.5, 0.9], abs=0.05)


def test_sparse_text(tmp_path):
    numbers = found("sparse_text", tmp_path)
    assert numbers["accuracy"] > 0.88
    assert numbers["log loss"] < 0.35


def test_registration(tmp_path):
    numbers = found("registration", tmp_path)
    assert numbers["largest error at a corner in pixels, EP"] < 0.25
    assert numbers["largest error at a corner in pixels, Powell"] < 0.25
    assert 0.3 < numbers["root mean square error in standard deviations"] < 2.0


def test_robust_curve(tmp_path):
    numbers = found("robust_curve", tmp_path)
    assert numbers["largest distance of the means in standard deviations"] < 0.5
    assert numbers["least ratio of standard deviations"] > 0.75
    assert numbers["largest ratio of standard deviations"] < 1.25
