"""Pictures show what they should, and their absence is explained."""

from __future__ import annotations

import sys

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from estimator_cases import classifier, gaussian_regressor, line, three_classes, two_classes, unsettled

mpl.use("Agg")


@pytest.fixture(autouse=True)
def _closed():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def of_two():
    X, y = two_classes()
    return classifier().fit(pd.DataFrame(X, columns=["age", "height", "mass", "wealth"]), y)


@pytest.fixture(scope="module")
def of_three():
    return classifier().fit(*three_classes())


def shown(ax):
    """Positions, half widths and names of the intervals in a picture."""
    points, _, (bars,) = ax.containers[0].lines
    halves = [0.5 * np.ptp(segment[:, 0]) for segment in bars.get_segments()]
    return points.get_xdata(), np.array(halves), [text.get_text() for text in ax.get_yticklabels()]


def test_intervals_are_those_of_the_table_the_strongest_on_top(of_two):
    ax = of_two.plot_coefficients()
    means, halves, names = shown(ax)
    table = of_two.summary().loc[names]
    np.testing.assert_allclose(means, table["mean"])
    np.testing.assert_allclose(halves, 0.5 * (table["upper 95%"] - table["lower 95%"]))
    assert np.all(np.diff(np.abs(table["mean"]) / table["std"]) >= 0.0)
    assert sorted(names) == ["age", "height", "intercept", "mass", "wealth"]
    assert "95%" in ax.get_xlabel()
    ax.figure.canvas.draw()


def test_only_the_strongest_are_shown_if_asked(of_two):
    means, halves, names = shown(of_two.plot_coefficients(top=2, level=0.5))
    assert len(means) == len(halves) == len(names) == 2
    strength = np.abs(of_two.summary()["mean"]) / of_two.summary()["std"]
    assert names == strength.nlargest(2).index[::-1].tolist()
    table = of_two.summary(level=0.5).loc[names]
    np.testing.assert_allclose(halves, 0.5 * (table["upper 50%"] - table["lower 50%"]))


def test_classes_are_named(of_three):
    _, _, names = shown(of_three.plot_coefficients(top=100))
    assert len(names) == 15
    assert "birch x2" in names


def test_a_given_axis_is_used(of_two):
    figure, (left, right) = plt.subplots(2)
    assert of_two.plot_coefficients(ax=left) is left
    assert of_two.plot_trace(ax=right) is right
    assert len(plt.get_fignums()) == 1
    figure.canvas.draw()


def test_the_trace_is_a_point_a_loop_and_the_tolerance(of_two):
    ax = of_two.plot_trace()
    curve, tolerance = ax.get_lines()
    np.testing.assert_array_equal(curve.get_xdata(), np.arange(1, of_two.n_iter_ + 1))
    np.testing.assert_array_equal(curve.get_ydata(), of_two.trace_.changes)
    np.testing.assert_array_equal(tolerance.get_ydata(), of_two.tol)
    assert ax.get_yscale() == "log"
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("loop", "largest change, in standard deviations")
    assert ax.get_legend() is None
    ax.figure.canvas.draw()


def test_the_traces_of_classes_have_a_legend():
    ax = classifier(loss="hinge").fit(*three_classes()).plot_trace()
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["ash", "birch", "cedar"]
    assert len(ax.get_lines()) == 4
    joint = classifier().fit(*three_classes()).plot_trace()  # one posterior, one trace
    assert joint.get_legend() is None
    assert len(joint.get_lines()) == 2


@pytest.mark.parametrize("data", [two_classes, three_classes])
def test_a_trace_without_loops_can_be_drawn(data):
    X, y = data()
    ax = classifier().partial_fit(X, y, np.unique(y)).plot_trace()
    ax.figure.canvas.draw()
    assert not any(np.any(np.isfinite(curve.get_ydata())) for curve in ax.get_lines()[:-1])


def test_a_trace_without_a_tolerance_can_be_drawn():
    with unsettled():
        ax = classifier(max_iter=3, tol=0.0).fit(*two_classes()).plot_trace()
    ax.figure.canvas.draw()
    assert ax.get_lines()[0].get_xdata().tolist() == [1, 2, 3]


def test_a_regression_is_drawn_in_the_units_of_its_targets():
    model = gaussian_regressor().fit(*line())
    means, _, names = shown(model.plot_coefficients())
    np.testing.assert_allclose(means, model.summary().loc[names, "mean"])
    model.plot_trace().figure.canvas.draw()


@pytest.mark.parametrize("method", ["plot_coefficients", "plot_trace"])
def test_without_matplotlib_the_error_says_what_to_install(method, of_two, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install matplotlib"):
        getattr(of_two, method)()
