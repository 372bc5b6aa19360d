"""All terms of a model together: the rows of any table, and the prior of the coefficients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from cavity._types import FloatArray, IndexArray
from cavity.gaussians.factorial import FactorialGaussian
from cavity.terms.curves import LearnedAutoregressive, LearnedSmooth, LearnedWalk
from cavity.terms.effects import LearnedEffects, LearnedKnown
from cavity.terms.frames import length, nearest
from cavity.terms.linear import WEAK, LearnedLinear, Linear, split
from cavity.terms.prior import Block, Prior, StructuredPrior
from cavity.terms.protocol import LearnedTerm, Part, Term
from cavity.terms.regions import LearnedNeighbours

# Share of entries that are not zero up to which rows are kept as CSR, and columns up to which they never are.
_SPARSE, _NARROW = 0.25, 50

_KINDS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        LearnedAutoregressive,
        LearnedEffects,
        LearnedKnown,
        LearnedLinear,
        LearnedNeighbours,
        LearnedSmooth,
        LearnedWalk,
    )
}


class PlacedPart(NamedTuple):
    """A part of a term, and where its coefficients are; ``block`` is its number among those that have a structure."""

    part: Part
    places: slice
    block: int | None


@dataclass(frozen=True, eq=False)
class Design:
    """Terms that have seen a table. The constant column, if there is one, follows the columns of all terms.

    Parameters
    ----------
    terms
        The terms, ordinary coefficients first.
    intercept
        Whether there is a constant.
    means
        Weighted means of all columns over the rows that were learned from.
    straight
        For each term, by its label, the ordinary coefficients that its straight part is.

    Examples
    --------
    >>> from cavity.terms import Effects, Linear
    >>> frame = {"x": np.array([1.0, 2.0, 4.0]), "g": np.array(["a", "b", "b"])}
    >>> design, rows = Design.learn([Linear("x"), Effects("g")], frame)
    >>> design.names
    ['x', '(1 | g)[a]', '(1 | g)[b]', '(1 | g)[(unseen)]']
    >>> design.matrix({"x": [3.0], "g": ["c"]})
    array([[3., 0., 0., 1.]])
    """

    terms: tuple[LearnedTerm, ...]
    intercept: bool
    means: FloatArray
    straight: Mapping[str, tuple[tuple[str, ...], ...]]

    @classmethod
    def learn(cls, terms: Sequence[Term], frame: Any, weights: FloatArray | None = None) -> tuple[Design, Any]:
        """Learn all terms from a table; its rows come with the design.

        Parameters
        ----------
        terms
            The terms. Straight parts of curves become ordinary coefficients, unless these are there already.
        frame
            The table.
        weights
            One weight per row; ones if None.
        """
        weights = np.ones(length(frame)) if weights is None else weights
        ordinary = [term for term in terms if isinstance(term, Linear)]
        others = [term for term in terms if not isinstance(term, Linear)]
        intercept = all(term.intercept for term in ordinary)
        lines = [tuple(tuple(split(one, ":")) for one in term.linear(frame)) for term in others]
        known = {frozenset(split(c, ":") if isinstance(c, str) else c) for term in ordinary for c in term.columns}
        added: list[tuple[str, ...]] = []
        for product in (product for each in lines for product in each):
            if frozenset(product) not in known:
                known.add(frozenset(product))
                added.append(product)
        # First the others: where a column of theirs is wrong, its error names them.
        learned = [term.learn(frame, weights) for term in others]
        weak = next((k for k, term in enumerate(ordinary) if term.variance is None), None)
        if weak is None:
            ordinary, weak = [Linear(), *ordinary], 0
        ordinary[weak] = replace(ordinary[weak], columns=(*ordinary[weak].columns, *added))
        columns = [replace(term, intercept=intercept).learn(frame, weights) for term in ordinary]
        labels = [term.label for term in learned]
        twice = next((label for label in labels if labels.count(label) > 1), None)
        if twice is not None:
            raise ValueError(f"the term {twice} is there twice")
        parts = {part.label: term.label for term in learned for part in term.parts}
        for one in learned:
            own = f"1 | {':'.join(one.by)}" if isinstance(one, LearnedEffects) and one.intercept else ""
            if own in parts and parts[own] != one.label:
                raise ValueError(
                    f"{one.label} and {parts[own]} both have an intercept per level: leave out one, by (0 + ... | ...)"
                )
        if not intercept and not learned and not any(one.names for one in columns):
            raise ValueError("the model has neither columns nor an intercept")
        straight = {label: line for label, line in zip(labels, lines, strict=True) if line}
        found = cls((*(one for one in columns if one.names), *learned), intercept, np.empty(0), straight)
        rows = found.matrix(frame)
        return replace(found, means=np.asarray(weights @ rows).ravel() / float(np.sum(weights))), rows

    @property
    def width(self) -> int:
        """Number of columns, the constant left out."""
        return len(self.names)

    @property
    def names(self) -> list[str]:
        """Names of the coefficients, the intercept left out."""
        return [name for term in self.terms for name in term.names]

    @property
    def variables(self) -> list[str]:
        """Columns of a table that are read."""
        return list(dict.fromkeys(name for term in self.terms for name in term.variables))

    @property
    def places(self) -> dict[str, slice]:
        """Places of the coefficients of every term, by its label."""
        found: dict[str, slice] = {}
        start = 0
        for term in self.terms:
            end = start + len(term.names)
            found[term.label] = slice(found[term.label].start if term.label in found else start, end)
            start = end
        return found

    @property
    def parts(self) -> list[PlacedPart]:
        """Parts of all terms with their places."""
        found, start, blocks = [], 0, 0
        for part in (part for term in self.terms for part in term.parts):
            has_structure = part.structure is not None
            found.append(PlacedPart(part, slice(start, start + part.width), blocks if has_structure else None))
            start, blocks = start + part.width, blocks + has_structure
        return found

    @property
    def ordinary(self) -> IndexArray:
        """Columns of ordinary coefficients, which may be centred and brought to other units."""
        return np.concatenate(
            [
                np.arange(p.places.start, p.places.stop)
                for p in self.parts
                if p.part.size is None or p.part.variances is not None
            ]
            or [np.empty(0, dtype=np.intp)]
        )

    @property
    def level(self) -> FloatArray:
        """What the intercept takes from the coefficients where effects are reported relative to their mean."""
        found = np.zeros(self.means.size)
        for placed in self.parts:
            if placed.part.floats:
                found[placed.places] = self.means[placed.places]
        return found

    def matrix(self, frame: Any, exclude: Sequence[str] = ()) -> Any:
        """Make the columns of a table, dense or CSR; those of terms that are left out are zero, and need no columns.

        Parameters
        ----------
        frame
            The table.
        exclude
            Labels of terms.
        """
        labels = [term.label for term in self.terms]
        for label in exclude:
            if label not in labels:
                raise ValueError(f"exclude names the term {label!r}; {nearest(label, dict.fromkeys(labels))}")
        n = length(frame)
        made = [
            sparse.csr_array((n, len(term.names))) if term.label in exclude else term.columns(frame)
            for term in self.terms
        ]
        return _joined(made, n)

    def require_repeats(self, rows: Any) -> None:
        """Raise where every level of a term has one row: beside noise of unknown size, its effects are noise as well.

        Parameters
        ----------
        rows
            Rows of the table that was learned from.
        """
        columns = sparse.csc_array(rows)
        for term in self.terms:
            if isinstance(term, LearnedEffects) and term.intercept:
                places = self.places[term.label]
                if int(np.max(np.diff(columns[:, places].indptr), initial=0)) <= 1:
                    raise ValueError(
                        f"{term.label}: every level has one row, so that its effects cannot be told from the noise; "
                        "leave the term out"
                    )

    def partial(self, label: str, frame: Any) -> Any:
        """Rows whose linear predictor is the effect of one term, its straight part included, less its mean.

        Parameters
        ----------
        label
            Which term.
        frame
            A table that has the columns of this term.
        """
        places = self.places
        if label not in places:
            raise ValueError(f"there is no term {label!r}; {nearest(label, places)}")
        n, made, shift = length(frame), [], np.zeros(self.means.size)
        wanted = self.straight.get(label, ())
        start = 0
        for term in self.terms:
            width = len(term.names)
            if term.label == label:
                made.append(term.columns(frame))
                shift[start : start + width] = self.means[start : start + width] if term.shown != "levels" else 0.0
            elif isinstance(term, LearnedLinear) and wanted:
                own = tuple(product for product in term.products if set(product) in map(set, wanted))
                made.append(term.columns(frame, own))
                for product in own:
                    here = start + term.places(product)
                    shift[here] = self.means[here]
            else:
                made.append(sparse.csr_array((n, width)))
            start += width
        rows = _joined(made, n)
        moved = np.flatnonzero(shift)
        if not moved.size:
            return rows
        if not sparse.issparse(rows):
            return rows - shift
        taken = sparse.csr_array((shift[moved], (np.zeros(moved.size, dtype=np.intp), moved)), (1, shift.size))
        return sparse.csr_array(rows - sparse.csr_array(np.ones((n, 1))) @ taken)

    def prior(
        self,
        spread: float,
        units: FloatArray | None = None,
        intercept: tuple[float, float] = (0.0, 100.0),
        unit: float = 1.0,
        weak: float = WEAK,
        predictors: int = 1,
    ) -> Prior:
        """Prior of all coefficients, the intercept last, where a search for hyperparameters starts.

        Parameters
        ----------
        spread
            Variance that a term whose variance is to be found gives to the linear predictor at first.
        units
            Units of all columns, by which ordinary ones are divided; ones if None.
        intercept
            Mean and variance of the intercept.
        unit
            Of the linear predictor: given variances and the spread are in its squares.
        weak
            Standard deviation of ordinary coefficients by default, times that of their columns.
        predictors
            Number of linear predictors, which have the same prior.
        """
        width = self.means.size
        units = np.ones(width) if units is None else units
        variances, mean = np.ones(width + self.intercept), np.zeros(width + self.intercept)
        if self.intercept:
            mean[-1], variances[-1] = intercept[0], intercept[1] * unit**2
        blocks = []
        for part, places, _ in self.parts:
            if part.structure is not None:
                columns = (
                    np.arange(places.start, places.stop) + (width + self.intercept) * np.arange(predictors)[:, None]
                )
                blocks.append(Block(part.structure, columns, part.structure.start(spread * unit**2)))
            elif part.variances is not None:
                variances[places] = part.variances * np.square(units[places] * unit * (weak if part.weak else 1.0))
            else:
                variances[places] = spread * unit**2 / (part.width if part.size is None else part.size)
        independent = FactorialGaussian.from_moments(np.tile(mean, predictors), np.tile(variances, predictors))
        return StructuredPrior(independent, tuple(blocks)) if blocks else independent

    def groups(
        self, sizes: FloatArray | None = None, predictors: int = 1
    ) -> list[tuple[Part, IndexArray, float, int | None]]:
        """Parts whose hyperparameters are to be found: coefficients, size, and number of the block if there is one.

        Parameters
        ----------
        sizes
            Mean squares of all columns in their units; ones if None.
        predictors
            Number of linear predictors.
        """
        found = []
        width = self.means.size
        for part, places, block in self.parts:
            if part.variances is None:
                columns = (
                    np.arange(places.start, places.stop) + (width + self.intercept) * np.arange(predictors)[:, None]
                )
                size = part.size
                if size is None:
                    size = float(part.width if sizes is None else np.sum(sizes[places]))
                found.append((part, columns.ravel(), size, block))
        return found

    def components(self, prior: Prior, unit: float = 1.0) -> dict[str, dict[str, float]]:
        """Give standard deviations and correlations of all parts whose hyperparameters were found, by their labels.

        Parameters
        ----------
        prior
            The prior with the hyperparameters that were found, of one linear predictor or of several.
        unit
            Unit of the linear predictor, in which standard deviations are.
        """
        found: dict[str, dict[str, float]] = {}
        for part, places, block in self.parts:
            if isinstance(prior, StructuredPrior) and block is not None:
                own = prior.blocks[block]
                each = own.structure.quantities(own.psi)
                found[part.label] = {name: unit * one if name.startswith("sd") else one for name, one in each.items()}
            elif part.variances is None:
                found[part.label] = {"sd": unit / float(np.sqrt(prior.precision[places.start]))}
        return found

    def freedom(self, prior: Prior, variances: FloatArray, covariances: FloatArray | None = None) -> dict[str, float]:
        r"""Effective degrees of freedom of every part: :math:`\mathrm{tr}(I - P_0 V)` over its coefficients.

        Parameters
        ----------
        prior
            The prior of one linear predictor.
        variances
            Posterior variances of the coefficients.
        covariances
            Posterior covariances of the pairs of coefficients that a structured prior couples.
        """
        pinned = prior.precision * variances
        if isinstance(prior, StructuredPrior) and covariances is not None:
            left, right, values = prior.couplings
            shared = values * covariances
            pinned = pinned + np.bincount(left, shared, pinned.size) + np.bincount(right, shared, pinned.size)
        found: dict[str, float] = {}
        for part, places, _ in self.parts:
            found[part.label] = found.get(part.label, 0.0) + part.width - float(np.sum(pinned[places]))
        return found

    def effects(self, label: str) -> tuple[tuple[str, ...], tuple[str, ...], IndexArray]:
        """Levels of a term, names of the effects of a level, and places of their coefficients ``(levels, effects)``.

        Parameters
        ----------
        label
            Which term; one with levels.
        """
        start, known = 0, []
        for term in self.terms:
            if isinstance(term, LearnedEffects | LearnedKnown):
                known.append(term.label)
                if term.label == label:
                    return term.levels, *_effects_of(term, start)
            start += len(term.names)
        raise ValueError(f"there is no term {label!r} with levels; {nearest(label, known)}")

    def plain(self) -> dict[str, Any]:
        """Names, numbers and arrays only; terms of one's own have no such form."""
        return {
            "terms": [_plain_term(term) for term in self.terms],
            "intercept": self.intercept,
            "means": self.means,
            "straight": {label: [list(product) for product in each] for label, each in self.straight.items()},
        }

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Design:
        """Undo `plain`; `ValueError` unless all parts fit together.

        Parameters
        ----------
        plain
            What `plain` gave.
        """
        try:
            terms = tuple(_value(term) for term in plain["terms"])
            straight = {str(label): _value(each) for label, each in plain["straight"].items()}
            means = np.asarray(plain["means"], dtype=np.float64)
            found = cls(terms, bool(plain["intercept"]), means, straight)
            fits = found.width == sum(p.part.width for p in found.parts) == means.size
        except (AttributeError, IndexError, KeyError, TypeError) as error:
            raise ValueError(f"the model is not consistent: its terms lack {error}") from error
        if not fits:
            raise ValueError("the model is not consistent: its terms do not fit together")
        return found


def _joined(made: Sequence[Any], rows: int) -> Any:
    """Columns side by side: CSR where that pays."""
    if not made:
        return np.empty((rows, 0))
    width = sum(one.shape[1] for one in made)
    stored = sum(one.nnz if sparse.issparse(one) else one.size for one in made)
    if width > _NARROW and stored <= _SPARSE * rows * width:
        found = sparse.csr_array(sparse.hstack([sparse.csr_array(one) for one in made], format="csr"))
        found.eliminate_zeros()
        return found
    whole, start = np.empty((rows, width)), 0
    for one in made:
        end = start + one.shape[1]
        whole[:, start:end] = one.toarray() if sparse.issparse(one) else one
        start = end
    return whole


def _effects_of(term: LearnedEffects | LearnedKnown, start: int) -> tuple[tuple[str, ...], IndexArray]:
    if isinstance(term, LearnedKnown):
        return ("1",), start + np.arange(len(term.levels))[:, None]
    k, levels = len(term.effects), len(term.levels)
    each = np.arange(k * (levels + 1))
    places = each.reshape(-1, k) if term.correlated else each.reshape(k, -1).T
    return term.effects, start + places[:levels]


def _plain_term(term: Any) -> dict[str, Any]:
    kind = type(term).__name__
    if _KINDS.get(kind) is not type(term):
        raise ValueError(f"terms of one's own, such as {kind}, are not written to files; use pickle")
    return {"kind": kind, **{one.name: _plain(getattr(term, one.name)) for one in fields(term)}}


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return _plain_term(value)
    return [_plain(one) for one in value] if isinstance(value, tuple) else value


def _value(plain: Any) -> Any:
    if isinstance(plain, Mapping) and "kind" in plain:
        kind = _KINDS[plain["kind"]]
        return kind(**{one.name: _value(plain[one.name]) for one in fields(kind)})
    return tuple(map(_value, plain)) if isinstance(plain, list | tuple) else plain
