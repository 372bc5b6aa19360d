"""Put a figure and the claims in brief from a report into README.md.

Run after `make reproduce`: python tools/update_readme.py report
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main(report: Path) -> None:
    results = json.loads((report / "claims.json").read_text())["results"]
    claims = [claim for group in results["groups"] for claim in group["claims"]]
    counts = Counter(claim["verdict"] for claim in claims)
    plural = {"holds": "hold", "does not hold": "do not hold"}
    verdicts = ", ".join(
        f"{count} {plural.get(verdict, verdict.replace('holds', 'hold', 1))}" for verdict, count in counts.most_common()
    )
    rows = [
        f"| {claim['statement']} | {claim['measured']} | {claim['verdict']} |"
        for claim in claims
        if claim["verdict"] != "holds"
    ]
    brief = [
        f"Of {len(claims)} statements that rest on the paper's experiments, {verdicts}.",
        "They are judged with the true curvature of the loss, and times with Newton's method for VQ, as in the paper;",
        "the report has them all, each with its criterion. Those that do not simply hold:",
        "",
        "| the paper | measured here | verdict |",
        "|---|---|---|",
        *rows,
    ]
    image = ROOT / "docs" / "images" / "small-data-sets.png"
    image.parent.mkdir(exist_ok=True)
    shutil.copyfile(report / "fig2.png", image)
    figure = [
        f"![Total cost over updates, three data sets, three losses, the paper's schemes]({image.relative_to(ROOT)})",
        "",
        "*The paper's Figure 2, reproduced by `make reproduce`: total cost after every mini-batch update.*",
    ]
    readme = ROOT / "README.md"
    text = readme.read_text()
    for name, lines in (("figure", figure), ("claims", brief)):
        block = "\n".join([f"<!-- {name} -->", *lines, f"<!-- /{name} -->"])
        text = re.sub(f"<!-- {name} -->(.*?<!-- /{name} -->)?", lambda _, b=block: b, text, count=1, flags=re.DOTALL)
    readme.write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "report"))
