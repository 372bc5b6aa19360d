"""What the page shows, put into words and rows; no layout here, no mathematics either."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from paper.claim import FAILS, HOLDS, NOISE, ONLY_SLOPE, UNDECIDED, UNKNOWN, percent
from paper.experiment import Json
from paper.minima import METHODS, lookup
from paper.panels import LABELS, STYLES, WIDTHS
from paper.posterior_panels import NAMES
from reference.problems import LOSS_TITLES, PAPER_SCHEMES, TITLES

Results = Mapping[str, Json]

# Costs that differ by less than this share are the same curve.
_SAME = 1e-3
_ROUNDING = 1e-12

MARKS = {HOLDS: "✓", ONLY_SLOPE: "◐", FAILS: "✗", UNDECIDED: "?", UNKNOWN: "–"}
KINDS = {HOLDS: "yes", ONLY_SLOPE: "part", FAILS: "no", UNDECIDED: "part", UNKNOWN: "none"}


def counts(results: Results) -> dict[str, int]:
    """How many claims got each verdict."""
    found = Counter(claim["verdict"] for group in results["claims"]["groups"] for claim in group["claims"])
    return {verdict: found[verdict] for verdict in MARKS if found[verdict]}


def findings(results: Results) -> list[str]:
    """List the main results in plain words, each with its number, as far as the numbers are there."""
    findings = []
    claims = {c["key"]: c for g in results.get("claims", {"groups": []})["groups"] for c in g["claims"]}
    if "vq-best" in claims:
        findings.append(
            f"Which scheme comes to rest near the minimum? {_sentence(claims['vq-best']['measured'])} With the slope "
            f"of the loss in place of its curvature: {claims['vq-best']['measured_slope']}."
        )
    if "laplace-hinge" in claims:
        findings.append(
            f"That LA and QLA converge well on the hinge loss {_plain(claims['laplace-hinge']['verdict'])}. With the "
            f"true second derivative: {claims['laplace-hinge']['measured']}. With the slope in its place, as in the "
            f"paper’s program: {claims['laplace-hinge']['measured_slope']}."
        )
    if "closedform" in results:
        slopes = results["closedform"]["slopes"]
        findings.append(
            "Variational quadrature needs no iteration: its minimiser has a closed form, whose time grows as d to the "
            f"power {slopes['closed']:.1f}, where that of Newton’s method grows as d to the power "
            f"{slopes['newton']:.1f}. On the paper’s data {_agreement(results['closedform'])}."
        )
    if results.get("posterior", {}).get("cells"):
        findings.append(_posterior_finding(results["posterior"]))
    if "minima" in results:
        short = [
            (cell["paper"]["cost"] / cell["best"]["cost"] - 1.0, cell)
            for cell in results["minima"]["cells"]
            if cell["paper"] is not None
        ]
        if short:
            worst, cell = max(short, key=lambda pair: pair[0])
            findings.append(
                f"The minima that the paper compares with are not always minima: Powell’s method stops up to "
                f"{percent(worst)} above the best cost known ({TITLES[cell['data']]}, {LOSS_TITLES[cell['loss']]}: "
                f"{number(cell['paper']['cost'])} against {number(cell['best']['cost'])}). Hinge minima here come with "
                "a proof: a dual solution."
            )
    if "table1" in results:
        speed = [r["paper"][s] / r["here"][s]["ms"] for r in results["table1"]["rows"] for s in PAPER_SCHEMES]
        findings.append(
            f"An update takes {min(speed):,.0f} to {max(speed):,.0f} times less time here than the paper reports for "
            "its own program and machine."
        )
    return findings


def _posterior_finding(results: Json) -> str:
    """Say how near the classifier and a product of Gaussians come, in the worst coefficient."""

    def described(name: str) -> str:
        fits = [cell["fits"][name] for cell in results["cells"]]
        distance, ratios = max(fit["distance"] for fit in fits), [fit["ratios"] for fit in fits]
        low, high = min(r[0] for r in ratios), max(r[1] for r in ratios)
        return f"{distance:.2f} standard deviations, deviations {low:.2f} to {high:.2f} times"

    return (
        "On columns of unit variance, no posterior mean of EPClassifier lies further from that of sampling than "
        f"{described('blocks')} as large; of a product of Gaussians {described('product')}."
    )


def claim_rows(group: Json) -> list[Json]:
    """Claims of a group with marks, and a note where the verdict hangs on the tolerances."""
    rows = []
    for claim in group["claims"]:
        changed = {
            "half": claim["half_tolerances"],
            "double": claim["double_tolerances"],
        }
        notes = [f"with {by} the tolerances: {v}" for by, v in changed.items() if v != claim["verdict"]]
        if claim["verdict"] == UNDECIDED:
            notes.append(f"times that differ by a factor of {NOISE:g} would change it")
        if claim["verdict"] == HOLDS and not claim["every_cell"]:
            notes.append(f"if every single cell had to pass: {FAILS}")
        shown = {"mark": MARKS[claim["verdict"]], "kind": KINDS[claim["verdict"]], "note": "; ".join(notes)}
        rows.append({**claim, **shown, "measured": _sentence(claim["measured"])})
    return rows


def minima_rows(results: Json) -> list[Json]:
    """One row for every data set and loss."""
    rows = []
    for cell in lookup(results).values():
        best, paper = cell["best"], cell["paper"]
        proof = "no proof of optimality" if best["gap"] is None else f"proved to within {_bound(best)}"
        rows.append(
            {
                "set": TITLES[cell["data"]],
                "loss": LOSS_TITLES[cell["loss"]],
                "paper": "not computed" if paper is None else number(paper["cost"]),
                "best": number(best["cost"]),
                "excess": "–" if paper is None else percent(paper["cost"] / best["cost"] - 1.0),
                "how": f"{METHODS[best['method']].title}, {proof}",
                "seconds": _duration(best["seconds"]),
            }
        )
    return rows


def time_groups(results: Json) -> list[Json]:
    """Table 1, grouped by data set."""
    groups: dict[str, Json] = {}
    for row in results["rows"]:
        title = f"{TITLES[row['data']]}: N = {row['n']:,}, d = {row['d']}, s = {row['batch_size']}"
        times = {
            "loss": LOSS_TITLES[row["loss"]],
            "here": [milliseconds(row["here"][s]["ms"]) for s in PAPER_SCHEMES],
            "plain": [milliseconds(row["here"][s]["plain_ms"]) for s in PAPER_SCHEMES],
            "paper": [f"{row['paper'][s]:.2f}" for s in PAPER_SCHEMES],
        }
        groups.setdefault(row["data"], {"title": title, "rows": []})["rows"].append(times)
    return list(groups.values())


def closed_rows(results: Json) -> list[Json]:
    """Both solvers on the paper's sets."""
    return [
        {
            "set": TITLES[cell["data"]],
            "loss": LOSS_TITLES[cell["loss"]],
            "d": cell["d"],
            "difference": _tiny(cell["difference"]),
            "last": _tiny(cell["last_difference"]),
            "newton": milliseconds(cell["times"]["newton"]["ms"]),
            "closed": milliseconds(cell["times"]["closed"]["ms"]),
            "ratio": f"{cell['times']['newton']['ms'] / cell['times']['closed']['ms']:.1f}×",
            "updates": len(cell["curves"]["newton"]["cost"]),
        }
        for cell in results["cells"]
    ]


def scaling_rows(results: Json) -> list[Json]:
    """List the times of one update against d."""
    names = ("closed", "newton", "qla", "gq")
    return [
        {"d": row["d"], **{n: "–" if row[n] is None else milliseconds(row[n]) for n in names}}
        for row in results["scaling"]
    ]


def case_title(cell: Json) -> str:
    """Name of a data set and a loss."""
    return f"{TITLES[cell['data']]}, {LOSS_TITLES[cell['loss']]} loss"


def posterior_groups(results: Json) -> list[Json]:
    """One group for every small cell, one row per method of fitting."""
    return [
        {
            "title": f"{TITLES[cell['data']]}, {LOSS_TITLES[cell['loss']]}",
            "draws": f"{cell['sampling']['effective_size']:,.0f} draws, R̂ {cell['sampling']['r_hat']:.2f}",
            "rows": [_posterior_row(name, fit) for name, fit in cell["fits"].items()],
        }
        for cell in results["cells"]
    ]


def large_rows(results: Json) -> list[Json]:
    """One row for every large cell."""
    return [
        {
            "set": TITLES[cell["data"]],
            "loss": LOSS_TITLES[cell["loss"]],
            "blocks": _posterior_row("blocks", cell["fits"]["blocks"]),
            "product": _posterior_row("product", cell["fits"]["product"]),
        }
        for cell in results["large"]
    ]


def _posterior_row(name: str, fit: Json) -> Json:
    return {
        "method": NAMES[name],
        "cost": number(fit["cost"]),
        "loops": fit["loops"],
        "status": "" if fit["status"] == "CONVERGED" else fit["status"].replace("_", " ").lower(),
        "distance": _two(fit["distance"]),
        "ratios": " to ".join(_two(ratio) for ratio in fit["ratios"]),
    }


def _two(value: float | None) -> str:
    """Write a measure with two digits after the point, and large ones short."""
    if value is None:
        return "–"
    return f"{value:.2f}" if abs(value) < 10.0 else f"{value:,.0f}" if abs(value) < 1e5 else f"{value:.0e}"


def legend(names: tuple[str, ...]) -> list[Json]:
    """Line samples for the cost curves, as the figures draw them."""
    return [
        {
            "label": LABELS[name],
            "color": STYLES[name]["color"],
            "marker": STYLES[name]["marker"],
            "width": 1.5 * WIDTHS.get(name, 1.3),
            "dashes": _dashes(STYLES[name]["linestyle"], 1.5 * WIDTHS.get(name, 1.3)),
        }
        for name in names
    ]


def _dashes(linestyle: Any, width: float) -> str:
    return "" if linestyle == "-" else " ".join(f"{width * dash:g}" for dash in linestyle[1])


def _agreement(results: Json) -> str:
    """Say where both solvers give one curve, and how far apart the others get."""
    apart = [cell for cell in results["cells"] if cell["difference"] > _SAME]
    text = f"the two give the same cost curve in {len(results['cells']) - len(apart)} of {len(results['cells'])} cells"
    if apart:
        names = " and ".join(f"{TITLES[c['data']]} {LOSS_TITLES[c['loss']]}" for c in apart)
        worst, last = max(c["difference"] for c in apart), max(c["last_difference"] for c in apart)
        text += f"; on {names} they part by up to {percent(worst)} on the curve and {percent(last)} at the end"
    return text


def _plain(verdict: str) -> str:
    return {HOLDS: "holds", FAILS: "does not hold", UNDECIDED: UNDECIDED, UNKNOWN: "was not tested"}.get(
        verdict, "holds only with the slope of the loss in place of its curvature"
    )


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _tiny(share: float) -> str:
    return percent(share) if share >= 5e-5 else "none" if share == 0.0 else "< 0.01 %"


def number(value: float) -> str:
    """Write a cost for people."""
    return f"{value:,.2f}" if value < 1000 else f"{value:,.1f}"


def milliseconds(value: float) -> str:
    """Write a time for people: two digits that count."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:#.2g}"


def _bound(best: Json) -> str:
    """Bound on the error of a cost, but for what rounding leaves of it."""
    return "rounding" if best["gap"] < _ROUNDING * best["cost"] else f"{best['gap']:.0e}".replace("e-0", "e-")


def _duration(seconds: float) -> str:
    return f"{milliseconds(1e3 * seconds)} ms" if seconds < 0.1 else f"{seconds:.1f} s"
