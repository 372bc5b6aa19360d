"""Put measured tables into the documents, each between two comments that bear its name.

Run after `python -m benchmarks.robustness` and `make bench`: python tools/update_docs.py [bench-results]
The picture of the comparison goes to docs/images.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.robustness import summary  # noqa: E402


def main(measured: Path) -> None:
    outcomes = summary.load()
    tables = {**summary.tables(outcomes), "fits": f"{len(outcomes):,} fits"}
    if measured.is_dir():
        tables |= {path.stem: path.read_text().strip() for path in sorted(measured.glob("*.md"))}
    if (picture := measured / "comparison.png").is_file():
        shutil.copy(picture, ROOT / "docs" / "images")
    for document in sorted((ROOT / "docs").glob("*.md")):
        text = document.read_text()
        for name, table in tables.items():
            block = f"<!-- {name} -->\n{table}\n<!-- /{name} -->"
            text = re.sub(f"<!-- {name} -->.*?<!-- /{name} -->", lambda _, b=block: b, text, flags=re.DOTALL)
        document.write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "bench-results"))
