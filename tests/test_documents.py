"""The examples in README and CONTRIBUTING run as they are printed; tables in documents are those measured."""

import contextlib
import importlib
import io
import re
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_examples_run(name):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)
    assert blocks
    names = {"__name__": f"examples_of_{name.partition('.')[0].lower()}"}
    for block in blocks:
        exec(compile(block, name, "exec"), names)


def test_readme_shows_what_its_examples_print():
    text = (ROOT / "README.md").read_text()
    pattern = r"```python\n(.*?)```\n\n<!-- \w+ -->\n```text\n(.*?)```"
    names, pairs = {"__name__": "readme"}, re.findall(pattern, text, re.DOTALL)
    assert len(pairs) == text.count("```python")
    for code, shown in pairs:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "README.md", "exec"), names)
        numbers = [list(map(float, re.findall(r"-?\d+\.\d+", part))) for part in (shown, printed.getvalue())]
        assert numbers[0] == pytest.approx(numbers[1], abs=0.011)  # two digits, whatever the processor rounds
    assert len(text.splitlines()) <= 120


def names_of_page(name):
    """Run the code of a page of the guide, and give its variables."""
    blocks = re.findall(r"```\{run\}\n(?::alt:.*\n)?(.*?)```", (ROOT / "docs" / "guide" / name).read_text(), re.DOTALL)
    assert blocks
    names = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, name, "exec"), names)
    return names


def test_page_for_users_of_scikit_learn_has_the_numbers_of_scikit_learn():
    names = names_of_page("coming_from_sklearn.md")
    model, ridge = names["model"], names["ridge"]
    assert model.coef_ == pytest.approx(ridge.coef_, rel=1e-5, abs=1e-3)
    assert model.intercept_ == pytest.approx(ridge.intercept_, rel=1e-5)
    # The mode of a posterior of 442 rows lies well within a standard deviation of the mean.
    assert np.abs(names["mean"].coef_ - names["mode"].coef_).max() < 0.25 * names["mean"].coef_std_.min()


def test_page_for_users_of_samplers_has_the_numbers_of_sampling():
    names = names_of_page("coming_from_pymc.md")
    given, draws = names["given"], names["draws"]
    assert draws.mean[0] == pytest.approx(given.coef_[0, 0], abs=0.1 * given.coef_std_[0, 0])  # 2,000 draws: 0.02
    assert draws.std[0] == pytest.approx(given.coef_std_[0, 0], rel=0.1)


def test_page_for_users_of_r_runs():
    names_of_page("coming_from_r.md")


def test_readme_compares_by_the_best_of_each_side():
    update = importlib.import_module("update_readme")
    line = {"task": "mixed", "model": "m", "coefficients": 0.9, "targets": None, "seconds": 0.5}
    rows = [
        line | {"library": "cavity", "score": 0.3},
        line | {"library": "cavity", "score": 0.2, "model": "best"},
        line | {"library": "bambi", "score": 0.25, "coefficients": None},
        line | {"library": "bambi", "score": 0.26},
        line | {"library": "bambi", "score": None},
        line | {"library": "river", "score": 0.1},
    ]
    *_, found = update.comparison_of(rows)
    assert found.endswith("| 0.5 s, 0.2000, 90 % | bambi: 0.5 s, 0.2500, no intervals |")


def test_tables_of_the_study_are_those_of_its_fits(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    summary = importlib.import_module("benchmarks.robustness.summary")
    outcomes = summary.load()
    pages = [(ROOT / "docs" / name).read_text() for name in ("robustness.md", "choosing.md")]
    assert all(any(table in page for page in pages) for table in summary.tables(outcomes).values())
    assert f"{len(outcomes):,} fits" in pages[0]


@pytest.mark.parametrize("choice", ["EPClassifier()", 'cavity.fit(..., "qla")'])
def test_the_study_still_runs(monkeypatch, choice):
    monkeypatch.syspath_prepend(str(ROOT))
    study = importlib.import_module("benchmarks.robustness.study")
    cell = next(study.cells(1))
    outcome = study.run(cell, choice)
    assert outcome.is_finite
    assert outcome.loops > 0


def test_every_place_of_a_table_holds_one():
    for document in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        text = document.read_text()
        for name in re.findall(r"<!-- ([^/>]+) -->", text):
            assert re.search(f"<!-- {name} -->\n.+?\n<!-- /{name} -->", text, re.DOTALL), (document.name, name)
