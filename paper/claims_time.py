"""What the paper says of computation times (sections 3.3, 3.4 and 4 of its text, table 1).

Verdicts rest on the plain loops in NumPy, which is what the paper timed, with VQ by Newton as there. The times of
the compiled loops and of the closed form are given beside them. Times change from run to run: what a ratio larger or
smaller by `paper.claim.NOISE` would decide otherwise is called undecided.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from paper.claim import Claim, Finding, span
from paper.evidence import Cell, Evidence, FloatArray, Tolerances

_NO_CELL = Finding(None, "no such data set")
# What words of the paper are taken to mean, as ratios of times.
_MUCH, _SIGNIFICANTLY, _SAME_ORDER = 3.0, 1.5, 10.0
_ABOUT_2_TO_3 = (1.5, 4.0)
_CUBIC, _LINEAR = (2.5, 3.5), 1.5


def qla_much_faster(evidence: Evidence, tolerances: Tolerances, suffix: str) -> Finding:
    """LA takes longer than QLA in every small cell, three times as long on average."""
    return _at_least("la", "qla", evidence.cells(large=False), _MUCH, evidence)


def la_very_slow(evidence: Evidence, tolerances: Tolerances, suffix: str) -> Finding:
    """LA takes longer than QLA in every large cell, three times as long on average."""
    return _at_least("la", "qla", evidence.cells(large=True), _MUCH, evidence)


def la_slower_than_gq(evidence: Evidence, tolerances: Tolerances, suffix: str) -> Finding:
    """LA takes longer than GQ in every cell, one and a half times as long on average."""
    return _at_least("la", "gq", evidence.cells(), _SIGNIFICANTLY, evidence)


def _at_least(slow: str, fast: str, cells: list[Cell], times: float, evidence: Evidence) -> Finding:
    if not cells:
        return _NO_CELL
    ratios = evidence.ratios(slow, fast, cells)
    compiled = evidence.ratios(slow, fast, cells, compiled=True)
    measured = (
        f"{slow.upper()} takes {span(ratios)} the time of {fast.upper()}, {typical(ratios):.2g}× on average, at least "
        f"{times:g}× in {int(np.sum(ratios >= times))} of {len(cells)} cells; compiled {span(compiled)}"
    )
    every = bool(np.min(ratios) >= times)
    return Finding(bool(np.min(ratios) > 1.0) and typical(ratios) >= times, measured, every)


def typical(ratios: FloatArray) -> float:
    """Geometric mean of ratios."""
    return float(np.exp(np.mean(np.log(ratios))))


def vq_overhead(evidence: Evidence, tolerances: Tolerances, suffix: str) -> Finding:
    """VQ takes longer than QLA and GQ, and the more so the larger d."""
    cells = evidence.cells(large=False)
    if len({data for data, _ in cells}) < 2:
        return Finding(None, "needs two small sets")
    qla, gq = evidence.ratios("newton", "qla", cells), evidence.ratios("newton", "gq", cells)
    d = np.array([evidence.dimension[data] for data, _ in cells])
    low, high = float(np.mean(qla[d == np.min(d)])), float(np.mean(qla[d > np.min(d)]))
    closed = span(evidence.ratios("vq", "qla", cells)), span(evidence.ratios("vq", "gq", cells))
    measured = (
        f"Newton {span(qla)} the time of QLA and {span(gq)} that of GQ; mean ratio to QLA {low:.2g}× at "
        f"d = {np.min(d)}, {high:.2g}× above; closed form {closed[0]} and {closed[1]}"
    )
    return Finding(bool(min(np.min(qla), np.min(gq)) > 1.0 and high > low), measured)


def vq_faster_than_la(evidence: Evidence, tolerances: Tolerances, suffix: str) -> Finding:
    """LA takes longer than VQ in every small cell, one and a half times as long on average."""
    return _faster_than_la(evidence.cells(large=False), _SIGNIFICANTLY, evidence)


def vq_faster_below_100(evidence: Evidence, tolerances: Tolerances, suffix: str) -> Finding:
    """VQ is faster than LA wherever d < 100."""
    return _faster_than_la([c for c in evidence.cells() if evidence.dimension[c[0]] < 100], 1.0, evidence)


def _faster_than_la(cells: list[Cell], times: float, evidence: Evidence) -> Finding:
    if not cells:
        return _NO_CELL
    newton, closed = evidence.ratios("la", "newton", cells), evidence.ratios("la", "vq", cells)
    faster, all_cells = int(np.sum(newton > 1.0)), len(cells)
    measured = (
        f"LA takes {span(newton)} the time of Newton (Newton is faster in {faster} of {all_cells} cells), "
        f"{span(closed)} that of the closed form (faster in {int(np.sum(closed > 1.0))} of {all_cells})"
    )
    every = bool(np.min(newton) >= times)
    return Finding(bool(np.min(newton) > 1.0) and typical(newton) >= times, measured, every)


def same_order(evidence: Evidence, tolerances: Tolerances, suffix: str) -> Finding:
    """VQ takes at most ten times as long as QLA and GQ on average over the cells with d < 100."""
    cells = [c for c in evidence.cells() if evidence.dimension[c[0]] < 100]
    if not cells:
        return _NO_CELL
    qla, gq = evidence.ratios("newton", "qla", cells), evidence.ratios("newton", "gq", cells)
    closed = span(evidence.ratios("vq", "qla", cells)), span(evidence.ratios("vq", "gq", cells))
    measured = (
        f"Newton {span(qla)} the time of QLA ({typical(qla):.2g}× on average) and {span(gq)} that of GQ "
        f"({typical(gq):.2g}×), at most {_SAME_ORDER:g}× both in {int(np.sum(np.maximum(qla, gq) <= _SAME_ORDER))} of "
        f"{len(cells)} cells; closed form {closed[0]} and {closed[1]}"
    )
    every = bool(max(np.max(qla), np.max(gq)) <= _SAME_ORDER)
    return Finding(max(typical(qla), typical(gq)) <= _SAME_ORDER, measured, every)


def vq_faster_on_bank(evidence: Evidence, tolerances: Tolerances, suffix: str) -> Finding:
    """VQ takes less time than QLA on the bank data."""
    return _against_qla("bank", (0.0, 1.0), evidence)


def vq_slower_on_census(evidence: Evidence, tolerances: Tolerances, suffix: str) -> Finding:
    """VQ takes two to three times as long as QLA on the census data, give or take."""
    return _against_qla("census", _ABOUT_2_TO_3, evidence)


def _against_qla(data: str, allowed: tuple[float, float], evidence: Evidence) -> Finding:
    cells = [cell for cell in evidence.cells(large=True) if cell[0] == data]
    if not cells:
        return _NO_CELL
    newton, closed = evidence.ratios("newton", "qla", cells), evidence.ratios("vq", "qla", cells)
    compiled = evidence.ratios("vq", "qla", cells, compiled=True)
    measured = (
        f"Newton {span(newton)} the time of QLA, closed form {span(closed)}, closed form compiled {span(compiled)}"
    )
    return Finding(bool(allowed[0] <= np.mean(newton) <= allowed[1]), measured)


def orders(evidence: Evidence, tolerances: Tolerances, suffix: str) -> Finding:
    """Newton's time grows as the cube of d, QLA's no faster than d."""
    newton, qla, gq = (evidence.exponent(name) for name in ("newton", "qla", "gq"))
    measured = (
        f"exponent of d over the largest dimensions: Newton {newton:.2f}, QLA {qla:.2f}, "
        f"GQ {gq:.2f} (100 rows, d up to {evidence.closedform['scaling'][-1]['d']})"
    )
    return Finding(_CUBIC[0] <= newton <= _CUBIC[1] and qla <= _LINEAR, measured)


def drawback(evidence: Evidence, tolerances: Tolerances, suffix: str) -> Finding:
    """No computation of VQ grows as slowly as d."""
    closed, last = evidence.exponent("closed"), evidence.closedform["scaling"][-1]
    measured = (
        f"the closed form gives the same minimiser with exponent {closed:.2f}: {last['closed']:.2g} ms at "
        f"d = {last['d']}, against {last['gq']:.2g} ms for GQ"
    )
    return Finding(closed > _LINEAR, measured)


def larger_batches(evidence: Evidence, tolerances: Tolerances, suffix: str) -> Finding:
    """VQ's time relative to QLA's falls with every larger size of the mini-batches."""
    sizes = evidence.closedform["batch_sizes"]
    newton = [s["newton"] / s["qla"] for s in sizes]
    closed = [s["vq"] / s["qla"] for s in sizes]
    listed = " / ".join(str(s["batch_size"]) for s in sizes)
    measured = (
        f"with {listed} rows Newton takes {' / '.join(f'{r:.2g}' for r in newton)} times as long as QLA, "
        f"the closed form {' / '.join(f'{r:.2g}' for r in closed)} times"
    )
    falls = all(evidence.noise * after < before for before, after in pairwise(newton))
    return Finding(falls, measured)


CLAIMS = (
    Claim(
        "qla-much-faster",
        "section 3.3",
        "QLA takes much less time than LA",
        f"LA takes longer in all 9 small cells, and at least {_MUCH:g} times as long on (geometric) average",
        qla_much_faster,
    ),
    Claim(
        "vq-overhead",
        "section 3.3",
        "VQ costs more time than QLA and GQ, and more so with more dimensions",
        "VQ takes longer than either in all 9 small cells, and its mean ratio to QLA is larger at d > 4 than at d = 4",
        vq_overhead,
    ),
    Claim(
        "vq-faster-la",
        "section 3.3",
        "VQ takes clearly less time than LA",
        f"LA takes longer in all 9 small cells, and at least {_SIGNIFICANTLY:g} times as long on average",
        vq_faster_than_la,
    ),
    Claim(
        "vq-bank",
        "section 3.4",
        "On Bank marketing (d = 43) VQ takes a little less time than QLA",
        "mean ratio of times over the 3 losses below 1",
        vq_faster_on_bank,
    ),
    Claim(
        "vq-census",
        "section 3.4",
        "On Census income (d = 101) VQ takes two to three times as long as QLA",
        f"mean ratio of times over the 3 losses between {_ABOUT_2_TO_3[0]:g} and {_ABOUT_2_TO_3[1]:g}",
        vq_slower_on_census,
    ),
    Claim(
        "orders",
        "section 3.4",
        "Time grows as d³ for VQ and as d for QLA",
        f"time grows with an exponent between {_CUBIC[0]:g} and {_CUBIC[1]:g} for Newton, at most {_LINEAR:g} for QLA",
        orders,
    ),
    Claim(
        "drawback",
        "section 4",
        "That VQ scales badly with the dimension is a drawback of the method",
        f"no known computation of VQ has an exponent of at most {_LINEAR:g}",
        drawback,
    ),
    Claim(
        "la-slow",
        "section 3.4",
        "LA is very slow",
        f"LA takes longer than QLA in all 6 large cells, and at least {_MUCH:g} times as long on average",
        la_very_slow,
    ),
    Claim(
        "la-gq",
        "section 4",
        "LA takes clearly more time than GQ",
        f"LA takes longer than GQ in all 15 cells, and at least {_SIGNIFICANTLY:g} times as long on average",
        la_slower_than_gq,
    ),
    Claim(
        "vq-below-100",
        "section 4",
        "Below 100 dimensions VQ takes less time than LA",
        "VQ takes less time than LA in all 12 cells with d < 100",
        vq_faster_below_100,
    ),
    Claim(
        "same-order",
        "section 4",
        "Below 100 dimensions VQ’s time is of the order of QLA’s and GQ’s",
        f"VQ takes at most {_SAME_ORDER:g} times as long as either, on average over the 12 cells with d < 100",
        same_order,
    ),
    Claim(
        "larger-batches",
        "section 4",
        "Larger mini-batches lessen the extra time of VQ over QLA",
        "the ratio of times falls from 10 to 100 to 1000 rows a mini-batch",
        larger_batches,
    ),
)
