from collections import Counter

import numpy as np
import pytest

from cases import concave, fit, gaussian_cost, standard_prior
from cavity import CostFactor, FactorError, FactorialGaussian, LinearFactor, Result, Status
from cavity.ep.result import Refusal, RunError, Trace
from cavity.losses import Squared

POSTERIOR = FactorialGaussian.from_moments([1.0, -2.0], [4.0, 0.25], log_mass=-3.5)


def trace(**kwargs):
    defaults = {
        "updates": 8,
        "changes": (1.5, 0.125),
        "betas": (1.0, 1.0),
        "refusals": Counter(),
        "dampings": Counter(),
    }
    return Trace(**{**defaults, **kwargs})


def result(status=Status.CONVERGED, **kwargs):
    return Result(POSTERIOR, (), status, trace(**kwargs), POSTERIOR)


def test_a_result_has_the_moments_and_the_mass_of_its_posterior():
    r = result()
    assert r.mean.tolist() == [1.0, -2.0]
    assert r.variance == pytest.approx([4.0, 0.25])
    assert r.std == pytest.approx([2.0, 0.5])
    assert r.log_evidence == pytest.approx(-3.5)


@pytest.mark.parametrize("status", list(Status))
def test_only_what_did_not_end_as_asked_is_raised_with_its_words_and_the_trace(status):
    r = result(status, refusals=Counter({(3, Refusal.NONFINITE): 2}))
    if status in (Status.CONVERGED, Status.SINGLE_PASS):
        assert status.is_success
        assert r.raise_for_status() is r
    else:
        assert not status.is_success
        with pytest.raises(RunError) as info:
            r.raise_for_status()
        assert str(info.value).startswith(status.value)
        assert "factor 3: the cost or its site is not finite, 2 times" in str(info.value)


@pytest.mark.parametrize(
    ("status", "advice"),
    [
        (Status.MAX_ITER, ["raise max_iter", "damping=0.5"]),
        (Status.IMPROPER_CAVITY, ["damping=0.5", "negative='floor'", "narrower prior", "result.trace"]),
        (Status.NONFINITE, ["cost of the factors that result.trace names", "scale the data", "narrow the prior"]),
        (Status.NEGATIVE, ["negative='keep' or negative='floor'"]),
        (Status.CONVERGED, ["less than tol"]),
        (Status.SINGLE_PASS, ["convergence is not checked"]),
    ],
)
def test_a_status_says_what_to_do(status, advice):
    assert all(words in status.value for words in advice)


def test_every_status_is_reached_by_a_run_that_deserves_it():
    prior, good = standard_prior(1), gaussian_cost([1.0], [1.0])[0]
    bad = CostFactor(lambda t: np.inf, 1)
    same = LinearFactor(Squared(), np.full((20, 4), 5.0), np.ones(20))
    with pytest.raises(FactorError) as interrupted:
        fit([good, CostFactor(lambda t: {}[0], 1)], prior)
    reached = {
        fit([same], standard_prior(4, 25.0), "qla", max_iter=1, safeguards=True).status,
        fit([good], prior).status,
        fit([good], prior, sites="none").status,
        fit([good], prior, max_iter=1).status,
        fit([good, concave(50.0)], prior).status,
        fit([good, bad], prior).status,
        fit([good, concave(0.1)], prior, negative="skip").status,
        interrupted.value.result.status,
    }
    assert reached == set(Status)


def test_the_most_common_refusal_of_the_last_loop_decides():
    prior = standard_prior(1)
    factors = [concave(0.1), concave(0.1), CostFactor(lambda t: np.inf, 1)]
    assert fit(factors, prior, negative="skip").status is Status.NEGATIVE
    assert fit([*factors, factors[-1], factors[-1]], prior, negative="skip").status is Status.NONFINITE


def test_a_trace_counts_and_names_the_worst_first():
    refusals = Counter({(k, Refusal.NEGATIVE): k + 1 for k in range(12)})
    t = trace(refusals=refusals, dampings=Counter({4: 2, 5: 1}))
    assert t.refused == 78
    lines = str(t).splitlines()
    assert lines[0] == "8 updates in 2 loops, 78 refused"
    assert "changed the posterior by 0.125 standard deviations" in lines[1]
    assert lines[2] == "  factor 11: the site has a negative precision, 12 times"
    assert "and 2 more" in str(t)
    assert lines[-1] == "3 updates of 2 factors damped further"


def test_a_quiet_trace_is_short():
    assert str(trace(changes=())) == "8 updates in 0 loops, 0 refused"


def test_a_result_prints_its_status_evidence_and_trace():
    text = str(result())
    assert text.startswith(Status.CONVERGED.value)
    assert "log evidence -3.5" in text
    assert "8 updates in 2 loops" in text


def test_a_result_is_a_value():
    with pytest.raises(AttributeError):
        result().status = Status.NONFINITE
