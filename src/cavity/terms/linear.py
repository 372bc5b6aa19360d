"""Ordinary coefficients of columns, transformed columns, categories and their products."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from scipy import sparse

from cavity._checks import positive_number, shown
from cavity._types import FloatArray, IndexArray
from cavity.terms.frames import codes, column, holds_numbers, length, names_of, nearest, numbers, places_of
from cavity.terms.protocol import Part, scattered

# Standard deviation of a coefficient under the weak prior, times that of its column, in log odds or log means: as
# rstanarm has it. Doubling it shows where classes separate or rows are fewer than ten per coefficient. Real targets
# bound coefficients by themselves, so that in units of their spread the prior may be ten times as wide: estimates are
# those of least squares to three digits even where columns are as collinear as x and its square are.
WEAK, WEAK_FOR_REALS = 2.5, 25.0

_FUNCTIONS: dict[str, Any] = {
    one.__name__: one
    for one in (
        *(np.abs, np.arccos, np.arcsin, np.arctan, np.ceil, np.cos, np.cosh, np.exp, np.expm1, np.floor, np.log),
        *(np.log10, np.log1p, np.log2, np.maximum, np.minimum, np.sign, np.sin, np.sinh, np.sqrt, np.square, np.tan),
        np.tanh,
    )
} | {"abs": np.abs}
_OPERATORS: dict[type, Any] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.divide,
    ast.Pow: np.power,
    ast.Mod: np.mod,
    ast.FloorDiv: np.floor_divide,
    ast.USub: np.negative,
    ast.UAdd: np.positive,
}
_WITH_STATE = ("C", "I", "center", "poly", "scale", "standardize")


@dataclass(frozen=True)
class Linear:
    """Ordinary coefficients, with a weak prior by default.

    Parameters
    ----------
    columns
        Columns, or expressions of them as formulas have: ``"age"``, ``"log(dose)"``, ``"C(site, ref='b')"``,
        ``"poly(x, 2)"``, and products ``"age:site"``, also as tuples. Columns of text, and those in ``C``, have one
        coefficient per level but the first.
    variance
        Prior variance of all coefficients; ``"auto"`` estimates one for all columns in units of their standard
        deviations (ridge regression); None is a weak prior scaled to the columns.
    intercept
        Whether the model has a constant, which the levels of categories are relative to.

    Examples
    --------
    >>> frame = {"age": np.array([20.0, 40.0, 60.0]), "site": np.array(["a", "b", "a"])}
    >>> learned = Linear(("age", "site")).learn(frame, np.ones(3))
    >>> learned.names
    ['age', 'site=b']
    """

    columns: tuple[str | tuple[str, ...], ...] | str = ()
    variance: float | Literal["auto"] | None = None
    intercept: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.columns, str):
            object.__setattr__(self, "columns", (self.columns,))
        if self.variance not in (None, "auto"):
            positive_number("the variance of a linear term", self.variance)

    def linear(self, frame: Any) -> tuple[str, ...]:
        """No others."""
        return ()

    def learn(self, frame: Any, weights: FloatArray) -> LearnedLinear:
        """Learn levels, and what transformations need."""
        known, products = names_of(frame), []
        for text in self.columns:
            product = text if isinstance(text, tuple) else (text,) if text in known else tuple(split(text, ":"))
            if product not in products:
                products.append(product)
        sets = [frozenset(product) for product in products] + [frozenset()] * self.intercept
        # As R does: a category has all its levels unless the product without it is in the model.
        whole = tuple(tuple(frozenset(p) - {factor} not in sets for factor in p) for p in products)
        learned = LearnedLinear(tuple(products), whole, {}, self.variance)
        made = learned.columns(frame)  # fills in what transformations need
        total = float(np.sum(weights))
        mean = np.asarray(weights @ made) / total
        squares = np.asarray(weights @ (made.multiply(made) if sparse.issparse(made) else made * made)) / total
        spread = np.sqrt(np.maximum(squares - mean**2, 0.0))
        constant = spread <= 1e-12 * np.abs(mean)
        spread = np.where(constant, np.sqrt(squares), spread)
        return replace(learned, spread=np.where(spread > 0.0, spread, 1.0))


@dataclass(frozen=True, eq=False)
class LearnedLinear:
    """Columns of a `Linear` term.

    Parameters
    ----------
    products
        Expressions whose products are columns.
    whole
        For every factor of every product whether, if it is a category, all its levels have a column.
    states
        What expressions learned: levels, means, coefficients of polynomials.
    variance
        Of the term.
    spread
        Standard deviations of the columns.
    """

    products: tuple[tuple[str, ...], ...]
    whole: tuple[tuple[bool, ...], ...]
    states: dict[str, Any]
    variance: float | str | None = None
    spread: FloatArray = field(default_factory=lambda: np.empty(0))

    label = "linear"
    shown = "coefficients"

    @property
    def variables(self) -> tuple[str, ...]:
        """Columns of the table that are read."""
        found: list[str] = []
        for product in self.products:
            for factor in product:
                found += self.states[f"read {factor}"]
        return tuple(dict.fromkeys(found))

    @property
    def names(self) -> list[str]:
        """Names of the coefficients."""
        return [name for number in range(len(self.products)) for name in self._names_of(number)]

    @property
    def parts(self) -> tuple[Part, ...]:
        """One variance, or one per coefficient."""
        width = self.spread.size
        if not width:
            return ()
        if self.variance == "auto":
            return (Part("linear", width, size=None),)
        if self.variance is None:
            return (Part("linear", width, variances=1.0 / np.square(self.spread), weak=True),)
        return (Part("linear", width, variances=np.full(width, float(self.variance))),)

    def places(self, product: tuple[str, ...]) -> IndexArray:
        """Places of the coefficients of a product; none if it is not here."""
        widths = [len(self._names_of(number)) for number in range(len(self.products))]
        ends = np.cumsum([0, *widths])
        found = [np.arange(ends[k], ends[k + 1]) for k, one in enumerate(self.products) if set(one) == set(product)]
        return found[0] if found else np.empty(0, dtype=np.intp)

    def columns(self, frame: Any, only: tuple[tuple[str, ...], ...] | None = None) -> Any:
        """Make the columns; zero, and unread, are those of products that are not among ``only``."""
        made = []
        for number, product in enumerate(self.products):
            if only is None or product in only:
                made.append(self._columns_of(number, frame))
            else:
                made.append(sparse.csr_array((length(frame), len(self._names_of(number)))))
        if not made:
            return np.empty((length(frame), 0))
        if any(sparse.issparse(one) for one in made):
            return sparse.hstack(made, format="csr")
        return np.hstack(made)

    def _columns_of(self, number: int, frame: Any) -> Any:
        """Columns of a product: numbers, in those of a row's levels if it has categories."""
        n = length(frame)
        values, place, count, has_levels = np.ones((n, 1)), np.zeros(n, dtype=np.intp), 1, False
        for factor, whole in zip(self.products[number], self.whole[number], strict=True):
            found = evaluate(factor, frame, self.states)
            if found.dtype.kind != "i":
                values = (values[:, :, None] * found[:, None, :]).reshape(n, values.shape[1] * found.shape[1])
                continue
            levels = len(self.states[factor]["levels"]) - (not whole)
            own = found[:, 0] - (not whole)
            place = np.where((own < 0) | (place < 0), -1, place * levels + own)
            count, has_levels = count * levels, True
        if not has_levels:
            return values
        m = values.shape[1]
        values = np.where(place[:, None] < 0, 0.0, values)[:, : m * count]
        made = scattered(values, np.maximum(place, 0)[:, None] * m + np.arange(values.shape[1]), count * m)
        made.eliminate_zeros()
        return made

    def _names_of(self, number: int) -> list[str]:
        plain, levels = [[]], [[]]  # type: ignore[var-annotated]
        for factor, whole in zip(self.products[number], self.whole[number], strict=True):
            state = self.states[factor]
            if "levels" in state:
                name, own = state["name"], state["levels"][not whole :]
                levels = [[*before, f"{name}={level}"] for before in levels for level in own]
            else:
                plain = [[*before, name] for before in plain for name in state["names"]]
        return [":".join([*level, *rest]) for level in levels for rest in plain]


def evaluate(text: str, frame: Any, states: dict[str, Any]) -> Any:
    """Evaluate an expression: numbers ``(rows, columns)``, or places of levels as whole numbers ``(rows, 1)``.

    What it has to know later, such as levels and means, is put into ``states`` the first time.
    """
    where, known, learning = f"{text!r}", names_of(frame), text not in states
    state = states.setdefault(text, {})
    quoted: dict[str, str] = {}
    node: ast.expr | None = None
    if text not in known and state.get("name") != text:
        node = _parsed(text, quoted)
    if learning:
        states[f"read {text}"] = [text] if node is None else _columns_in(node, quoted)
    if learning and node is None and holds_numbers(frame, text, where):
        state["names"] = [text]
    name, options = text, {}
    if node is not None and isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "C":
        if not (node.args and isinstance(node.args[0], ast.Name)):
            raise ValueError(f"{where}: C takes the name of a column")
        name = quoted.get(node.args[0].id, node.args[0].id)
        options = {keyword.arg: ast.literal_eval(keyword.value) for keyword in node.keywords}
        if len(node.args) > 1 or set(options) - {"ref", "levels"}:
            raise ValueError(f"{where}: C takes the name of a column, and ref= or levels=; coding is by treatment")
    elif node is not None or "names" in state:
        if node is None:
            found = numbers(frame, text, where)[:, None]
        else:
            with np.errstate(all="ignore"):
                found = np.asarray(_value(node, frame, states, quoted, where), dtype=np.float64)
            found = np.broadcast_to(found, (length(frame),)) if found.ndim == 0 else found
            found = found[:, None] if found.ndim == 1 else found
            bad = np.flatnonzero(~np.all(np.isfinite(found), axis=1))
            if bad.size:
                raise ValueError(f"{where} is not a finite number in {bad.size} rows, the first is row {bad[0]}")
        if learning and node is not None:
            many = found.shape[1]
            state["names"] = [text] if many == 1 else [f"{text}[{k + 1}]" for k in range(many)]
        return found
    own, each = codes(frame, name, where)
    if learning:
        used = np.bincount(own, minlength=len(each)) > 0
        levels = [level for level, is_used in zip(each, used, strict=True) if is_used]
        levels = [str(level) for level in options.get("levels", levels)]
        if "ref" in options:
            if str(options["ref"]) not in levels:
                raise ValueError(f"{where}: {options['ref']!r} is no level: {nearest(str(options['ref']), levels)}")
            levels = [str(options["ref"]), *(one for one in levels if one != str(options["ref"]))]
        state["levels"], state["name"] = levels, name
    place = places_of(each, state["levels"])[own] if each else own
    unknown = np.flatnonzero(place == len(state["levels"]))
    if unknown.size:
        raise ValueError(
            f"{where}: column {name!r} has the level {each[own[unknown[0]]]!r}, which had no rows in the fit: "
            f"{nearest(each[own[unknown[0]]], state['levels'])}. Levels that may be new are effects, (1 | {name})"
        )
    return place[:, None].astype(np.intp)


def split(text: str, mark: str) -> list[str]:
    """Split at a mark that is outside brackets and quotes."""
    found, depth, quote, start = [], 0, "", 0
    for k, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"`":
            quote = letter
        elif letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
        elif letter == mark and not depth:
            found.append(text[start:k].strip())
            start = k + 1
    return [*found, text[start:].strip()]


def _parsed(text: str, quoted: dict[str, str]) -> ast.expr:
    def hide(match: re.Match[str]) -> str:
        quoted[f"_quoted{len(quoted)}"] = match[1]
        return f"_quoted{len(quoted) - 1}"

    try:
        return ast.parse(re.sub(r"`([^`]+)`", hide, text).strip(), mode="eval").body
    except SyntaxError:
        raise ValueError(
            f"{text!r} is neither a column nor an expression; names that are no words stand in backticks"
        ) from None


def _columns_in(node: ast.expr, quoted: Mapping[str, str]) -> list[str]:
    called = {id(one.func) for one in ast.walk(node) if isinstance(one, ast.Call)}
    called |= {id(one.value) for one in ast.walk(node) if isinstance(one, ast.Attribute)}
    names = (one for one in ast.walk(node) if isinstance(one, ast.Name) and id(one) not in called)
    return [quoted.get(one.id, one.id) for one in names]


def _value(node: ast.AST, frame: Any, states: dict[str, Any], quoted: Mapping[str, str], where: str) -> Any:
    """Evaluate a node: numbers, columns, arithmetic, and the functions that formulas have."""

    def inner(one: ast.AST) -> Any:
        return _value(one, frame, states, quoted, where)

    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return float(node.value)
    if isinstance(node, ast.Name):
        return numbers(frame, quoted.get(node.id, node.id), where)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](inner(node.left), inner(node.right))
    if isinstance(node, ast.UnaryOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](inner(node.operand))
    if isinstance(node, ast.Attribute):
        column(frame, ast.unparse(node), where)
    if not isinstance(node, ast.Call):
        raise ValueError(
            f"{where}: formulas have columns, numbers, + - * / ** % and functions, not {ast.unparse(node)!r}"
        )
    of_numpy = isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) in ("np", "numpy")
    name = node.func.attr if of_numpy else ast.unparse(node.func)  # type: ignore[attr-defined]
    if name in _FUNCTIONS and not node.keywords:
        return _FUNCTIONS[name](*map(inner, node.args))
    if name == "I" and len(node.args) == 1:
        return inner(node.args[0])
    if name not in _WITH_STATE or name == "C":
        known = [*_FUNCTIONS, *_WITH_STATE]
        if name in ("s", "walk", "ar", "neighbours", "known", "offset"):
            raise ValueError(f"{where}: {name}() is a term of its own, a summand of the formula")
        raise ValueError(f"{where}: there is no function {name!r}; {nearest(name, known)}")
    state = states.setdefault(ast.unparse(node), {})
    arguments = [inner(one) for one in node.args] + [inner(one.value) for one in node.keywords]
    x = np.asarray(arguments[0], dtype=np.float64)
    if "center" not in state:
        state["center"] = float(np.mean(x))
        state["unit"] = float(np.std(x, ddof=1)) if name != "center" else 1.0
        if not state["unit"] > 0.0:
            raise ValueError(f"{where}: {ast.unparse(node.args[0])!r} has one value only")
    z = (x - state["center"]) / state["unit"]
    if name != "poly":
        return z
    degree = int(arguments[1]) if len(arguments) > 1 else 1
    powers = np.vander(z, degree + 1, increasing=True)
    if "coefficients" not in state:
        distinct = np.unique(z).size
        if not 1 <= degree < distinct:
            raise ValueError(f"{where}: the degree must lie between 1 and {distinct - 1}, got {shown(degree)}")
        root = np.linalg.qr(powers, mode="r")
        state["coefficients"] = np.linalg.inv(root * np.sign(np.diagonal(root))[:, None])[:, 1:]
    return powers @ state["coefficients"]
