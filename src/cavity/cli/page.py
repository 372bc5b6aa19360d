"""One page about a model: facts, intervals of coefficients and the course of the fit, without anything to load."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cavity._version import __version__

FloatArray = NDArray[np.float64]


class Entry(NamedTuple):
    """A row of a table of coefficients or variance components."""

    name: str
    mean: float
    std: float
    low: float
    high: float
    positive: float


_STYLE = """
:root { --ink: #1d2530; --soft: #5d6b7a; --line: #dfe4ea; --paper: #ffffff; --up: #1f6fb2; --down: #b5502b;
  --none: #93a0ad }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e7ebf0; --soft: #9aa7b4; --line: #313a45; --paper: #151a20; --up: #6cb4ee; --down: #ef9a76;
    --none: #6d7a87 }
}
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 66rem; padding: 2rem 1.25rem 3rem; color: var(--ink); background: var(--paper);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif }
h1 { font-size: 1.6rem; margin: 0 0 .25rem; overflow-wrap: anywhere }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .5rem }
p.note { color: var(--soft); margin: .2rem 0 1rem; font-size: .9rem }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .3rem 1.2rem; margin: 1rem 0 0 }
dt { color: var(--soft) } dd { margin: 0; overflow-wrap: anywhere }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .92rem }
th { text-align: right; font-weight: 600; color: var(--soft); border-bottom: 2px solid var(--line);
  padding: .3rem .5rem }
td { text-align: right; padding: .22rem .5rem; border-bottom: 1px solid var(--line); white-space: nowrap }
th:first-child, td:first-child { text-align: left; padding-left: 0; white-space: normal; overflow-wrap: anywhere }
td.bar, th.bar { width: 42%; padding: 0 .5rem }
th.bar div { display: flex; justify-content: space-between; font-weight: 400 }
td.bar svg { display: block; width: 100%; height: 1.6rem }
svg .zero { stroke: var(--none); stroke-width: 1; stroke-dasharray: 3 3 }
svg .grid { stroke: var(--line); stroke-width: 1 }
svg .span { stroke-width: 3; stroke-linecap: round } svg .dot { stroke-width: 9; stroke-linecap: round }
svg line { vector-effect: non-scaling-stroke }
.up { stroke: var(--up) } .down { stroke: var(--down) } .none { stroke: var(--none) }
svg.trace { width: 100%; max-width: 40rem; height: auto } svg.trace text { fill: var(--soft); font-size: 12px }
svg.trace polyline { fill: none; stroke: var(--up); stroke-width: 2 } svg.trace circle { fill: var(--up) }
footer { margin-top: 2.5rem; color: var(--soft); font-size: .85rem }
@media (max-width: 40rem) {
  body { padding: 1.25rem .9rem 2rem; font-size: 15px }
  dl { grid-template-columns: 1fr; gap: 0 } dd { margin-bottom: .5rem }
  .wide { display: none } td.bar, th.bar { width: 36% }
}
"""


class Axis(NamedTuple):
    """Ends of what the pictures of a table show, in logarithms for variances."""

    low: float
    high: float
    is_log: bool

    @classmethod
    def of(cls, entries: Sequence[Entry], is_log: bool) -> Axis:
        """Make room for all intervals; a linear axis shows zero."""
        ends = np.array([end for entry in entries for end in (entry.low, entry.high)])
        ends = np.log(ends[ends > 0.0]) if is_log else np.append(ends, 0.0)
        ends = ends[np.isfinite(ends)]
        low, high = (float(np.min(ends)), float(np.max(ends))) if ends.size else (-1.0, 1.0)
        room = 0.04 * (high - low) or 1.0
        return cls(low - room, high + room, is_log)

    def place(self, value: float) -> float:
        """Give the place of a value in thousandths of the width."""
        if self.is_log:
            value = math.log(value) if value > 0.0 else -math.inf
        return round(1000.0 * min(max((value - self.low) / (self.high - self.low), 0.0), 1.0), 1)

    @property
    def ends(self) -> tuple[float, float]:
        """Values at its ends."""
        return (math.exp(self.low), math.exp(self.high)) if self.is_log else (self.low, self.high)


def page(name: str, facts: Mapping[str, str], *parts: str) -> str:
    """Put a page together from its parts."""
    listed = "".join(f"<dt>{escape(fact)}</dt><dd>{escape(value)}</dd>" for fact, value in facts.items())
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(name)}</title><style>{_STYLE}</style></head>\n<body><h1>{escape(name)}</h1>\n"
        f"<dl>{listed}</dl>\n{''.join(parts)}<footer>Written by cavity {escape(__version__)}</footer></body></html>\n"
    )


def coefficients_part(entries: Sequence[Entry], count: int) -> str:
    """Write some of ``count`` coefficients with pictures on one axis; intercepts, of another size, have none."""
    note = (
        "Mean and 95 % interval. A coefficient of a number is for a step of one standard deviation of its column. "
        "Coloured where the interval leaves out zero."
    )
    if len(entries) < count:
        note += f" {len(entries):,} of {count:,}, the largest against their standard deviation."
    axis = Axis.of([entry for entry in entries if not _is_intercept(entry)], is_log=False)
    return _table("Coefficients", note, entries, axis)


def components_part(entries: Sequence[Entry]) -> str:
    """Variance components with pictures on a logarithmic axis; nothing where there are none."""
    note = "Prior variances that were found, with 95 % intervals on a logarithmic axis."
    return _table("Variance components", note, entries, Axis.of(entries, is_log=True)) if entries else ""


def _table(title: str, note: str, entries: Sequence[Entry], axis: Axis) -> str:
    rows = "".join(_row(entry, axis) for entry in entries)
    last = "" if axis.is_log else '<th class="wide">P(&gt;&nbsp;0)</th>'
    ends = "".join(f"<span>{end:.2g}</span>" for end in axis.ends)
    return (
        f'<h2>{title}</h2><p class="note">{note}</p><table><thead><tr><th>name</th>'
        f'<th class="bar"><div>{ends}</div></th><th>mean</th><th class="wide">sd</th><th class="wide">lower</th>'
        f'<th class="wide">upper</th>{last}</tr></thead><tbody>{rows}</tbody></table>\n'
    )


def _row(entry: Entry, axis: Axis) -> str:
    numbers = "".join(f'<td class="wide">{number:.3g}</td>' for number in (entry.std, entry.low, entry.high))
    last = "" if axis.is_log else f'<td class="wide">{entry.positive:.4f}</td>'
    picture = "" if _is_intercept(entry) else _interval(entry, axis)
    return (
        f'<tr><td>{escape(entry.name)}</td><td class="bar">{picture}</td><td>{entry.mean:.3g}</td>{numbers}{last}</tr>'
    )


def _interval(entry: Entry, axis: Axis) -> str:
    """Draw mean and interval."""
    side = "up" if entry.low > 0.0 else "down" if entry.high < 0.0 else "none"
    low, mean, high, zero = (axis.place(value) for value in (entry.low, entry.mean, entry.high, 0.0))
    line = "" if axis.is_log else f'<line class="zero" x1="{zero}" x2="{zero}" y1="0" y2="24"/>'
    return (
        f'<svg viewBox="0 0 1000 24" preserveAspectRatio="none" role="img" aria-label="{entry.low:.3g} to '
        f'{entry.high:.3g}">{line}<line class="span {side}" x1="{low}" x2="{high}" y1="12" y2="12"/>'
        f'<line class="dot {side}" x1="{mean}" x2="{mean}" y1="12" y2="12"/></svg>'
    )


def _is_intercept(entry: Entry) -> bool:
    return entry.name.rpartition(" ")[2] == "intercept"


def course_part(traces: Sequence[Any], tol: float) -> str:
    """Picture of what every loop changed, on a logarithmic axis; nothing where a fit had one loop or none."""
    curves = [[max(change, 1e-12) for change in trace.changes if change > 0.0] for trace in traces]
    curves = [curve for curve in curves if len(curve) > 1]
    if not curves:
        return ""
    least, most = min(min(map(min, curves)), tol or 1.0), max(max(map(max, curves)), tol)
    low, high = math.floor(math.log10(least)), math.ceil(math.log10(most))
    longest = max(map(len, curves))

    def x(loop: int) -> float:
        return round(60 + 520 * (loop / max(longest - 1, 1)), 1)

    def y(change: float) -> float:
        return round(20 + 200 * (high - math.log10(change)) / max(high - low, 1), 1)

    step = max(1, (high - low) // 6)
    marks = "".join(
        f'<line class="grid" x1="60" x2="580" y1="{y(10.0**k)}" y2="{y(10.0**k)}"/>'
        f'<text x="52" y="{y(10.0**k) + 4}" text-anchor="end">{10.0**k:g}</text>'
        for k in range(low, high + 1, step)
    )
    if tol > 0.0:
        marks += f'<line class="zero" x1="60" x2="580" y1="{y(tol)}" y2="{y(tol)}"/>'
        marks += f'<text x="578" y="{y(tol) - 5}" text-anchor="end">tolerance</text>'
    lines = ""
    for curve in curves:
        lines += f'<polyline points="{" ".join(f"{x(k)},{y(c)}" for k, c in enumerate(curve))}"/>'
        lines += "".join(f'<circle cx="{x(k)}" cy="{y(c)}" r="3.5"/>' for k, c in enumerate(curve))
    every = max(1, math.ceil(longest / 12))
    loops = "".join(f'<text x="{x(k)}" y="240" text-anchor="middle">{k + 1}</text>' for k in range(0, longest, every))
    return (
        '<h2>Course of the fit</h2><p class="note">What every loop changed at most, in standard deviations.</p>'
        f'<svg class="trace" viewBox="0 0 600 250" role="img" aria-label="change per loop">'
        f"{marks}{lines}{loops}</svg>\n"
    )
