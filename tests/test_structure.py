"""The source stays readable: no module, function or class grows beyond what a reader can hold."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
import structure


@pytest.mark.parametrize("kind", structure.LARGEST)
def test_nothing_is_larger_than_a_reader_can_hold(kind):
    every = [size for size in structure.sizes() if size.kind == kind]
    assert len(every) > 50
    assert [size for size in every if size.value > structure.LARGEST[kind]] == []
