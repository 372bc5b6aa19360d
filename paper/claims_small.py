"""What the paper says of the three small sets (sections 3.2 and 3.3 of its text, figure 2)."""

from __future__ import annotations

from paper.claim import Claim, Finding, listed, name, percent
from paper.evidence import Evidence, Tolerances


def vq_settles(evidence: Evidence, tolerances: Tolerances, suffix: str) -> Finding:
    """VQ no longer moves in more than half of the cells."""
    cells = evidence.cells(large=False)
    restless = [cell for cell in cells if not evidence.curve(cell, "vq").is_steady(tolerances)]
    if not cells:
        return Finding(None, "no small set")
    measured = f"steady in {len(cells) - len(restless)} of {len(cells)} cells; not in: {listed(restless)}"
    return Finding(2 * len(restless) < len(cells), measured)


def vq_is_steadiest(evidence: Evidence, tolerances: Tolerances, suffix: str) -> Finding:
    """Wherever VQ does not become steady, the other three move more."""
    cells = evidence.cells(large=False)
    if not cells:
        return Finding(None, "no small set")
    beaten = []
    for cell in cells:
        vq = evidence.curve(cell, "vq")
        least = min(evidence.curve(cell, other, suffix).movement for other in ("la", "qla", "gq"))
        if not vq.is_steady(tolerances) and vq.movement > least:
            beaten.append(cell)
    worst = {s: max(evidence.curve(cell, s, suffix).movement for cell in cells) for s in ("la", "qla", "gq", "vq")}
    moves = ", ".join(f"{s.upper()} {percent(m)}" for s, m in worst.items())
    return Finding(not beaten, f"largest movement over the last two loops: {moves}; VQ beaten in: {listed(beaten)}")


def vq_is_close_to_paper(evidence: Evidence, tolerances: Tolerances, suffix: str) -> Finding:
    """VQ ends near the minimum that the paper's own method finds."""
    gaps = {
        cell: evidence.curve(cell, "vq").end - evidence.paper_minimum[cell]
        for cell in evidence.cells(large=False)
        if cell in evidence.paper_minimum
    }
    return _all_close(gaps, tolerances)


def vq_is_close(evidence: Evidence, tolerances: Tolerances, suffix: str) -> Finding:
    """VQ ends near the best minimum known."""
    return _all_close({cell: evidence.curve(cell, "vq").end for cell in evidence.cells(large=False)}, tolerances)


def _all_close(gaps: dict[tuple[str, str], float], tolerances: Tolerances) -> Finding:
    if not gaps:
        return Finding(None, "no small set")
    far = [cell for cell, gap in gaps.items() if gap > tolerances.close]
    worst = max(gaps, key=lambda cell: gaps[cell])
    measured = (
        f"misses at most {percent(gaps[worst])} of the possible gain ({name(worst)}); "
        f"close in {len(gaps) - len(far)} of {len(gaps)} cells"
    )
    return Finding(not far, measured)


def fluctuates_on_ionosphere(evidence: Evidence, tolerances: Tolerances, suffix: str) -> Finding:
    """VQ moves most on ionosphere, and there only slightly."""
    cells = evidence.cells(large=False)
    if len({data for data, _ in cells}) < 2 or not any(data == "ionosphere" for data, _ in cells):
        return Finding(None, "needs ionosphere and another small set")
    moves = {cell: evidence.curve(cell, "vq").movement for cell in cells}
    most = max(moves, key=lambda cell: moves[cell])
    elsewhere = max(m for cell, m in moves.items() if cell[0] != "ionosphere")
    measured = f"largest movement {percent(moves[most])} ({name(most)}); on other sets at most {percent(elsewhere)}"
    return Finding(most[0] == "ionosphere" and moves[most] <= 2.0 * tolerances.steady, measured)


def _laplace_converges(loss: str, evidence: Evidence, tolerances: Tolerances, suffix: str) -> Finding:
    cells = evidence.cells(loss, large=False)
    if not cells:
        return Finding(None, "no small set")
    pairs = [(scheme, cell) for scheme in ("la", "qla") for cell in cells]
    done = [p for p in pairs if evidence.curve(p[1], p[0], suffix).converged(tolerances)]
    move = max(evidence.curve(cell, scheme, suffix).movement for scheme, cell in pairs)
    end = max(evidence.curve(cell, scheme, suffix).end for scheme, cell in pairs)
    detail = f"moves by up to {percent(move)}, misses up to {percent(end)} at the end"
    measured = f"converged in {len(done)} of {len(pairs)} runs; {detail}"
    return Finding(len(done) == len(pairs), measured)


def laplace_converges_logistic(evidence: Evidence, tolerances: Tolerances, suffix: str) -> Finding:
    """LA and QLA end steady and close to the logistic minimum on every small set."""
    return _laplace_converges("logistic", evidence, tolerances, suffix)


def laplace_converges_hinge(evidence: Evidence, tolerances: Tolerances, suffix: str) -> Finding:
    """LA and QLA end steady and close to the hinge minimum on every small set."""
    return _laplace_converges("hinge", evidence, tolerances, suffix)


def laplace_unstable_quasi01(evidence: Evidence, tolerances: Tolerances, suffix: str) -> Finding:
    """Neither LA nor QLA becomes steady with the quasi 0-1 loss."""
    curves = [evidence.curve(c, s, suffix) for c in evidence.cells("quasi01", large=False) for s in ("la", "qla")]
    if not curves:
        return Finding(None, "no small set")
    restless = sum(not curve.is_steady(tolerances) for curve in curves)
    low, high = min(c.movement for c in curves), max(c.movement for c in curves)
    measured = f"unsteady in {restless} of {len(curves)} runs; moves by {percent(low)} to {percent(high)}"
    return Finding(restless == len(curves), measured)


def gq_fails_but_once(evidence: Evidence, tolerances: Tolerances, suffix: str) -> Finding:
    """GQ ends steady and close to the minimum on Haberman with the logistic loss, and nowhere else."""
    cells = evidence.cells(large=False)
    if ("haberman", "logistic") not in cells:
        return Finding(None, "needs haberman")
    done = [cell for cell in cells if evidence.curve(cell, "gq").converged(tolerances)]
    restless = sum(not evidence.curve(cell, "gq").is_steady(tolerances) for cell in cells)
    measured = (
        f"converged in: {listed(done)}; of {len(cells)} cells {restless} oscillate, "
        f"{len(cells) - restless - len(done)} are steady away from the minimum"
    )
    return Finding(done == [("haberman", "logistic")], measured)


def qla_equals_la(evidence: Evidence, tolerances: Tolerances, suffix: str) -> Finding:
    """QLA hovers where LA does, with the losses for which the paper has both converge."""
    cells = evidence.cells("logistic hinge", large=False)
    if not cells:
        return Finding(None, "no small set")
    gaps = {c: evidence.curve(c, "qla", suffix).level - evidence.curve(c, "la", suffix).level for c in cells}
    worst = max(gaps, key=lambda cell: abs(gaps[cell]))
    measured = f"QLA less LA: at most {percent(gaps[worst])} of the possible gain ({name(worst)})"
    return Finding(abs(gaps[worst]) <= tolerances.close, measured)


def zero_one_is_unstable(evidence: Evidence, tolerances: Tolerances, suffix: str) -> Finding:
    """Most runs of GQ and VQ under the 0-1 loss do not become steady; LA and QLA never move."""
    cells = evidence.cells("zero_one", large=False)
    if not cells:
        return Finding(None, "no small set")
    steady = []
    for cell in cells:
        steady += [
            f"{scheme.upper()} on {name(cell)}"
            for scheme in ("gq", "vq")
            if evidence.curve(cell, scheme).is_steady(tolerances)
        ]
    still = sum(evidence.curve(c, s).progress(0.0) == 0.0 for c in cells for s in ("la", "qla"))
    measured = (
        f"GQ and VQ are steady in {len(steady)} of {2 * len(cells)} runs ({', '.join(steady) or 'none'}); "
        f"LA and QLA never move in {still} of {2 * len(cells)}"
    )
    return Finding(len(steady) < len(cells), measured, every=not steady)


CLAIMS = (
    Claim(
        "vq-steady",
        "section 3.3",
        "With VQ, five loops suffice for convergence in most cases",
        "VQ is steady after five loops in more than half of the 9 cells",
        vq_settles,
    ),
    Claim(
        "vq-steadiest",
        "section 3.3",
        "VQ is the steadiest of the four schemes everywhere",
        "in every cell VQ is steady, or moves less than the other three",
        vq_is_steadiest,
        laplace=True,
    ),
    Claim(
        "vq-close-paper",
        "section 3.3",
        "VQ ends near the optimum (against the minima of the paper’s own methods)",
        "in every cell VQ ends close to the Newton or Powell minimum",
        vq_is_close_to_paper,
    ),
    Claim(
        "vq-close-best",
        "section 3.3",
        "VQ ends near the optimum (against the best minima known to us)",
        "in every cell VQ ends close to the best minimum known",
        vq_is_close,
    ),
    Claim(
        "ionosphere",
        "section 3.3",
        "On ionosphere VQ keeps fluctuating a little",
        "VQ’s largest movement is on ionosphere, and at most twice what counts as steady",
        fluctuates_on_ionosphere,
    ),
    Claim(
        "laplace-logistic",
        "section 3.3",
        "LA and QLA converge well on the logistic loss",
        "LA and QLA are steady and close in all 3 logistic cells",
        laplace_converges_logistic,
        laplace=True,
    ),
    Claim(
        "laplace-hinge",
        "section 3.3",
        "LA and QLA converge well on the hinge loss too, in spite of its kink",
        "LA and QLA are steady and close in all 3 hinge cells",
        laplace_converges_hinge,
        laplace=True,
    ),
    Claim(
        "laplace-quasi01",
        "section 3.3",
        "LA and QLA are unstable on the quasi 0–1 loss",
        "neither LA nor QLA is steady in any of the 3 quasi 0–1 cells",
        laplace_unstable_quasi01,
        laplace=True,
    ),
    Claim(
        "gq",
        "section 3.3",
        "GQ oscillates or ends away from the minimum, but for the logistic loss on Haberman to some extent",
        "GQ is steady and close in the cell Haberman logistic, and in no other",
        gq_fails_but_once,
    ),
    Claim(
        "qla-la",
        "section 3.3",
        "QLA does about as well as LA",
        "in every logistic and hinge cell the median costs of LA and QLA over the last two loops are close",
        qla_equals_la,
        laplace=True,
    ),
    Claim(
        "zero-one",
        "section 3.2",
        "The plain 0–1 loss makes all variants unstable",
        "under the 0–1 loss itself most runs of GQ and VQ on the small sets are unsteady (LA and QLA see no slope)",
        zero_one_is_unstable,
    ),
)
