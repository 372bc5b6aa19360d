import itertools
import warnings
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning

import cavity
from cases import Breaking, assert_close, concave, fit, gaussian_cost, logistic_factors, quietly, standard_prior
from cavity import CostFactor, FactorError, FactorialGaussian, FullGaussian, LinearFactor, Status, schedules, schemes
from cavity.factors import LinearBatches
from cavity.losses import Hinge, Logistic
from cavity.quadrature import GaussHermite

# What is no finite number.
NO_NUMBERS = (np.nan, np.inf, None, "x", True)
X = np.random.default_rng(1).normal(size=(40, 3))
Y = np.where(X @ [1.0, -2.0, 0.5] > 0.0, 1, -1)


def test_the_example_of_the_readme_runs_as_written():
    costs = [lambda t, a=a: np.abs(t - a).sum() for a in np.random.default_rng(0).normal(size=(50, 3))]
    factors = [cavity.CostFactor(c, dim=3) for c in costs]
    prior = cavity.FactorialGaussian.from_moments(mean=np.zeros(3), variance=25.0)
    result = cavity.fit(factors, prior, scheme="vq")
    assert result.mean.shape == result.variance.shape == (3,)
    assert np.isfinite(result.log_evidence)
    assert isinstance(result.status, Status)
    assert result.trace.updates >= 50
    # The posterior of a sum of distances sits at the median.
    medians = np.median(np.random.default_rng(0).normal(size=(50, 3)), axis=0)
    assert_close(result.mean, medians, 0.25)
    assert np.all(result.std < 0.5)

    factors = cavity.LinearFactor.batches(cavity.losses.Hinge(), X, Y, batch_size=10)
    result = quietly(cavity.fit, factors, prior, scheme=cavity.schemes.QuickLaplace(curvature="slope"))
    assert np.mean(np.sign(X @ result.mean) == Y) > 0.95


def test_the_usual_settings_are_plain_ep_by_vq():
    factors = logistic_factors(np.random.default_rng(0))
    usual = fit(factors, standard_prior(3))
    said = fit(
        factors, standard_prior(3), schemes.VariationalQuadrature(), max_iter=20, sites="own", beta=1.0, power=1.0,
        damping=1.0, order="cyclic", negative="keep", tol=1e-3,
    )  # fmt: skip
    assert usual.posterior == said.posterior


@pytest.mark.parametrize("sites", ["own", "tied", "averaged", "none"])
def test_batches_are_as_good_as_a_list_of_factors(sites):
    batches = LinearFactor.batches(Logistic(), X, Y, batch_size=7)
    a, b = (fit(f, standard_prior(3), sites=sites, damping=0.7) for f in (batches, list(batches)))
    assert_close(a.mean, b.mean, 1e-9)
    assert_close(a.variance, b.variance, 1e-9)
    assert a.log_evidence == pytest.approx(b.log_evidence, abs=1e-9)
    assert a.status is b.status


class Unasked:
    """A cost that must not be asked."""

    def __call__(self, t):
        raise AssertionError("something was computed")


def unasked(dim=2):
    return [CostFactor(Unasked(), dim)]


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"scheme": "ep"}, "scheme must be one of la, qla, gq, vq, rvq, exact, or a scheme object, got 'ep'"),
        (
            {"scheme": 3},
            "scheme must be one of la, .*, exact, or have methods approximate and check, got 3",
        ),
        ({"sites": "shared"}, "sites must be 'own', 'tied', 'averaged' or 'none', got 'shared'"),
        ({"negative": "clip"}, "negative must be 'floor', 'keep' or 'skip', got 'clip'"),
        ({"max_iter": 0}, "max_iter must be a whole number of at least 1, got 0"),
        *(
            ({"max_iter": wrong}, "max_iter must be a whole number of at least 1, got")
            for wrong in (2.5, -1, np.inf, np.nan, "3", True, [3])
        ),
        ({"sites": "none", "max_iter": 2}, "one loop only, got max_iter=2; use sites='tied' for several loops"),
        ({"sites": "none", "order": [0, 0]}, "order must name each once at most"),
        *(
            ({"damping": wrong}, r"damping must lie in \(0, 1\], got")
            for wrong in (0.0, 1.5, -5, np.nan, np.inf, None, "a", True)
        ),
        *(({"power": wrong}, "power must be positive and finite, got") for wrong in (0.0, -1, *NO_NUMBERS)),
        *(({"tol": wrong}, "tol must be a finite number of at least 0, got") for wrong in (-1e-3, *NO_NUMBERS)),
        *(({"beta": wrong}, "beta must be") for wrong in (0.0, [1.0, -1.0], "hot", "2", [], [[1.0]], *NO_NUMBERS)),
        *(
            ({"random_state": wrong}, "random_state must be a whole number of at least 0, got")
            for wrong in (-1, 0.5, "x", None, np.nan)
        ),
        ({"random_state": "x", "order": schedules.Cyclic()}, "random_state must be a whole number"),
        *(({name: "yes"}, f"{name} must be True or False") for name in ("safeguards", "verbose", "compiled")),
        ({"callback": 3}, "callback must be a function of an Update, or None, got 3"),
        ({"start": 3}, "start must be 'mode', a Mode, sites, or None, got 3"),
        ({"start": [1.0]}, r"start\[0\] must be a FullGaussian, got 1\.0"),
        ({"sites": None}, "sites must be 'own', 'tied', 'averaged' or 'none', got None"),
        ({"sites": ["own"]}, "sites must be 'own', 'tied', 'averaged' or 'none', got"),
        ({"negative": None}, "negative must be 'floor', 'keep' or 'skip', got None"),
        ({"order": None}, "order must be 'cyclic', 'shuffled', indices or an order object, got None"),
        ({"order": "random"}, "order must be 'cyclic', 'shuffled', indices or an order object, got 'random'"),
        ({"order": [1]}, r"order must hold indices in 0\.\.0, got 1\.\.1"),
        ({"order": []}, "order must hold whole numbers, at least one"),
        ({"scheme": schemes.QuickLaplace(curvature="slope")}, "curvature='slope' needs a LinearFactor"),
        ({"scheme": schemes.GaussQuadrature(GaussHermite(2000))}, r"needs 2000\*\*2 nodes in 2 dimensions"),
    ],
)
def test_bad_settings_are_refused_before_anything_is_computed(kwargs, message):
    with pytest.raises(ValueError, match=message):
        cavity.fit(unasked(), standard_prior(2), **kwargs)


@pytest.mark.parametrize(
    "prior",
    [
        FactorialGaussian.uniform(2),
        FactorialGaussian(0.0, [0.0, 0.0], [1.0, -1.0]),
        FactorialGaussian(0.0, [0.0, np.nan], [1.0, 1.0]),
        FactorialGaussian(0.0, [0.0, 0.0], [1.0, np.inf]),
    ],
)
def test_an_improper_prior_is_refused(prior):
    with pytest.raises(ValueError, match=r"prior must be proper, with a positive finite variance everywhere; build it"):
        cavity.fit(unasked(), prior)


@pytest.mark.parametrize("variance", [0.0, -25.0, [25.0, 0.0]])
def test_a_prior_variance_of_zero_or_less_is_refused_where_it_is_given(variance):
    with pytest.raises(ValueError, match="variance must be positive and finite, got"):
        cavity.FactorialGaussian.from_moments(np.zeros(2), variance)


@pytest.mark.parametrize("prior", [None, 1.0, np.zeros(2), "wide"])
def test_what_is_no_prior_is_refused(prior):
    for function in (cavity.fit, cavity.minimize):
        with pytest.raises(ValueError, match=r"build it with FactorialGaussian\.from_moments.*, got "):
            function(unasked(), prior)


def test_no_factors_are_refused():
    with pytest.raises(ValueError, match="factors must hold at least one factor, got none"):
        cavity.fit([], standard_prior(2))


def test_what_are_no_factors_is_refused():
    for function in (cavity.fit, cavity.minimize):
        for factors in (None, 3, unasked()[0], (factor for factor in unasked()), "vq"):
            with pytest.raises(ValueError, match="factors must be a list of factors, got"):
                function(factors, standard_prior(2))
        with pytest.raises(ValueError, match=r"factors\[1\] must be a factor, such as CostFactor\(cost, dim\), got"):
            function([*unasked(), lambda t: 0.0], standard_prior(2))


def test_factors_that_do_not_fit_the_prior_are_refused():
    with pytest.raises(ValueError, match="factor 1 has 3 coordinates, but the prior has 2"):
        cavity.fit([gaussian_cost([0.0, 0.0], [1.0, 1.0])[0], *unasked(3)], standard_prior(2))
    with pytest.raises(ValueError, match="3 columns, but the prior has 2 coordinates"):
        cavity.fit(LinearFactor.batches(Hinge(), X, Y), standard_prior(2))


@pytest.mark.parametrize("build", [list, LinearBatches.stack])
def test_a_scheme_that_cannot_serve_a_later_factor_is_refused_at_the_start(build):
    small, large = LinearFactor(Logistic(), np.eye(12)[:1], [1.0]), LinearFactor(Logistic(), np.ones((1, 12)), [1.0])
    for scheme in (schemes.GaussQuadrature(GaussHermite(9)), schemes.VariationalQuadrature(GaussHermite(9), "newton")):
        with pytest.raises(ValueError, match=r"needs 9\*\*12 nodes in 12 dimensions"):
            fit(build([small, large]), standard_prior(12), scheme)


@pytest.mark.parametrize("scheme", ["la", "qla", "gq", "vq"])
def test_a_factor_that_returns_nan_is_refused_and_named(scheme):
    factors = [gaussian_cost([0.0], [1.0])[0], CostFactor(lambda t: np.nan, 1)]
    with pytest.raises(ValueError, match=r"factor 1 returns NaN at the prior mean; .* fix the cost or move the prior"):
        cavity.fit(factors, standard_prior(1), scheme)


def test_a_factor_of_the_wrong_shape_is_refused():
    with pytest.raises((ValueError, FactorError), match=r"one number for a point, got shape \(2,\)"):
        cavity.fit([CostFactor(np.abs, 2)], standard_prior(2))


def test_a_factor_that_raises_at_once_is_named_too():
    with pytest.raises(FactorError, match="factor 1 raised AssertionError: something was computed") as info:
        cavity.fit([gaussian_cost([0.0, 0.0], [1.0, 1.0])[0], *unasked()], standard_prior(2))
    assert info.value.factor == 1
    assert info.value.result.posterior == FullGaussian.of(standard_prior(2))


def test_a_progress_bar_is_drawn_on_standard_error_when_asked(capsys):
    factors, seen = logistic_factors(np.random.default_rng(0), count=5), []
    fit(factors, standard_prior(3), max_iter=4, tol=0.0)
    assert capsys.readouterr() == ("", "")
    fit(factors, standard_prior(3), max_iter=4, tol=0.0, verbose=True, callback=seen.append)
    out, err = capsys.readouterr()
    assert out == ""
    assert "loop 1 [" in err
    assert "20/20" in err
    assert err.count("\r") >= 20
    assert len(seen) == 20


def test_the_progress_bar_leaves_the_line_to_what_comes_after(capsys):
    fit(logistic_factors(np.random.default_rng(0)), standard_prior(3), verbose=True)  # ends before its loops
    assert capsys.readouterr().err.endswith("\n")


def test_schedules_pass_through():
    factors = logistic_factors(np.random.default_rng(0))
    result = fit(
        factors, standard_prior(3), beta=schedules.Steps((0.5, 1.0)), order=schedules.Cyclic(2), max_iter=3, tol=0.0
    )
    assert result.trace.betas == (0.5, 1.0, 1.0)


def test_losses_of_different_kinds_are_never_taken_for_one():
    rng = np.random.default_rng(5)
    rows = rng.standard_normal((2, 10, 3))
    losses = (cavity.losses.Hinge(), cavity.losses.Logistic())
    assert losses[0] == losses[1]  # as tuples
    factors = [
        cavity.LinearFactor(loss, X, np.where(X[:, 0] > 0.0, 1.0, -1.0)) for loss, X in zip(losses, rows, strict=True)
    ]
    prior = cavity.FactorialGaussian.from_moments(np.zeros(3), 1.0)
    mixed, plain = (quietly(cavity.fit, factors, prior, max_iter=2, compiled=compiled) for compiled in (None, False))
    np.testing.assert_array_equal(mixed.mean, plain.mean)
    with pytest.raises(ValueError, match="not linear factors of one loss"):
        cavity.fit(factors, prior, compiled=True)


def trouble(kind):
    """A run that ends with this status, as arguments of `cavity.fit`."""
    good = gaussian_cost([1.0], [1.0])[0]
    factors = {
        "MAX_ITER": [good],
        "IMPROPER_CAVITY": [good, concave(50.0)],
        "NONFINITE": [good, CostFactor(lambda t: np.inf, 1)],
        "NEGATIVE": [good, concave(0.1)],
        "DIVERGED": [LinearFactor(cavity.losses.Squared(), np.full((20, 4), 5.0), np.ones(20))],
    }[kind]
    options = {
        "MAX_ITER": {"max_iter": 1, "tol": 0.0},
        "NEGATIVE": {"negative": "skip"},
        "DIVERGED": {"scheme": "qla", "max_iter": 1, "safeguards": True},
    }
    prior = standard_prior(4, 25.0) if kind == "DIVERGED" else standard_prior(1)
    return (factors, prior), options.get(kind, {})


@pytest.mark.parametrize("status", [s for s in Status if not s.is_success and s is not Status.INTERRUPTED])
@pytest.mark.parametrize("compiled", [None, False])
def test_every_status_that_is_no_success_warns_once_and_where_fit_was_called(status, compiled):
    args, options = trouble(status.name)
    with pytest.warns(ConvergenceWarning) as told:
        result = cavity.fit(*args, **options, covariance="diagonal", compiled=compiled)
    assert result.status is status
    assert [str(w.message) for w in told] == [f"cavity.fit ended with {status.name}: {status.value}"]
    assert told[0].filename == __file__


def test_success_is_silent():
    factors = [gaussian_cost([1.0], [1.0])[0]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cavity.fit(factors, standard_prior(1)).status is Status.CONVERGED
        assert cavity.fit(factors, standard_prior(1), sites="none").status is Status.SINGLE_PASS


class BreakingAtOnce(Breaking):
    """The same for arrays of rows."""

    def value(self, y: Any, z: Any) -> Any:
        if np.any(y > self.limit):
            raise OverflowError("too far out")
        return 0.5 * (y - z) ** 2


@pytest.fixture
def unpriced(monkeypatch):
    """No look at the costs of the prior mean, so that the loss is first asked by the loops."""
    monkeypatch.setattr("cavity.ep.fit.check_batches", lambda factors, prior: None)


# Each scheme and storage is a compilation. Every kernel that asks a loss is here once: the sweep with each scheme and
# with each storage, and the two passes over sparse rows that store no sites.
ASKING = [
    *itertools.product(["dense"], ["qla"], ["own", "tied", "none"]),
    *itertools.product(["csr"], ["exact"], ["own", "tied", "none"]),
    *itertools.product(["csr"], ["vq"], ["own", "none"]),
    ("csr", "qla", "none"),
]


@pytest.mark.usefixtures("unpriced")
@pytest.mark.parametrize(("storage", "scheme", "sites"), ASKING)
def test_a_loss_that_raises_in_compiled_loops_is_told_at_once(storage, scheme, sites, monkeypatch):
    """With its factor and the state before it, and without a run in plain Python."""
    y = np.clip(X @ [1.0, -2.0, 0.5], -4.0, 4.0)
    prior, rows = standard_prior(3), X if storage == "dense" else sparse.csr_array(X)
    sound = LinearFactor.batches(Breaking(), rows, y, batch_size=5)
    before = quietly(
        cavity.fit, sound, prior, scheme, sites=sites, order=range(4), max_iter=1, safeguards=False, compiled=True
    )
    y[23] = 9.0

    def refuse(*args, **kwargs):
        raise AssertionError("plain Python was started")

    monkeypatch.setattr("cavity.ep.fit.Factorised", refuse)
    with pytest.raises(FactorError, match="factor 4 raised OverflowError: too far out") as caught:
        cavity.fit(
            LinearFactor.batches(Breaking(), rows, y, batch_size=5), prior, scheme, sites=sites, safeguards=False
        )
    assert caught.value.factor == 4
    found = caught.value.result
    assert found.status is Status.INTERRUPTED
    assert found.trace.updates == 5
    assert_close(found.mean, before.mean, 1e-12)
    assert_close(found.variance, before.variance, 1e-12)
    assert found.posterior.log_mass == pytest.approx(before.log_evidence, abs=1e-12)


@pytest.mark.usefixtures("unpriced")
def test_a_loss_that_raises_when_a_guard_asks_for_costs_is_told_too():
    y = np.zeros(40)
    y[23] = 9.0
    factors = LinearFactor.batches(BreakingAtOnce(), X, y, batch_size=5)
    with pytest.raises(FactorError, match="factor 4 raised OverflowError: too far out"):
        cavity.fit(factors, standard_prior(3), "qla", safeguards=True)


def test_a_temperature_that_breaks_off_in_compiled_loops_is_told_at_once():
    class Falling:
        def beta(self, loop):
            return 1.0 - loop

    with pytest.raises(ValueError, match=r"beta must be positive and finite, got 0\.0"):
        cavity.fit(LinearFactor.batches(Hinge(), X, Y), standard_prior(3), "qla", beta=Falling())
