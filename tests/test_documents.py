"""The examples in README and CONTRIBUTING run as they are printed; tables in documents are those measured."""

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_examples_run(name):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)
    assert blocks
    names = {"__name__": f"examples_of_{name.partition('.')[0].lower()}"}
    for block in blocks:
        exec(compile(block, name, "exec"), names)


def test_tables_of_the_study_are_those_of_its_fits(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    summary = importlib.import_module("benchmarks.robustness.summary")
    outcomes = summary.load()
    pages = [(ROOT / "docs" / name).read_text() for name in ("robustness.md", "choosing.md")]
    assert all(any(table in page for page in pages) for table in summary.tables(outcomes).values())
    assert f"{len(outcomes):,} fits" in pages[0]


def test_every_place_of_a_table_holds_one():
    for document in (ROOT / "docs").glob("*.md"):
        text = document.read_text()
        for name in re.findall(r"<!-- ([^/>]+) -->", text):
            assert re.search(f"<!-- {name} -->\n.+?\n<!-- /{name} -->", text, re.DOTALL), (document.name, name)
