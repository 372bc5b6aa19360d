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
    further = ["exposure", "shops_and_products", "unsure_digits", "widening_intervals"]
    assert sorted([*linear, *further, "registration", "robust_curve"]) == SCRIPTS


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


def test_unsure_digits(tmp_path):
    numbers = found("unsure_digits", tmp_path)
    assert numbers["held-out accuracy"] > 0.93
    assert numbers["accuracy where most unsure, a tenth of the digits"] < 0.75
    assert numbers["accuracy elsewhere"] > 0.97


def test_shops_and_products(tmp_path):
    numbers = found("shops_and_products", tmp_path)
    assert numbers["coefficient of price, -0.8 in truth"] == pytest.approx(-0.8, abs=0.2)
    assert numbers["share of shops within 90% intervals"] > 0.75
    for name, truth in {"variance of shop": 0.5, "variance of product": 1.5}.items():
        _, low, high = map(float, numbers[f"{name}, with interval"].split())
        assert low < truth < high
    most, fewest, new = map(float, numbers["deviation of log odds: shop of most rows, of fewest, new"].split())
    assert most < fewest < new


def test_exposure(tmp_path):
    numbers = found("exposure", tmp_path)
    assert numbers["log evidence, negative binomial"] > numbers["log evidence, Poisson"] + 100.0
    share = "share of new counts up to the 95% quantile, "
    assert numbers[share + "Poisson"] < 0.94 < numbers[share + "negative binomial"]
    assert numbers["spread of rates found, 0.8 in truth"] == pytest.approx(0.8, abs=0.15)


def test_widening_intervals(tmp_path):
    numbers = found("widening_intervals", tmp_path)
    shares = "share of new rows in 90% intervals, x {}, scale={!r}"
    assert numbers[shares.format("below 3", "auto")] > 0.98
    assert numbers[shares.format("above 7", "auto")] < 0.8
    for part in ("below 3", "above 7"):
        assert numbers[shares.format(part, "linear")] == pytest.approx(0.9, abs=0.03)
    assert numbers["log evidence, scale='linear'"] > numbers["log evidence, scale='auto'"] + 50.0
