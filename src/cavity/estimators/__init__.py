"""The scikit-learn face of the library: estimators with a posterior, and files that keep them."""

from cavity.estimators._base import ConditionalDeviationsWarning
from cavity.estimators._classifier import EPClassifier
from cavity.estimators._persistence import load, save
from cavity.estimators._plan import Plan
from cavity.estimators._progress import Progress
from cavity.estimators._regressor import EPRegressor
from cavity.estimators._streaming import SortedStreamWarning

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
