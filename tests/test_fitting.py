import numpy as np
import pytest

import cavity
from cases import assert_close, fit, gaussian_cost, logistic_factors, standard_prior
from cavity import CostFactor, FactorError, FactorialGaussian, LinearFactor, Status, schedules, schemes
from cavity.factors import LinearBatches
from cavity.losses import Hinge, Logistic
from cavity.quadrature import GaussHermite

X = np.random.default_rng(1).normal(size=(40, 3))
Y = np.where(X @ [1.0, -2.0, 0.5] > 0.0, 1, -1)


def test_the_example_of_the_readme_runs_as_written():
    costs = [lambda t, a=a: np.abs(t - a).sum() for a in np.random.default_rng(0).normal(size=(50, 3))]
    factors = [cavity.CostFactor(c, dim=3) for c in costs]
    prior = cavity.FactorialGaussian.from_moments(mean=np.zeros(3), variance=25.0)
    result = cavity.fit(factors, prior, scheme="vq", loops=5)
    assert result.mean.shape == result.variance.shape == (3,)
    assert np.isfinite(result.log_evidence)
    assert isinstance(result.status, Status)
    assert result.trace.updates >= 50
    # The posterior of a sum of distances sits at the median.
    medians = np.median(np.random.default_rng(0).normal(size=(50, 3)), axis=0)
    assert_close(result.mean, medians, 0.25)
    assert np.all(result.std < 0.5)

    factors = cavity.LinearFactor.batches(cavity.losses.Hinge(), X, Y, batch_size=10)
    result = cavity.fit(factors, prior, scheme=cavity.schemes.QuickLaplace(curvature="slope"))
    assert np.mean(np.sign(X @ result.mean) == Y) > 0.95


def test_the_usual_settings_are_plain_ep_by_vq():
    factors = logistic_factors(np.random.default_rng(0))
    usual = fit(factors, standard_prior(3))
    said = fit(
        factors, standard_prior(3), schemes.VariationalQuadrature(), loops=20, sites="own", beta=1.0, power=1.0,
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
        ({"scheme": 3}, "scheme must be one of la, qla, gq, vq, rvq, exact, or have a method approximate, got 3"),
        ({"sites": "shared"}, "sites must be 'own', 'tied', 'averaged' or 'none', got 'shared'"),
        ({"negative": "clip"}, "negative must be 'floor', 'keep' or 'skip', got 'clip'"),
        ({"loops": 0}, "loops must be a whole number of at least 1, got 0"),
        ({"loops": 2.5}, r"loops must be a whole number of at least 1, got 2\.5"),
        ({"sites": "none", "loops": 2}, "one loop only, got loops=2; use sites='tied' for several loops"),
        ({"sites": "none", "order": [0, 0]}, "order must name each once at most"),
        ({"damping": 0.0}, r"damping must lie in \(0, 1\], got 0\.0"),
        ({"damping": 1.5}, r"damping must lie in \(0, 1\], got 1\.5"),
        ({"damping": np.nan}, r"damping must lie in \(0, 1\], got nan"),
        ({"power": 0.0}, r"power must be positive, got 0\.0"),
        ({"power": np.inf}, "power must be positive, got inf"),
        ({"tol": -1e-3}, r"tol must not be negative, got -0\.001"),
        ({"tol": np.nan}, "tol must not be negative, got nan"),
        ({"beta": 0.0}, r"beta must be positive and finite, got \(0\.0,\)"),
        ({"beta": [1.0, -1.0]}, r"beta must be positive and finite, got \(1\.0, -1\.0\)"),
        ({"beta": np.nan}, r"beta must be positive and finite, got \(nan,\)"),
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


def test_no_factors_are_refused():
    with pytest.raises(ValueError, match="factors must hold at least one factor, got none"):
        cavity.fit([], standard_prior(2))


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
    with pytest.raises(ValueError, match=r"factor 1 returns NaN at the prior mean; .* mend the cost or move the prior"):
        cavity.fit(factors, standard_prior(1), scheme)


def test_a_factor_of_the_wrong_shape_is_refused():
    with pytest.raises((ValueError, FactorError), match=r"one number for a point, got shape \(2,\)"):
        cavity.fit([CostFactor(np.abs, 2)], standard_prior(2))


def test_a_factor_that_raises_at_once_is_named_too():
    with pytest.raises(FactorError, match="factor 1 raised AssertionError: something was computed") as info:
        cavity.fit([gaussian_cost([0.0, 0.0], [1.0, 1.0])[0], *unasked()], standard_prior(2))
    assert info.value.factor == 1
    assert info.value.result.posterior == standard_prior(2)


def test_a_progress_bar_is_drawn_on_standard_error_when_asked(capsys):
    factors, seen = logistic_factors(np.random.default_rng(0), count=5), []
    fit(factors, standard_prior(3), loops=4, tol=0.0)
    assert capsys.readouterr() == ("", "")
    fit(factors, standard_prior(3), loops=4, tol=0.0, progress=True, callback=seen.append)
    out, err = capsys.readouterr()
    assert out == ""
    assert "loop 1 [" in err
    assert "20/20 updates" in err
    assert err.count("\r") >= 20
    assert len(seen) == 20


def test_the_progress_bar_leaves_the_line_to_what_comes_after(capsys):
    fit(logistic_factors(np.random.default_rng(0)), standard_prior(3), progress=True)  # ends before its loops
    assert capsys.readouterr().err.endswith("\n")


def test_schedules_pass_through():
    factors = logistic_factors(np.random.default_rng(0))
    result = fit(
        factors, standard_prior(3), beta=schedules.Steps((0.5, 1.0)), order=schedules.Cyclic(2), loops=3, tol=0.0
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
    mixed, plain = (cavity.fit(factors, prior, loops=2, compiled=compiled) for compiled in (None, False))
    np.testing.assert_array_equal(mixed.mean, plain.mean)
    with pytest.raises(ValueError, match="not linear factors of one loss"):
        cavity.fit(factors, prior, compiled=True)
