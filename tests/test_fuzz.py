"""Whatever comes in, the answer is finite and its status true, or there is a clear error."""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning

import cavity
from cases import bare_fit, standard_prior
from cavity import CostFactor, FactorError, FactorialGaussian, LinearFactor, losses
from cavity.ep.result import Refusal, RunError, Status
from cavity.estimators import EPClassifier, EPRegressor
from cavity.gaussians.factorial import ImproperError
from cavity.optimize import Ending
from cavity.schemes import NAMES
from fuzz_cases import (
    Fenced,
    Hill,
    Stumbling,
    boxes,
    check_guarded,
    check_result,
    check_same,
    check_untouched,
    datasets,
    options,
    priors,
    snapshot,
    some_losses,
    total_cost,
)

# Runs of few loops, compared with each other: that they have not converged is expected.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

# What may be refused outright, and in which words.
NAN_AT_START = r"factor \d+ returns NaN at the prior mean"
NEEDS_ROWS = "scheme='exact' needs a LinearFactor"
# In the words of scikit-learn, and in ours where older versions of it say nothing.
NO_WEIGHT = "at least one non-zero number|sample_weight must be positive for at least one row"
ONE_CLASS = "The number of classes has to be greater than one"
TOO_LARGE = "beyond what numbers can hold"
PARITY = 1e-6
# Variances of Gaussian quadrature are differences that may keep 1e-12 of their terms; the digits beyond are noise.
DIFFERENCES = 1e-3
# Steeper rows, in the loss's own scale and standard deviations of the prior, are beyond double precision: differences
# of costs, and Newton systems, are mostly rounding.
STEEPEST = 1e3
# Compiling takes seconds for every type of loss, scheme and storage: the usual profile keeps to a few, which see many
# random data; parity over all types is proved in tests/kernels.
IS_THOROUGH = settings.default.max_examples > 40
COMPILED_SCHEMES = tuple(NAMES) if IS_THOROUGH else ("exact", "vq")
REGRESSIONS = ("squared", "absolute", "huber", "quantile", "poisson")[: 5 if IS_THOROUGH else 1]
REGRESSION_STORAGES = ("dense", "csr") if IS_THOROUGH else ("csr",)


def cases(count: int) -> Any:
    """So many cases in the usual profile of Hypothesis, and in proportion in any other."""
    return settings(max_examples=count * settings.default.max_examples // 40)


def attempt(run: Any, *allowed: str) -> Any:
    """Run; None if it is refused in one of the words allowed."""
    try:
        return run()
    except ValueError as error:
        if isinstance(error, ImproperError) or not any(re.search(words, str(error)) for words in allowed):
            raise
        return None


def failure_of(run: Any, *allowed: str) -> tuple[Any, FactorError | None]:
    """Run as `attempt` does; a factor's error comes back as a value."""
    try:
        return attempt(run, *allowed), None
    except FactorError as error:
        return None, error


def started(factors: Any, prior: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Options with sites made where they are asked for."""
    if given["start"] != "sites":
        return given
    beta = np.ravel(given["beta"])[0]
    first = bare_fit(factors, prior, "vq", max_iter=1, beta=beta, negative="floor", compiled=False)
    return given | {"start": list(first.sites)}


@cases(150)
@given(data=datasets(), prior=priors, loss=some_losses(), batch=st.integers(1, 12), given=options())
def test_linear_factors(data, prior, loss, batch, given):
    X, y, w = data.matrix(), data.targets(loss.targets), data.weights()
    before = snapshot(X, y, w)
    factors, prior = LinearFactor.batches(loss, X, y, batch, w), prior.gaussian(data.columns)

    def run():
        return bare_fit(factors, prior, compiled=False, **started(factors, prior, given))

    result = attempt(run, NAN_AT_START)
    if result is None:
        assert isinstance(loss, Fenced)
        return
    check_result(result, factors, prior, given)
    check_guarded(result, factors, prior, given)
    check_same(result, run())
    check_untouched([X, y, w], before)


@cases(200)
@given(
    data=datasets(storages=("dense",)),
    prior=priors,
    sharpness=st.sampled_from((1.0, 1e-3, 1e3)),
    batch=st.integers(1, 12),
    given=options(("own", "tied", "none"), schemes=COMPILED_SCHEMES),
)
def test_compiled_loops(data, prior, sharpness, batch, given):
    loss = losses.Logistic(sharpness)
    X, y, w = data.matrix(), data.targets("signs"), data.weights()
    before = snapshot(X, y, w)
    factors, prior = LinearFactor.batches(loss, X, y, batch, w), prior.gaussian(data.columns)
    given = started(factors, prior, given)

    def run(compiled=True):
        return bare_fit(factors, prior, compiled=compiled, **given)

    result = run()
    check_result(result, factors, prior, given)
    check_guarded(result, factors, prior, given)
    check_same(result, run())
    check_untouched([X, y, w], before)
    plain = run(compiled=False)
    steepness = sharpness * np.sqrt(np.max(X * X @ prior.variance) * np.max(given["beta"]))
    troubled = any(r.trace.refused or r.trace.dampings for r in (plain, result))
    tol = DIFFERENCES if given["scheme"] == "gq" else PARITY
    # Rises of the cost are differences of costs, each rounded.
    costs = [total_cost(factors, prior, point, np.max(given["beta"])) for point in (prior.mean, plain.mean)]
    tol += 10.0 * np.finfo(np.float64).eps * np.max(np.abs(costs))
    # Where the change of a loop is the tolerance itself, rounding decides whether it is the last.
    undecided = any(abs(change - given["tol"]) <= 10.0 * tol for change in plain.trace.changes if given["tol"])
    if not troubled and not undecided and steepness <= STEEPEST:
        assert result.status is plain.status
        np.testing.assert_allclose(result.variance, plain.variance, rtol=tol)
        assert np.all(np.abs(result.mean - plain.mean) <= tol * (plain.std + np.abs(plain.mean)))


@cases(200)
@given(given_boxes=boxes(("none", "none", "nan")), prior=priors, given=options(starts=(None, "sites")))
def test_black_boxes(given_boxes, prior, given):
    prior = prior.gaussian(given_boxes.dim)

    def run():
        factors = given_boxes.factors()
        return bare_fit(factors, prior, **started(factors, prior, given))

    result = attempt(run, NAN_AT_START, NEEDS_ROWS)
    if result is None:
        assert given["scheme"] == "exact" or {"fenced", "pole"} & set(given_boxes.kinds) or given_boxes.fault == "nan"
        return
    factors = given_boxes.factors()
    check_result(result, factors, prior, given)
    if given_boxes.fault == "none":
        check_guarded(result, factors, prior, given)
    check_same(result, run())


def check_interrupted(error: FactorError) -> None:
    """The state before it can be read, and does not claim to be an answer."""
    assert error.result.status is Status.INTERRUPTED
    assert error.result.posterior.is_proper
    assert np.all(np.isfinite(error.result.mean))
    assert all(site.is_finite for site in error.result.sites)
    assert str(error.result)


@cases(150)
@given(given_boxes=boxes(("raises",)), prior=priors, given=options(starts=(None,)))
def test_a_cost_that_raises_is_named_and_the_state_before_it_kept(given_boxes, prior, given):
    factors, prior, seen = given_boxes.factors(), prior.gaussian(given_boxes.dim), [prior.gaussian(given_boxes.dim)]

    def run():
        return bare_fit(factors, prior, callback=lambda update: seen.append(update.posterior), **given)

    result, error = failure_of(run, NAN_AT_START, NEEDS_ROWS)
    if error is not None:
        box = factors[error.factor].cost_function
        assert box.fault == "raises"
        assert box.first <= box.calls < box.last
        assert f"factor {error.factor} raised ArithmeticError: the box is broken" in str(error)
        assert isinstance(error.__cause__, ArithmeticError)
        check_interrupted(error)
        if not error.result.trace.changes and given["sites"] != "averaged":
            assert error.result.posterior == seen[-1]
    elif result is not None:
        check_result(result, factors, prior, given)


@cases(200)
@given(data=datasets(), prior=priors, batch=st.integers(1, 12), given=options())
def test_a_loss_that_raises_is_named(data, prior, batch, given):
    factors = LinearFactor.batches(Stumbling(), data.matrix(), data.targets("reals"), batch, data.weights())
    prior = prior.gaussian(data.columns)

    def run():
        return bare_fit(factors, prior, compiled=False, **started(factors, prior, given))

    result, error = failure_of(run)
    if error is not None:
        assert error.factor in range(-1 if given["start"] == "mode" else 0, len(factors))
        assert "raised ArithmeticError: too far" in str(error)
        check_interrupted(error)
    else:
        check_result(result, factors, prior, given)


def check_minimum(found: Any, factors: Any, prior: Any) -> None:
    """The point is finite, its cost is what it is said to be, and no higher than that of the prior mean."""
    assert np.all(np.isfinite(found.point))
    assert found.posterior.is_proper
    assert np.all(np.isfinite(found.spread))
    assert len(found.costs) == len(found.betas) >= 1
    assert found.evaluations > 0
    assert str(found)
    if not found.status.is_success:
        with pytest.raises(RunError):
            found.raise_for_status()
    start, here = (total_cost(factors, prior, point, 1.0) for point in (prior.mean, found.point))
    assert np.isfinite(found.cost) or found.status in (Ending.NONFINITE, Ending.UNBOUNDED)
    if np.isfinite(found.cost):
        size = max(abs(here), abs(start) if np.isfinite(start) else 1.0)  # terms that cancel leave their rounding
        assert abs(here - found.cost) <= PARITY * size
    if np.isfinite(start):
        assert found.cost <= start + PARITY * abs(start)


@cases(100)
@given(given_boxes=boxes(("none", "none", "nan", "raises")), prior=priors, max_iter=st.integers(1, 4))
def test_minimum_of_black_boxes(given_boxes, prior, max_iter):
    prior = prior.gaussian(given_boxes.dim)

    def run():
        return cavity.minimize(given_boxes.factors(), prior, max_iter=max_iter)

    found, error = failure_of(run, NAN_AT_START)
    if error is not None:
        assert given_boxes.fault == "raises"
        assert error.factor in range(len(given_boxes.kinds))
        check_interrupted(error)
    if found is None:
        return
    again = run()
    np.testing.assert_array_equal(found.point, again.point)
    assert (found.cost, found.status, found.evaluations) == (again.cost, again.status, again.evaluations)
    if given_boxes.fault == "none":
        check_minimum(found, given_boxes.factors(), prior)


def falls_without_end(data: Any, loss: Hill, prior: Any) -> bool:
    """Whether hills outweigh the prior in some direction, with a margin."""
    rows = data.dense() * prior.std / loss.scale
    rows = rows if data.weights() is None else rows * np.sqrt(data.weights())[:, None]
    return bool(np.linalg.norm(rows, 2) > 1.5)


@cases(60)
@given(data=datasets(), prior=priors, loss=some_losses(), batch=st.integers(1, 12))
def test_minimum_of_linear_factors(data, prior, loss, batch):
    X, y, w = data.matrix(), data.targets(loss.targets), data.weights()
    before = snapshot(X, y, w)
    factors, prior = LinearFactor.batches(loss, X, y, batch, w), prior.gaussian(data.columns)
    found = attempt(lambda: cavity.minimize(factors, prior, max_iter=6), NAN_AT_START)
    if found is None:
        assert isinstance(loss, Fenced)
        return
    check_minimum(found, factors, prior)
    if isinstance(loss, Hill) and falls_without_end(data, loss, prior):
        assert not found.status.is_success
    again = cavity.minimize(factors, prior, max_iter=6)
    np.testing.assert_array_equal(found.point, again.point)
    check_untouched([X, y, w], before)


def estimator_options() -> Any:
    """Parameters of both estimators."""
    return st.fixed_dictionaries(
        {
            "max_iter": st.sampled_from((1, 3, 8, 60)),
            "covariance": st.sampled_from(("auto", "diagonal", "full", "sparse")),
            "fit_intercept": st.booleans(),
            "prior_variance": st.sampled_from((25.0, 1e-6, 1e6, "auto", "auto")),
        }
    )


def quietly(change: Any, model: Any) -> None:
    """Make a change; trouble is warned of, and only trouble."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        change()
    assert {w.category for w in caught} <= {ConvergenceWarning}, [str(w.message) for w in caught]
    assert bool(caught) == (not model.status_.is_success)


def check_model(model: Any, X: Any) -> None:
    """All that can be read of a fitted model is finite, and probabilities are some."""
    assert isinstance(model.status_, Status)
    for values in (model.coef_, model.coef_std_, model.intercept_, model.log_evidence_, model.covariance_):
        assert np.all(np.isfinite(values))
    assert np.all(model.coef_std_ > 0.0)
    if isinstance(model, EPClassifier):
        p = model.predict_proba(X)
        assert np.all((p >= 0.0) & (p <= 1.0))
        np.testing.assert_allclose(p.sum(axis=1), 1.0)
    else:
        mean, std = model.predict(X, return_std=True)
        assert np.all(std >= 0.0)
        # The mean of an exponential may be beyond all numbers.
        assert np.all(mean >= 0.0) if model.loss == "poisson" else np.all(np.isfinite(mean))


def same_models(one: Any, other: Any) -> None:
    """Bit for bit."""
    np.testing.assert_array_equal(one.coef_, other.coef_)
    np.testing.assert_array_equal(one.coef_std_, other.coef_std_)
    assert one.status_ is other.status_


@cases(100)
@given(
    data=datasets(("dense",)),
    parameters=estimator_options(),
    classes=st.sampled_from((2, 3)),
)
def test_classifier(data, parameters, classes):
    y = np.digitize(data.targets("reals"), [0.0] if classes == 2 else [-0.5, 0.5])
    if data.rows > 1 and data.answers != "constant":  # a single class is refused, and that need not be all one sees
        y[0], y[-1] = 0, classes - 1
    check_fits([EPClassifier(random_state=0, **parameters) for _ in range(2)], data, y)


@cases(60)
@given(
    data=datasets(REGRESSION_STORAGES),
    parameters=estimator_options(),
    loss=st.sampled_from(REGRESSIONS),
    scale=st.sampled_from(("auto", 1.0)),
    normalize=st.booleans(),
)
def test_regressor(data, parameters, loss, scale, normalize):
    y = data.targets("counts" if loss == "poisson" else "reals")
    more = {"loss": loss, "scale": scale, "normalize_y": normalize and loss != "poisson"}
    check_fits([EPRegressor(random_state=0, **parameters, **more) for _ in range(2)], data, y)


def check_fits(models: Any, data: Any, y: Any) -> None:
    """Both are fitted, finite and the same, or refused in clear words."""
    X, w = data.matrix(), data.weights()
    before = snapshot(X, y, w)

    def run(model):
        quietly(lambda: model.fit(X, y, sample_weight=w), model)
        return model

    if attempt(lambda: run(models[0]), NO_WEIGHT, ONE_CLASS, TOO_LARGE) is None:
        return
    check_model(models[0], X)
    same_models(models[0], run(models[1]))
    check_untouched([X, y, w], before)


@cases(100)
@given(
    data=datasets(("dense",)),
    parameters=estimator_options(),
    forget=st.sampled_from((0.0, 0.0, 0.1, 0.9)),
    size=st.integers(1, 12),
)
def test_streams(data, parameters, forget, size):
    X, y = data.matrix(), data.targets("signs")
    before = snapshot(X, y)
    if parameters["covariance"] == "sparse":  # which needs all rows at once, and says so
        parameters["covariance"] = "auto"
    models = [EPClassifier(random_state=0, **parameters) for _ in range(2)]

    def take(model, rows):
        quietly(lambda: model.partial_fit(X[rows], y[rows], classes=[-1.0, 1.0], forget=forget), model)

    for begin in range(0, data.rows, size):
        for model in models:
            take(model, slice(begin, begin + size))
        check_model(models[0], X)
        same_models(*models)
    check_untouched([X, y], before)


# What the cases above found, one by one.


def test_a_posterior_is_the_product_of_its_sites_also_after_sharp_ones_were_given_up():
    factors = LinearFactor.batches(losses.Absolute(), [[1.0]], [0.1], 1)
    prior = FactorialGaussian.from_moments([0.0], 25.0)
    result = bare_fit(factors, prior, "la", start="mode", beta=1e6, max_iter=1, compiled=False)
    assert result.posterior == prior * result.sites[0]


@pytest.mark.parametrize("sites", ["own", "tied", "averaged"])
def test_a_cost_that_raises_where_a_guard_asks_for_it_is_named(sites):
    calls = []

    def cost(point):
        calls.append(point)
        if len(calls) > 3:  # the check at the start, and two at the start of the loop
            raise ZeroDivisionError("not now")
        return 0.0

    factors = [CostFactor(lambda t: float(t @ t), 1), CostFactor(cost, 1)]
    with pytest.raises(FactorError, match="factor 1 raised ZeroDivisionError: not now") as info:
        bare_fit(factors, standard_prior(1), "qla", sites=sites, order=[0], safeguards=True)
    assert info.value.factor == 1
    assert info.value.result.status is Status.INTERRUPTED
    assert info.value.result.trace.updates == 1


def test_a_compiled_loss_that_raises_is_named_as_in_the_plain_engine():
    rng = np.random.default_rng(0)
    factors = LinearFactor.batches(Stumbling(), rng.standard_normal((20, 2)), 3.0 * rng.standard_normal(20), 5)
    errors = []
    for compiled in (False, True):
        with pytest.raises(FactorError, match="raised ArithmeticError: too far") as info:
            bare_fit(factors, standard_prior(2, 25.0), "qla", max_iter=5, damping=0.3, compiled=compiled)
        errors.append(info.value)
    assert errors[0].factor == errors[1].factor
    plain, compiled = (error.result.posterior for error in errors)
    for name in ("log_scale", "shift", "precision"):
        np.testing.assert_allclose(getattr(plain, name), getattr(compiled, name), rtol=1e-10)
    assert plain != standard_prior(2, 25.0)


def test_a_row_of_weight_zero_is_absent_also_where_its_loss_is_not_a_number():
    factors = LinearFactor.batches(Fenced(1.0), [[1.0], [9.0]], [0.0, 0.0], 2, [1.0, 0.0])
    alone = LinearFactor.batches(Fenced(1.0), [[1.0]], [0.0], 2)
    with np.errstate(invalid="ignore"):
        assert factors.cost([0.5]) == alone.cost([0.5])


def test_arms_that_underflow_have_no_width_in_gaussian_quadrature():
    factors = LinearFactor.batches(losses.Logistic(), sparse.csr_array([[200.0], [200.0]]), [1.0, -1.0], 2)
    prior = standard_prior(1, 25.0)
    for compiled in (False, True):
        result = bare_fit(factors, prior, "gq", power=0.5, max_iter=1, compiled=compiled)
        assert result.trace.refusals == {(0, Refusal.NONFINITE): 1}
        assert result.posterior == prior


def test_rounding_about_a_prior_mean_that_costs_nothing_is_no_divergence():
    factors = LinearFactor.batches(losses.Logistic(), [[825395.86833719]], [1.0], 1)
    prior = FactorialGaussian.from_moments([0.06984782], 1e-6)
    result = bare_fit(factors, prior, "exact", power=0.5, damping=0.05, safeguards=True, compiled=False)
    assert result.status is Status.CONVERGED


def test_an_evidence_beyond_all_numbers_is_infinite():
    assert FactorialGaussian(0.0, [1e200], [1.0]).log_mass == np.inf
    assert np.isfinite(FactorialGaussian(0.0, [1e200], [1e200]).log_mass)
