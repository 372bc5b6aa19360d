r"""EP for rows that come in one call after the other: online updates of a posterior with all correlations.

What rows said is kept as natural parameters, the product of their sites: EP in later rows has these as a part of its
prior (`update`). A site depends on the posterior under which it was found. So a stream keeps its last rows: their sites
are found anew together with those of later rows. Rows leave with the site that they have by then (`retire`):

- under a prior that is no narrower than the one to start from: prior variances that few rows suggest may be far too
  small, and under a narrow posterior a site describes its factor nowhere else;
- first those whose site is next to right wherever later rows may take the posterior: outliers and rows of high leverage
  stay. Of losses with kinks only exceptional rows stay, and others go in the order they came: rows with kinks close by
  have all of the curvature, and choosing among them would take it from the rest.

What rows that are gone say of the logarithm of a noise scale is kept to second order.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cavity._types import FloatArray
from cavity.ep.blocks import RowSites, log_scale, noise_slope, run
from cavity.ep.driver import Options
from cavity.ep.hyperparameters import Hyperparameters
from cavity.ep.posteriors import DenseNatural, DensePosterior, JointPosterior, NaturalParameters
from cavity.ep.result import Refusal, Result, Status
from cavity.factors.rows import Rows
from cavity.gaussians.dense import DenseGaussian
from cavity.losses import Loss, offers
from cavity.losses.noise import log_normalizer, with_scale
from cavity.moments import tilts
from cavity.terms.prior import Prior

# How an update may end: the rows are fitted again later.
_FINE = (Status.CONVERGED, Status.SINGLE_PASS, Status.MAX_ITER)
_OPTIONS = Options(max_iter=100, tol=0.01)


@dataclass(frozen=True, slots=True)
class Update:
    """What is known after rows of a stream.

    Parameters
    ----------
    sites
        Products of all sites, of every linear predictor.
    priors, loss
        With the hyperparameters that were found.
    refused, updates
        How many updates were refused and why, of how many.
    status
        How it went.
    results
        The runs of EP, unless a single row was taken.
    """

    sites: tuple[NaturalParameters, ...]
    priors: tuple[Prior, ...]
    loss: Loss
    refused: Counter[Refusal]
    updates: int
    status: Status
    results: tuple[Result, ...] = ()


class Retired(NamedTuple):
    """Natural parameters after rows left a stream: ``known`` of every linear predictor, with all rows before.

    ``kept`` are the places of the rows that stay, ``gone`` of the others, ``noise`` what these say of the logarithm of
    the noise scale: information and shift.
    """

    known: tuple[DenseNatural, ...]
    kept: NDArray[np.intp]
    gone: NDArray[np.intp]
    noise: tuple[float, float]


def posterior_of(rows: Rows, prior: Prior, start: Any = None) -> DensePosterior:
    """Posterior with all correlations of one linear predictor, or of as many as the prior has room for."""
    kind = DensePosterior if prior.dim == rows.shape[1] else JointPosterior
    return kind(rows, prior, start)


def starts_of(loss: Any, rows: Any, free: Hyperparameters) -> list[Any]:
    """Losses whose noise scales a search may have to start from."""
    few = free.groups and free.scale and rows.shape[0] < 2 * rows.shape[1]
    return [loss, with_scale(loss, 0.1 * loss.scale)] if few and offers(loss).squared is None else [loss]


def log_density(found: Result, rows: Any, predictor: int) -> float:
    """Log evidence with the normalisers of the loss, by which losses of different scales compare."""
    weights, targets = rows.weights[slice(None)], rows.targets[predictor][slice(None)]
    return found.log_evidence - float(weights @ log_normalizer(found.loss, targets))


def update(
    loss: Loss,
    rows: Rows,
    known: Sequence[Any],
    priors: Sequence[Prior],
    free: Hyperparameters,
) -> Update:
    """Update what is known of every linear predictor by EP within some rows."""
    outcomes = []
    for k, (before, prior) in enumerate(zip(known, priors, strict=True)):
        tried = []
        for start in starts_of(loss, rows, free):
            work = posterior_of(rows, prior, before)
            tried.append(run(start, rows, work, _OPTIONS, predictor=k, hyperparameters=replace(free)))
        outcomes.append(max(tried, key=lambda one: log_density(one, rows, k)) if len(tried) > 1 else tried[0])
    refused: Counter[Refusal] = Counter()
    for outcome in outcomes:
        for (_, why), count in outcome.trace.refusals.items():
            refused[why] += count
    status = next((o.status for o in outcomes if o.status not in _FINE), Status.SINGLE_PASS)
    return Update(
        tuple(o.sites for o in outcomes),
        tuple(o.prior for o in outcomes),
        outcomes[0].loss,
        refused,
        sum(o.trace.updates for o in outcomes),
        status,
        tuple(outcomes),
    )


def retire(
    rows: Rows, results: Sequence[Result], known: Sequence[DenseNatural], priors: Sequence[Any], keep: int
) -> Retired:
    """Let all rows but ``keep`` leave a stream, after an update to ``results`` from what was ``known`` before.

    ``priors`` are those under which sites are found that no longer change.
    """
    loss, settled, unsettled = results[0].loss, [], np.zeros(rows.shape[0])
    for k, (result, prior) in enumerate(zip(results, priors, strict=True)):
        sites, work = _sites_of(result, rows), posterior_of(rows, result.prior, result.sites)
        if not np.array_equal(prior.precision, result.prior.precision) and work.scale(1.0, 1.0, prior):
            wide = run(loss, rows, work, _OPTIONS, predictor=k, sites=sites)
            work = posterior_of(rows, prior, wide.sites)
        for part in work.parts(False):
            one = sites.part(part)
            one.mean[:], one.variance[:] = work.predictors(part)
        unsettled += _unsettled(loss, rows.targets[k], rows.weights, sites)
        settled.append((work, sites))
    if offers(loss).pieces is not None:
        unsettled = np.where(unsettled > 1.0, unsettled, 0.0)
    order = np.lexsort((rows.order, unsettled))
    gone, kept = (some[np.argsort(rows.order[some])] for some in np.split(order, [max(order.size - keep, 0)]))
    is_gone = np.isin(np.arange(order.size), gone)
    after, noise, weights = [], (0.0, 0.0), rows.weights[gone]
    for before, targets, (work, sites) in zip(known, rows.targets, settled, strict=True):
        flat, shift = np.zeros_like(work.flat), np.zeros_like(work.shift)
        for part in work.parts(False):
            one, share = sites.part(part), is_gone[part].astype(np.float64)
            # Transposed, numbers, vectors and matrices have the rows as their last axis.
            flat += work.flat_of_sites(part, (share * one.precision.T).T)
            shift += work.sum_of_shifts(part, (share * one.shift.T).T)
        theirs = sites.part(gone)
        lower = np.tril(DenseNatural.of_flat(flat, shift).information)
        scale = log_scale(loss, targets[gone], weights, theirs)
        after.append(before.plus(DenseNatural(lower + np.tril(lower, -1).T, shift, scale)))
        if "scale" in getattr(loss, "_fields", ()):
            cavity = theirs.cavities(weights, 1.0, 1.0)
            at = targets[gone], cavity.mean + theirs.offset, cavity.variance
            slope, information = noise_slope(loss, *at, np.where(cavity.improper, 0.0, weights)).tolist()
            information = max(information, 0.5 * abs(slope))
            noise = information, information * math.log(loss.scale) + slope
    return Retired(tuple(after), kept, gone, noise)


def _sites_of(result: Result, rows: Rows) -> RowSites:
    """Sites of all rows after a run, with step sizes of one."""
    sites = RowSites.uniform(rows.shape[0], getattr(result.loss, "predictors", None), rows.offset)
    sites.precision[:], sites.shift[:] = result.state["site_precision"], result.state["site_shift"]
    return sites


def _unsettled(loss: Any, targets: FloatArray, weights: FloatArray, sites: RowSites) -> FloatArray:
    """By how many nats the site of every row is wrong a standard deviation of its cavity to each side of its mean.

    Relative to the posterior mean; later rows may take the posterior there. Of several predictors, which offer no such
    points, the share of the site in the posterior.
    """
    if sites.shift.ndim > 1:
        return np.asarray(np.einsum("nij,nji->n", sites.precision, sites.variance))
    cavity = sites.cavities(weights, 1.0, 1.0)
    mean, std = cavity.mean + sites.offset, np.sqrt(cavity.variance)

    def wrong(z: FloatArray) -> FloatArray:
        beside = z - sites.offset
        site = (sites.shift - 0.5 * sites.precision * beside) * beside
        return np.asarray(-weights * loss.value(targets, z) - site)

    with np.errstate(all="ignore"):
        here = wrong(sites.mean + sites.offset)
        found = np.abs(wrong(mean - std) - here) + np.abs(wrong(mean + std) - here)
    return np.where(np.isfinite(found) & ~cavity.improper, found, np.inf)


def update_row(
    loss: Loss, x: FloatArray, target: float, known: DenseNatural, posterior: DenseGaussian
) -> tuple[DenseNatural, DenseGaussian, Refusal | None]:
    r"""Update a posterior by one row, in :math:`O(d^2)`.

    The posterior before is the row's cavity, so its site is found in one step. With :math:`u = S^\top x` the root of
    the covariance is revised by :math:`S' = S (I - a u u^\top)`, :math:`(1 - a u^\top u)^2 = 1/(1 + T u^\top u)`.
    """
    u = x @ posterior.root
    m, v = float(x @ posterior.mean), float(u @ u)
    tilt = tilts(loss, np.array([target]), np.array([m]), np.array([v]))
    log_mass, moved, ratio = float(tilt.log_mass[0]), float(tilt.shift[0]), float(tilt.ratio[0])
    if not (math.isfinite(log_mass + moved + ratio) and ratio > 0.0):
        return known, posterior, Refusal.NONFINITE
    precision = (1.0 / ratio - 1.0) / v if v > 0.0 else 0.0
    shift = m * precision + (moved / (ratio * math.sqrt(v)) if v > 0.0 else 0.0)
    grown = 1.0 + precision * v
    if not (math.isfinite(precision + shift) and grown > 0.0):
        return known, posterior, Refusal.NONFINITE if grown > 0.0 else Refusal.IMPROPER_POSTERIOR
    gain = (shift - precision * m) / grown
    # The integral of the posterior before times the site without its scale, from its height at the mean before.
    site = (shift - 0.5 * precision * m) * m + 0.5 * gain * gain * grown * v - 0.5 * math.log(grown)
    total = DenseNatural(
        known.information + precision * (x[:, None] * x), known.shift + shift * x, known.log_scale + log_mass - site
    )
    along = posterior.root @ u
    mean = posterior.mean + gain * along
    shrink = (1.0 - 1.0 / math.sqrt(grown)) / v if v > 0.0 else 0.0
    root = posterior.root - along[:, None] * (shrink * u)
    return total, DenseGaussian(mean, root, posterior.log_mass + log_mass), None
