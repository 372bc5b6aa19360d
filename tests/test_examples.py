"""Every example of the gallery runs, draws one picture, finds what it is meant to show, and is short."""

import runpy
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
SCRIPTS = sorted(path.stem for path in EXAMPLES.glob("*.py"))


@pytest.fixture
def example():
    """Run a script without a screen, and give its variables."""
    before = plt.get_backend()
    plt.switch_backend("Agg")
    plt.close("all")  # figures that other tests of this process left open

    def run(name):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="FigureCanvasAgg is non-interactive")
            found = runpy.run_path(str(EXAMPLES / f"{name}.py"))
        assert len(plt.get_fignums()) == 1
        return found

    yield run
    plt.close("all")
    plt.switch_backend(before)


def test_all_examples_are_tested():
    assert {f"test_{name}" for name in SCRIPTS} <= globals().keys()


@pytest.mark.parametrize("name", SCRIPTS)
def test_form(name):
    text = (EXAMPLES / f"{name}.py").read_text()
    title, line = text.splitlines()[1:3]
    assert line == "=" * len(title)
    assert len(text.splitlines()) <= 60
    assert text.partition("\nplt.show()\n\n# %%\n# **Conclusion.** ")[2].count("\n") == 2


def test_census_income(example):
    losses = example("census_income")["losses"]
    assert losses["EPClassifier"] < losses["LogisticRegression"] + 0.002


def test_drifting_stream(example):
    all_alike, forgetting, sgd = example("drifting_stream")["second_half"].values()
    assert forgetting < 0.5 * all_alike
    assert forgetting < sgd


def test_thompson_sampling(example):
    thompson, plug_in = (regret[:, -1] for regret in example("thompson_sampling")["regrets"].values())
    assert thompson.mean() < plug_in.mean()
    assert thompson.max() < 0.5 * plug_in.max()


def test_quantile_bands(example):
    for level, share in example("quantile_bands")["shares"].items():
        assert share == pytest.approx(level, abs=0.05)


def test_sparse_text(example):
    found = example("sparse_text")
    assert found["right"].mean() > 0.88
    assert found["loss"] < 0.35


def test_registration(example):
    found = example("registration")
    errors = found["result"].mean - found["TRUTH"]
    assert np.max(np.abs(errors)) < 0.25
    assert 0.3 < np.sqrt(np.mean((errors / found["result"].std) ** 2)) < 2.5


def test_robust_curve(example):
    found = example("robust_curve")
    result, std = found["result"], found["std"]
    assert np.max(np.abs(result.mean - found["mean"]) / std) < 0.5
    assert np.all((result.std / std > 0.75) & (result.std / std < 1.25))
    # The weights are usable: no few draws have them all.
    assert np.sum(found["weights"]) ** 2 / np.sum(found["weights"] ** 2) > 2000


def test_unsure_digits(example):
    accuracies = example("unsure_digits")["accuracies"]
    assert accuracies["all"] > 0.93
    assert accuracies["unsure tenth"] < 0.75
    assert accuracies["the others"] > 0.97


def test_shops_and_products(example):
    found = example("shops_and_products")
    summary = found["summary"]
    assert summary.loc["price", "mean"] == pytest.approx(-0.8, abs=0.2)
    assert found["inside"] > 0.75
    for name, truth in {"variance of shop": 0.5, "variance of product": 1.5}.items():
        assert summary.loc[name, "lower 90%"] < truth < summary.loc[name, "upper 90%"]
    most, fewest, new = found["model"].decision_function(found["new"], return_std=True)[1]
    assert most < fewest < new


def test_exposure(example):
    found = example("exposure")
    models, evidence, below = found["models"], found["evidence"], found["below"]
    assert evidence["negative_binomial"] > evidence["poisson"] + 100.0
    assert below["poisson"] < 0.94 < below["negative_binomial"]
    assert models["negative_binomial"].scale_ == pytest.approx(0.8, abs=0.15)
    assert models["poisson, no exposure"].coef_[1] < 0.0 < models["poisson"].coef_[1]


def test_widening_intervals(example):
    found = example("widening_intervals")
    left, right = found["covered"]["auto"]
    assert left > 0.98
    assert right < 0.8
    assert found["covered"]["linear"] == pytest.approx([0.9, 0.9], abs=0.03)
    assert found["evidence"]["linear"] > found["evidence"]["auto"] + 50.0


def test_slopes_and_seasons(example):
    found = example("slopes_and_seasons")
    shared, alone = found["errors"]
    assert shared < 0.8 * alone
    assert 0.75 < found["covered"] <= 1.0


def test_dose_response(example):
    found = example("dose_response")
    std = np.sqrt(np.diag(found["pcov"]))
    assert np.all(np.abs(found["popt"] - found["TRUTH"]) < 3.0 * std)
    assert np.all(np.abs(found["popt"] - found["draws"].mean[:4]) < 0.2 * std)
    assert std / found["draws"].std[:4] == pytest.approx(np.ones(4), abs=0.15)
    assert np.all(std < 0.7 * np.sqrt(np.diag(found["covariance"])))


def test_modalities(example):
    found = example("modalities")
    result, truth = found["result"], found["TRUTH"]
    assert np.all(np.abs(result.mean - truth) < 3.0 * result.std)
    assert np.all(result.std < [0.5, 0.5, 1.5])


def test_composite_likelihood(example):
    found = example("composite_likelihood")
    assert np.all(np.abs(found["result"].mean - found["TRUTH"]) < [0.3, 0.3, 0.3, 0.4])
    assert found["result"].check(starts=0).is_reliable


def test_curves_and_borders(example):
    found = example("curves_and_borders")
    near = np.mean(np.abs(found["curve"] - np.sin(2.0 * found["grid"][:, 0])))
    assert near < 0.15
    assert np.mean(np.abs(found["normal"].predict(found["x"]) - found["truth"])) > 2.0 * near
    assert found["border"].score(found["X"], found["labels"]) > 0.9
    assert 0.3 < found["shares"][0, 0] < 0.7
