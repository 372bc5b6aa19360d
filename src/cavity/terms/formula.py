"""Formulas as lme4, mgcv and others write them: ``reaction ~ days + s(age) + (days | subject)``.

Parts with a bar and calls of terms are split off first; the rest, ordinary coefficients, is parsed by formulaic.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cavity._checks import shown
from cavity._types import FloatArray
from cavity.terms.curves import Autoregressive, Smooth, Walk
from cavity.terms.effects import Effects, Known
from cavity.terms.frames import nearest
from cavity.terms.linear import Linear, evaluate, split
from cavity.terms.protocol import Term
from cavity.terms.regions import Neighbours

# Arguments of calls that are names of columns, and those that name something beside the table.
_CALLS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "s": (Smooth, ("x", "k", "cyclic", "by")),
    "walk": (Walk, ("time", "order", "period")),
    "ar": (Autoregressive, ("time", "ahead")),
    "neighbours": (Neighbours, ("region", "graph")),
    "known": (Known, ("by", "covariance", "precision")),
    "offset": (Linear, ("x",)),
}
_BESIDE = {"graph", "covariance", "precision"}


@dataclass(frozen=True, eq=False)
class Formula:
    """What a formula says.

    Parameters
    ----------
    text
        The formula.
    target
        What is left of the tilde; None if that is empty.
    terms
        Terms on its right.
    offsets
        Expressions that are known parts of the linear predictor.

    Examples
    --------
    >>> formula = Formula.parse("reaction ~ days + (days | subject)")
    >>> formula.target, formula.terms[0].columns, formula.terms[1].label
    ('reaction', (('days',),), '(days | subject)')
    """

    text: str
    target: str | None
    terms: tuple[Term, ...]
    offsets: tuple[str, ...]

    @classmethod
    def parse(cls, text: str, given: Mapping[str, Any] | None = None) -> Formula:
        """Parse a formula.

        Parameters
        ----------
        text
            The formula.
        given
            Graphs and matrices, by the names that the formula has for them.
        """
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"a formula must be text such as 'y ~ x + (1 | g)', got {shown(text)}")
        _check_brackets(text)
        sides = split(text, "~")
        if len(sides) > 2:
            raise ValueError(f"the formula {text!r} has more than one ~")
        target = sides[0] if len(sides) == 2 and sides[0] else None
        fixed: list[str] = []
        terms: list[Term] = []
        offsets: list[str] = []
        for sign, part in _summands(sides[-1]):
            inner = part[1:-1] if part.startswith("(") and _closes(part) == len(part) - 1 else ""
            call = re.match(r"(\w+)\s*\(", part)
            if len(split(inner, "|")) > 1:
                terms += _effects(inner, part)
            elif call and call[1] in _CALLS and _closes(part) == len(part) - 1:
                if call[1] == "offset":
                    offsets.append(part[part.index("(") + 1 : -1].strip())
                else:
                    terms.append(_called(call[1], part, given))
            else:
                _check_ordinary(part)
                fixed.append(f"{sign} {part}")
                continue
            if sign == "-":
                raise ValueError(f"the part {part!r} of the formula cannot be subtracted")
        columns, intercept = _products(" ".join(fixed), True)
        return cls(text, target, (Linear(columns, intercept=intercept), *terms), tuple(offsets))

    def targets(self, frame: Any) -> Any:
        """Evaluate the left side.

        Parameters
        ----------
        frame
            The table.
        """
        if self.target is None:
            raise ValueError(f"the formula {self.text!r} names no target: write it left of the ~, or pass y")
        name = self.target.strip("`")
        return frame[name] if name in _names(frame) else evaluate(self.target, frame, {})[:, 0]

    def offset(self, frame: Any) -> FloatArray | None:
        """Sum of the offsets; None if there are none.

        Parameters
        ----------
        frame
            The table.
        """
        if not self.offsets:
            return None
        return np.asarray(sum(evaluate(one, frame, {})[:, 0] for one in self.offsets), dtype=np.float64)


def _names(frame: Any) -> list[str]:
    return [str(name) for name in getattr(frame, "columns", frame)]


def _check_brackets(text: str) -> None:
    opened: list[str] = []
    for letter in re.sub(r"'[^']*'|\"[^\"]*\"|`[^`]*`", "", text):
        if letter in "([{":
            opened.append(letter)
        elif letter in ")]}" and (not opened or "([{".index(opened.pop()) != ")]}".index(letter)):
            raise ValueError(f"the formula {text!r} has a bracket {letter!r} that nothing opens")
    if opened:
        raise ValueError(f"the formula {text!r} has a bracket {opened[-1]!r} that nothing closes")


def _closes(text: str) -> int:
    """Place of the bracket that closes the first one."""
    depth, quote = 0, ""
    for k, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"`":
            quote = letter
        else:
            depth += (letter in "([{") - (letter in ")]}")
            if letter in ")]}" and not depth:
                return k
    return -1


def _summands(text: str) -> list[tuple[str, str]]:
    """Parts between plus and minus signs, with their signs."""
    found = []
    for added in split(text, "+"):
        first, *rest = split(added, "-")
        if first:
            found.append(("+", first))
        elif not rest and text:
            raise ValueError(f"the formula has nothing beside a + in {text!r}")
        for one in rest:
            if not one:
                raise ValueError(f"the formula has nothing behind a - in {text!r}")
            found.append(("-", one))
    return found


def _check_ordinary(part: str) -> None:
    if len(split(part, "|")) > 1:
        raise ValueError(f"the part {part!r} of the formula needs brackets: ({part})")
    bare = re.sub(r"'[^']*'|\"[^\"]*\"|`[^`]*`", "", part)
    if "|" in bare:
        raise ValueError(f"the part {part!r} of the formula multiplies effects of a group; write them as one summand")
    found = re.search(r"(?<![\w.])(s|walk|ar|neighbours|known|offset)\s*\(", bare)
    if found:
        advice = "; s(x, by=z) multiplies a curve" if found[1] == "s" else ""
        raise ValueError(f"in the part {part!r} of the formula {found[1]}() is not a summand of its own{advice}")
    if bare.strip() == ".":
        raise ValueError("the part '.' of the formula: name the columns")


def _products(text: str, intercept: bool) -> tuple[tuple[tuple[str, ...], ...], bool]:
    """Products of expressions that ordinary coefficients belong to, and whether there is a constant, by formulaic."""
    if not text.strip():
        return (), intercept
    try:
        from formulaic.errors import FormulaicError
        from formulaic.parser import DefaultFormulaParser
    except ImportError as error:  # pragma: no cover
        raise ImportError("formulas need the package formulaic: pip install 'cavity[formula]'") from error
    try:
        found = DefaultFormulaParser(include_intercept=intercept).get_terms(text.lstrip("+ "))
    except (FormulaicError, SyntaxError) as error:
        said = re.sub(r"\x1b\[[0-9;]*m|⧛[^m]*m|⧚|\[[0-9;]+m", "", str(error)).strip().splitlines()
        raise ValueError(
            f"the part {text.lstrip('+ ')!r} of the formula cannot be read: {' '.join(said[:1])}"
        ) from error
    products, has_one = [], False
    for term in found.rhs if hasattr(found, "rhs") else found:
        factors = tuple(factor.expr for factor in term.factors if factor.expr != "1")
        has_one |= not factors
        if factors:
            products.append(factors)
    return tuple(sorted(products, key=len)), has_one


def _effects(inner: str, part: str) -> list[Effects]:
    """Effects of one bracket: one for every grouping that it has."""
    correlated = "||" not in re.sub(r"\([^()]*\)", "", inner)
    sides = [side for side in split(inner, "|") if side] if not correlated else split(inner, "|")
    if len(sides) != 2 or not all(sides):
        raise ValueError(f"the part {part!r} of the formula must be (effects | group) or (effects || group)")
    slopes, intercept = _products(sides[0], True)
    groups: list[tuple[str, ...]] = []
    for nested in split(sides[1], "+"):
        outer: tuple[str, ...] = ()
        for level in split(nested, "/"):
            outer = (*outer, *(_name(name, part) for name in split(level, ":")))
            groups.append(outer)
    if not slopes and not intercept:
        raise ValueError(f"the part {part!r} of the formula has no effects")
    return [Effects(by, slopes, intercept, correlated or len(slopes) + intercept == 1) for by in groups]


def _name(text: str, part: str) -> str:
    """Name of a column, with or without backticks."""
    if text.startswith("`") and text.endswith("`") and len(text) > 2:
        return text[1:-1]
    if not re.fullmatch(r"[^\W\d][\w.]*", text):
        raise ValueError(
            f"the part {part!r} of the formula needs names of columns, possibly with : and /, got {text!r}"
        )
    return text


def _called(name: str, part: str, given: Mapping[str, Any] | None) -> Any:
    """Make the term that a call names."""
    make, known = _CALLS[name]
    arguments: dict[str, Any] = {}
    for k, text in enumerate(split(part[part.index("(") + 1 : -1], ",")):
        key, *rest = split(text, "=")
        if not rest:
            if k >= (2 if name in ("neighbours", "known") else 1):
                raise ValueError(f"the part {part!r} of the formula: {name}() takes one column, then options by name")
            key, rest = known[k], [key]
        if key not in known or len(rest) != 1:
            raise ValueError(f"the part {part!r} of the formula: {name}() has no option {key!r}; {nearest(key, known)}")
        if key in arguments:
            raise ValueError(f"the part {part!r} of the formula gives {key} twice")
        arguments[key] = _argument(key, rest[0], part, given)
    if known[0] not in arguments:
        raise ValueError(f"the part {part!r} of the formula names no column")
    if name == "neighbours" and "graph" not in arguments:
        arguments["graph"] = _argument("graph", arguments["region"], part, given)
    if name == "known" and len(arguments) == 1:
        arguments["covariance"] = _argument("covariance", arguments["by"], part, given)
    return make(**arguments)


def _argument(key: str, text: str, part: str, given: Mapping[str, Any] | None) -> Any:
    if key in _BESIDE:
        known = given or {}
        if text not in known:
            names = nearest(text, known) if known else "pass graphs and matrices by name beside the formula"
            raise ValueError(f"the part {part!r} of the formula: nothing is called {text!r}; {names}")
        return known[text]
    if key in ("x", "time", "region", "by"):
        return _name(text, part)
    try:
        return ast.literal_eval({"TRUE": "True", "FALSE": "False"}.get(text, text))
    except (ValueError, SyntaxError):
        raise ValueError(
            f"the part {part!r} of the formula: {key} must be a number or True or False, got {text!r}"
        ) from None
