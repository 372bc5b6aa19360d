"""The scikit-learn face of the library: estimators with a posterior, and files that keep them."""

from cavity.estimators._base import ConditionalDeviationsWarning
from cavity.estimators._classifier import EPClassifier
from cavity.estimators._plan import Plan
from cavity.estimators._progress import Progress
from cavity.estimators._regressor import EPRegressor
from cavity.estimators._streaming import SortedStreamWarning
from cavity.estimators.files import load, save

__all__ = [
    "ConditionalDeviationsWarning",
    "EPClassifier",
    "EPRegressor",
    "Plan",
    "Progress",
    "SortedStreamWarning",
    "load",
    "save",
]
