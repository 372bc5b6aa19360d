"""One page about a model: facts, intervals of coefficients and the course of the fit, without anything to load."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cavity._version import __version__

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


def page(name: str, facts: Mapping[str, str], *parts: str) -> str:
    """Put a page together from its parts."""
    listed = "".join(f"<dt>{escape(fact)}</dt><dd>{escape(value)}</dd>" for fact, value in facts.items())
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(name)}</title><style>{_STYLE}</style></head>\n<body><h1>{escape(name)}</h1>\n"
        f"<dl>{listed}</dl>\n{''.join(parts)}<footer>Written by cavity {escape(__version__)}</footer></body></html>\n"
    )


def intervals_part(
    title: str, note: str, names: Sequence[str], columns: Mapping[str, NDArray[Any]], is_log: bool = False
) -> str:
    """Write a table of means and intervals with pictures on one axis, which shows zero unless it is logarithmic.

    Intercepts are of another size, and have no pictures.
    """
    mean, sd, lower, upper, positive = list(columns.values())[:5]
    has_picture = np.array([name.rpartition(" ")[2] != "intercept" for name in names])
    ends = np.concatenate([lower[has_picture], upper[has_picture]])
    ends = np.log(ends[ends > 0.0]) if is_log else np.append(ends, 0.0)
    ends = ends[np.isfinite(ends)]
    low, high = (float(np.min(ends)), float(np.max(ends))) if ends.size else (-1.0, 1.0)
    room = 0.04 * (high - low) or 1.0
    low, high = low - room, high + room

    def x(value: float) -> float:
        """Give the place of a value in thousandths of the width."""
        if is_log:
            value = math.log(value) if value > 0.0 else -math.inf
        return round(1000.0 * min(max((value - low) / (high - low), 0.0), 1.0), 1)

    rows = ""
    for k, name in enumerate(names):
        picture = ""
        if has_picture[k]:
            side = "up" if lower[k] > 0.0 else "down" if upper[k] < 0.0 else "none"
            zero = "" if is_log else f'<line class="zero" x1="{x(0.0)}" x2="{x(0.0)}" y1="0" y2="24"/>'
            picture = (
                '<svg viewBox="0 0 1000 24" preserveAspectRatio="none" role="img" '
                f'aria-label="{lower[k]:.3g} to {upper[k]:.3g}">{zero}'
                f'<line class="span {side}" x1="{x(lower[k])}" x2="{x(upper[k])}" y1="12" y2="12"/>'
                f'<line class="dot {side}" x1="{x(mean[k])}" x2="{x(mean[k])}" y1="12" y2="12"/></svg>'
            )
        numbers = [f"{number:.3g}" for number in (sd[k], lower[k], upper[k])]
        numbers += [] if is_log else [f"{positive[k]:.4f}"]
        cells = "".join(f'<td class="wide">{number}</td>' for number in numbers)
        rows += f'<tr><td>{escape(name)}</td><td class="bar">{picture}</td><td>{mean[k]:.3g}</td>{cells}</tr>'
    heads = ["sd", "lower", "upper", *([] if is_log else ["P(&gt;&nbsp;0)"])]
    titles = "".join(f'<th class="wide">{head}</th>' for head in heads)
    marks = "".join(f"<span>{end:.2g}</span>" for end in ((math.exp(low), math.exp(high)) if is_log else (low, high)))
    return (
        f'<h2>{title}</h2><p class="note">{note}</p><table><thead><tr><th>name</th><th class="bar"><div>{marks}</div>'
        f"</th><th>mean</th>{titles}</tr></thead><tbody>{rows}</tbody></table>\n"
    )


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
