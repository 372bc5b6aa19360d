"""Models compared by what they predict of rows without these rows."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from cavity._types import FloatArray
from cavity.estimators.row_findings import error_of_sum


def compare(models: Any) -> Any:
    """Compare models fitted to the same rows by their leave-one-out predictions.

    No model is fitted again: `loo_` comes from EP's cavities. A difference of several standard errors counts; the
    smallest models among those that do not differ are the ones to take.

    Parameters
    ----------
    models : dict of names and fitted estimators, or list of them
        Models of the same rows and targets, in the same order; their columns, losses and priors may differ.

    Returns
    -------
    pandas.DataFrame or str
        One row per model, the best first: the sum of the log densities (``elpd_loo``) and its standard error, how far
        it is behind the best one (``difference``) and the standard error of that, and the number of rows whose
        log density a refit would change. A DataFrame if pandas is installed, text otherwise.

    Examples
    --------
    >>> import cavity
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> few, all_columns = (cavity.EPClassifier().fit(X[:, :k], y) for k in (2, 4))
    >>> table = cavity.compare({"sepals": few, "sepals and petals": all_columns})
    >>> table.index.tolist()
    ['sepals and petals', 'sepals']
    """
    named = dict(models) if isinstance(models, Mapping) else {f"model {k}": one for k, one in enumerate(models)}
    if len(named) < 2:
        raise ValueError(f"compare needs at least two models, got {len(named)}")
    values = {name: model.loo_ for name, model in named.items()}
    sizes = {value.size for value in values.values()}
    if len(sizes) > 1:
        raise ValueError(f"models must be fitted to the same rows, got fits to {sorted(sizes)} rows")
    weights = [model._densities.weights for model in named.values()]
    if not all(np.array_equal(w, weights[0]) for w in weights):
        raise ValueError("models must be fitted to the same rows with the same weights")
    order = sorted(named, key=lambda name: -named[name].elpd_loo_)
    best = values[order[0]]
    columns: dict[str, FloatArray] = {
        "elpd_loo": np.array([named[name].elpd_loo_ for name in order]),
        "std error": np.array([named[name].elpd_loo_std_ for name in order]),
        "difference": np.array([named[name].elpd_loo_ - named[order[0]].elpd_loo_ for name in order]),
        "error of difference": np.array([error_of_sum(values[name] - best, weights[0]) for name in order]),
        "unreliable rows": np.array([named[name].loo_unreliable_.size for name in order]),
    }
    if find_spec("pandas") is not None:
        return import_module("pandas").DataFrame(columns, index=order)
    room = max(len("model"), *map(len, order))
    lines = [f"{'model':{room}s}" + "".join(f"{name:>22s}" for name in columns)]
    for k, name in enumerate(order):
        lines.append(f"{name:{room}s}" + "".join(f"{column[k]:22.4g}" for column in columns.values()))
    return "\n".join(lines)
