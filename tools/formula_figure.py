"""The picture of README's formula: what its example draws.

Run: python tools/formula_figure.py [docs/images/formula.png]
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

ROOT = Path(__file__).parents[1]


def draw(path: Path) -> None:
    """Run the first example of README, and save the terms of its model."""
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert code is not None
    names: dict[str, Any] = {"__name__": "readme"}
    exec(compile(code[1], "README.md", "exec"), names)
    age, job = names["model"].plot_terms().ravel()
    age.set_ylabel("log odds of a deposit")
    job.set_xlabel("log odds, with 95 % intervals")
    age.figure.savefig(path, dpi=110)


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images" / "formula.png")
