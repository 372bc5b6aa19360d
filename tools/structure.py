"""Sizes of the source: lines, longest modules and functions, parameters, methods, constants.

Run: python tools/structure.py
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "cavity"
LARGEST = {"lines of a module": 350, "lines of a function": 60, "parameters of a function": 8, "methods of a class": 20}
# A function of many keywords that are a user's choices, and what checks these.
MANY_CHOICES = {"fit", "make_options"}


class Size(NamedTuple):
    """One number about a place in the source."""

    kind: str
    place: str
    value: int


def sizes() -> list[Size]:
    """All modules, functions and classes."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        text, place = path.read_text(), str(path.relative_to(ROOT))
        found.append(Size("lines of a module", place, text.count("\n")))
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found += list(_of_function(node, f"{place}:{node.name}"))
            elif isinstance(node, ast.ClassDef):
                methods = sum(isinstance(part, ast.FunctionDef) for part in node.body)
                found.append(Size("methods of a class", f"{place}:{node.name}", methods))
    return found


def _of_function(node: ast.FunctionDef | ast.AsyncFunctionDef, place: str) -> Iterator[Size]:
    first = node.body[0]
    has_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    docstring = (first.end_lineno or 0) - first.lineno + 1 if has_docstring else 0
    yield Size("lines of a function", place, (node.end_lineno or 0) - node.lineno + 1 - docstring)
    if node.name != "__init__" and node.name not in MANY_CHOICES:
        names = [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
        yield Size("parameters of a function", place, len([n for n in names if n not in ("self", "cls")]))


def constants() -> list[str]:
    """Names of module constants."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if not isinstance(node, ast.Assign | ast.AnnAssign):
                continue
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)]
            found += [f"{path.relative_to(ROOT)}:{name}" for name in names if name.strip("_").isupper()]
    return found


def main() -> None:
    every = sizes()
    total = sum(size.value for size in every if size.kind == "lines of a module")
    print(f"{total} lines, {len(constants())} module constants")
    for kind, most in LARGEST.items():
        worst = sorted((size for size in every if size.kind == kind), key=lambda size: -size.value)[:8]
        print(f"\n{kind}, at most {most}:")
        for size in worst:
            print(f"  {size.value:5d}  {size.place}")


if __name__ == "__main__":
    main()
