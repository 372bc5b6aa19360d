"""Put measured and printed things into README.md and the pages about the paper and the comparison.

Run after `make reproduce` and `python -m benchmarks --only comparison`:

    python tools/update_readme.py [report] [bench-results]

What is missing there is left as it is; pictures and the output of the examples are made here.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs" / "_ext"))
sys.path.insert(0, str(ROOT / "tools"))

import command_example  # noqa: E402
import formula_figure  # noqa: E402
import overview_figure  # noqa: E402
from run import executed  # noqa: E402

README, PAPER, COMPARISON = ROOT / "README.md", ROOT / "docs" / "how" / "paper.md", ROOT / "docs" / "comparison.md"
COMMAND = ROOT / "docs" / "guide" / "command.md"
# Tasks of the comparison that README speaks of: what they show, and the peer that does the same.
TASKS = {
    "mixed": ("**Random effects without sampling** (two crossed factors)", "bambi"),
    "wide": ("**Prior variance and noise estimated in the fit** (600 columns of 200 rows)", "PyMC"),
    "one-hot": ("**All correlations of thousands of columns** (three one-hot factors)", "bayesianbandits"),
    "drift": ("**Streams that forget** (changing coefficients)", "river"),
}


def put(document: Path, name: str, lines: list[str]) -> None:
    """Replace what stands between the two comments of this name."""
    block = "\n".join([f"<!-- {name} -->", *lines, f"<!-- /{name} -->"])
    text = document.read_text()
    found = re.sub(f"<!-- {name} -->.*?<!-- /{name} -->", lambda _: block, text, count=1, flags=re.DOTALL)
    document.write_text(found)


def put_outputs(document: Path) -> None:
    """Run the examples of a document one after the other, and put what they print below them."""
    names = {"__name__": "readme"}
    for code, name in re.findall(r"```python\n(.*?)```\n\n<!-- (\w+) -->", document.read_text(), re.DOTALL):
        put(document, name, ["```text", *executed(code, names).splitlines(), "```"])


def claims_of(report: Path) -> tuple[list[str], list[str]]:
    """Give the claims in one sentence, and the table of those that do not simply hold."""
    results = json.loads((report / "claims.json").read_text())["results"]
    claims = [claim for group in results["groups"] for claim in group["claims"]]
    plural = {"holds": "hold", "does not hold": "do not hold"}
    counts = Counter(claim["verdict"] for claim in claims)
    verdicts = ", ".join(
        f"{count} {plural.get(verdict, verdict.replace('holds', 'hold', 1))}" for verdict, count in counts.most_common()
    )
    brief = f"Of {len(claims)} statements that rest on the paper's experiments, {verdicts}."
    rows = [
        f"| {claim['statement']} | {claim['measured']} | {claim['verdict']} |"
        for claim in claims
        if claim["verdict"] != "holds"
    ]
    table = [
        brief,
        "They are judged with the exact curvature of the loss, and times with Newton's method for VQ, as in the paper.",
        "The report lists all of them with their criteria. The following do not hold, or hold only in part:",
        "",
        "| the paper | measured here | verdict |",
        "|---|---|---|",
        *rows,
    ]
    return [brief], table


def comparison_of(lines: list[dict[str, Any]]) -> list[str]:
    """Give a table with one line per task: the fit of cavity with the best score, and that of the peer."""
    cells = "Seconds, held-out score (lower is better), and share of true coefficients in their 90 % intervals"
    more = "[more, where others are better too](docs/comparison.md)"
    found = [f"{cells}; {more}:", "", "| task | cavity | other library |", "|---|---|---|"]
    for task, (lead, peer) in TASKS.items():
        done = [line for line in lines if line["task"] == task and line["score"] is not None]
        groups = [[line for line in done if line["library"] == library] for library in ("cavity", peer)]
        if all(groups):
            ours, other = (min(group, key=lambda line: line["score"]) for group in groups)
            found.append(f"| {lead} | {_numbers(ours)} | {peer}: {_numbers(other)} |")
    return found


def _numbers(line: dict[str, Any]) -> str:
    covered = line["coefficients"]
    intervals = "no intervals" if covered is None else f"{100.0 * covered:.0f} %"
    return f"{line['seconds']:.2g} s, {line['score']:.4f}, {intervals}"


def main(report: Path, measured: Path) -> None:
    overview_figure.draw(ROOT / "docs" / "images" / "overview.png")
    formula_figure.draw(ROOT / "docs" / "images" / "formula.png")
    put_outputs(README)
    put(README, "command", command_example.output(progress=False))
    put(COMMAND, "command", command_example.output(progress=True))
    if (report / "claims.json").is_file():
        brief, table = claims_of(report)
        put(README, "claims", brief)
        put(PAPER, "claims", table)
        shutil.copyfile(report / "fig2.png", ROOT / "docs" / "images" / "small-data-sets.png")
    if (measured / "comparison.json").is_file():
        put(README, "comparison", comparison_of(json.loads((measured / "comparison.json").read_text())))
        put(COMPARISON, "picture", ["![Score against time, one panel per task](images/comparison.png)"])


if __name__ == "__main__":
    given = [Path(argument) for argument in sys.argv[1:]]
    main(*(given + [ROOT / "report", ROOT / "bench-results"][len(given) :]))
