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
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
    rows = [
        f"| {claim['statement']} | {claim['measured']} | {claim['verdict']} |"
        for claim in claims
        if claim["verdict"] != "holds"
    ]
    brief = [
        f"Of {len(claims)} statements that rest on the paper's experiments: {verdicts}. The report has all, with the",
        "criterion of each. Those that do not simply hold, with the paper's own curvature and Newton's method for VQ:",
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
