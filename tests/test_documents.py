"""The examples in README and CONTRIBUTING run as they are printed."""

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
