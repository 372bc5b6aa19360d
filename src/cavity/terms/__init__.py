"""Terms of a model: columns of its design and the prior of their coefficients."""

from cavity.terms.curves import Autoregressive, Smooth, Walk
from cavity.terms.design import Design
from cavity.terms.effects import Effects, Known
from cavity.terms.formula import Formula
from cavity.terms.linear import Linear
from cavity.terms.protocol import LearnedTerm, Part, Term
from cavity.terms.regions import Neighbours
from cavity.terms.structures import Scaled, Structure

__all__ = [
    "Autoregressive",
    "Design",
    "Effects",
    "Formula",
    "Known",
    "LearnedTerm",
    "Linear",
    "Neighbours",
    "Part",
    "Scaled",
    "Smooth",
    "Structure",
    "Term",
    "Walk",
]
