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
    study = (ROOT / "docs" / "robustness.md").read_text()
    assert all(table in study for table in summary.tables(outcomes).values())
    assert f"{len(outcomes):,} fits" in study
    assert summary.in_brief(outcomes) in (ROOT / "docs" / "choosing.md").read_text()
