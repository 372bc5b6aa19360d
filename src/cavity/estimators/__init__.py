"""The scikit-learn face of the library: estimators with a posterior, and files that keep them."""

from cavity.estimators.base import ConditionalDeviationsWarning
from cavity.estimators.classifier import EPClassifier
from cavity.estimators.comparison import compare
from cavity.estimators.exact import ExactDraws, PosteriorCheck
from cavity.estimators.files import load, save
from cavity.estimators.parameters import Plan
from cavity.estimators.progress import Progress
from cavity.estimators.regressor import EPRegressor
from cavity.estimators.streams import SortedStreamWarning

__all__ = [
    "ConditionalDeviationsWarning",
    "EPClassifier",
    "EPRegressor",
    "ExactDraws",
    "Plan",
    "PosteriorCheck",
    "Progress",
    "SortedStreamWarning",
    "compare",
    "load",
    "save",
]
