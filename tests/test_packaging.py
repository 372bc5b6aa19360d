"""What the files around the package say agrees: bounds of versions, versions, Pythons, files of a wheel."""

import re
import tomllib
from pathlib import Path

import pytest

import cavity

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Extras that take what is newest; the others are installed at their lower bounds by `make oldest`.
NEWEST = {"bench", "compare", "dev", "dist", "docs"}


def lower_bounds():
    extras = PROJECT["optional-dependencies"]
    user = [line for name, lines in extras.items() if name not in NEWEST for line in lines]
    lines = [line for line in PROJECT["dependencies"] + user if not line.startswith("cavity[")]
    return {re.match(r"[\w.-]+", line)[0]: re.search(r">=([\d.]+)", line)[1] for line in lines}


def constraints():
    lines = (ROOT / "constraints-oldest.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def numbers(version):
    parts = [int(part) for part in version.split(".")]
    while parts[-1] == 0:
        parts.pop()
    return parts


def test_the_oldest_versions_that_are_tested_are_the_lower_bounds():
    bounds = lower_bounds()
    tested = {name: version for name, version in constraints().items() if name in bounds}
    assert {name: numbers(tested[name]) for name in bounds} == {name: numbers(bounds[name]) for name in bounds}


def test_the_citation_has_the_version():
    assert f"\nversion: {cavity.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_the_oldest_python_is_named_everywhere():
    oldest = PROJECT["requires-python"].removeprefix(">=")
    named = [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", c)]
    assert min(named, key=numbers) == oldest
    tested = re.search(r"python: \[(.*)\]", (ROOT / ".github" / "workflows" / "tests.yml").read_text())[1]
    assert re.findall(r"[\d.]+", tested) == named


@pytest.mark.parametrize("path", sorted((ROOT / ".github" / "workflows").glob("*.yml")), ids=lambda path: path.stem)
def test_workflows_call_targets_that_exist(path):
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"run: make ([\w-]+)", path.read_text())) <= targets
