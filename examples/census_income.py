"""A classifier with uncertainty on Census income: raw columns in, coefficients with intervals and calibration out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from _script import run
from sklearn.calibration import calibration_curve
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import cavity
from cavity import datasets


def main(out: Path) -> dict[str, Any]:
    """Fit, compare with logistic regression on held-out rows, and draw."""
    data = datasets.load("census")
    table = pd.DataFrame(data.features)
    words = [name for name, column in data.features.items() if column.dtype.kind == "U"]
    table[words] = table[words].apply(lambda column: column.str.strip().astype("category"))
    income = pd.Series(data.labels).map({1.0: "> 50K", -1.0: "<= 50K"})
    parts = train_test_split(table, income, test_size=0.25, random_state=0, stratify=income)
    X_train, X_test, y_train, y_test = parts

    model = pipeline(cavity.EPClassifier(random_state=0)).fit(X_train, y_train)
    plain = pipeline(LogisticRegression(C=25.0, max_iter=1000)).fit(X_train, y_train)
    figure, (left, right) = plt.subplots(1, 2, figsize=(12.0, 6.0), layout="constrained")
    model[-1].plot_coefficients(ax=left)
    above = model.classes_[1]
    for name, fitted in {"EPClassifier": model, "LogisticRegression": plain}.items():
        shares, probabilities = calibration_curve(
            y_test == above, fitted.predict_proba(X_test)[:, 1], n_bins=10, strategy="quantile"
        )
        right.plot(probabilities, shares, marker="o", markersize=4, label=name)
    right.plot([0.0, 1.0], [0.0, 1.0], color="0.6", linewidth=0.8)
    right.set(xlabel=f"predicted probability of {above!r}", ylabel="share among held-out rows")
    right.legend()
    figure.savefig(out / "census_income.png", dpi=120)
    plt.close(figure)
    return {
        "accuracy": model.score(X_test, y_test),
        "log loss": log_loss(y_test, model.predict_proba(X_test)),
        "log loss of LogisticRegression": log_loss(y_test, plain.predict_proba(X_test)),
        "loops": model[-1].n_iter_,
        "status": model[-1].status_.name,
    }


def pipeline(classifier: Any) -> Pipeline:
    """Scale numbers, turn categories into indicators, classify; names of columns are kept."""
    columns = make_column_transformer(
        (StandardScaler(), make_column_selector(dtype_include="number")),
        (
            OneHotEncoder(drop="first", min_frequency=20, handle_unknown="infrequent_if_exist", sparse_output=False),
            make_column_selector(dtype_include="category"),
        ),
        verbose_feature_names_out=False,
    )
    return make_pipeline(columns.set_output(transform="pandas"), classifier)


if __name__ == "__main__":
    run(main, __doc__)
