"""The reference is complete: every public name is listed, every parameter has a sentence."""

import inspect
import re
import sys
from enum import Enum
from pathlib import Path

import pytest
from numpydoc.docscrape import NumpyDocString

sys.path.insert(0, str(Path(__file__).parents[1] / "docs" / "_ext"))
import as_in
import public

DOCS = Path(__file__).parents[1] / "docs"
NAMES = list(public.names())
# Names that a page of the reference lists, by the module that is current there.
LISTED = {
    f"{module}.{name}"
    for page in (DOCS / "reference").glob("*.rst")
    for module, block in re.findall(
        r"currentmodule:: ([\w.]+)\n(.*?)(?=\.\. currentmodule|\Z)", page.read_text(), re.DOTALL
    )
    for name in re.findall(r"^   ([\w.]+)$", block, re.MULTILINE)
}


def places():
    """Public functions, classes and methods, with those that the reference lists beyond ``__all__``."""
    for path in sorted({*NAMES, *LISTED}):
        found = public.named(path)
        if inspect.isclass(found) and not issubclass(found, Enum):
            yield path, found
            yield from ((f"{path}.{name}", function) for name, function in public.members(found))
        elif inspect.isfunction(found):
            yield path, found


def asked(found):
    """Names of the parameters that a user may give."""
    if getattr(found, "_is_protocol", False):
        return []
    if inspect.isclass(found) and issubclass(found, Exception) and "__init__" not in vars(found):
        return []
    parameters = inspect.signature(found).parameters.values()
    names = [("*" if p.kind is p.VAR_POSITIONAL else "") + p.name for p in parameters]
    return [name for name in names if name not in ("self", "cls")]


@pytest.mark.parametrize("path", NAMES)
def test_every_public_name_is_listed(path):
    assert path in LISTED or any(public.named(path) is public.named(other) for other in LISTED)


@pytest.mark.parametrize(("path", "found"), [pytest.param(*place, id=place[0]) for place in places()])
def test_every_parameter_has_a_sentence(path, found):
    text = as_in.expanded(path, found)
    parsed = NumpyDocString(text)
    entries = [*parsed["Parameters"], *parsed["Attributes"]]
    described = {name: " ".join(entry.desc) for entry in entries for name in entry.name.split(", ")}
    assert text
    assert not [name for name in asked(found) if not described.get(name, "").endswith((".", ":"))]


def test_a_method_of_a_protocol_is_described_there():
    for path in (path for paths in public.PROTOCOLS.values() for path in paths):
        assert path in LISTED
