"""
Coefficients with intervals, and calibrated probabilities
=========================================================

The task is to predict who earns more than 50,000 dollars per year. The pipeline scales numeric columns and one-hot
encodes categories, as usual in scikit-learn. Its last step, `EPClassifier`, estimates a posterior of the coefficients.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.calibration import calibration_curve
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import cavity

data = cavity.datasets.load("census")
words = {name: np.char.strip(column) for name, column in data.features.items() if column.dtype.kind == "U"}
table = pd.DataFrame(data.features | words).astype(dict.fromkeys(words, "category"))
X_train, X_test, y_train, y_test = train_test_split(table, data.labels > 0, random_state=0)


def pipeline(classifier):
    """Scale numbers, one-hot encode categories, classify; column names are kept."""
    encoder = OneHotEncoder(drop="first", min_frequency=20, handle_unknown="ignore", sparse_output=False)
    columns = make_column_transformer(
        (StandardScaler(), make_column_selector(dtype_include="number")),
        (encoder, make_column_selector(dtype_include="category")),
        verbose_feature_names_out=False,
    )
    return make_pipeline(columns.set_output(transform="pandas"), classifier)


# %%
# One fit estimates the coefficients, their correlations and the prior variance. No cross-validation is needed.
models = {
    "EPClassifier": pipeline(cavity.EPClassifier()).fit(X_train, y_train),
    "LogisticRegression": pipeline(LogisticRegression(max_iter=1000)).fit(X_train, y_train),
}
losses = {name: log_loss(y_test, model.predict_proba(X_test)) for name, model in models.items()}
for name, loss in losses.items():
    print(f"{name:20} held-out log loss {loss:.4f}, accuracy {models[name].score(X_test, y_test):.4f}")
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 5.5), layout="constrained")
models["EPClassifier"][-1].plot_coefficients(ax=left).set(title="coefficients (log odds)")
for (name, model), style in zip(models.items(), ("o-", "x--"), strict=True):
    shares, means = calibration_curve(y_test, model.predict_proba(X_test)[:, 1], n_bins=10, strategy="quantile")
    right.plot(means, shares, style, label=name)
right.axline((0, 0), (1, 1), color="0.6", linewidth=0.8)
right.set(xlabel="predicted probability", ylabel="observed share, held-out people", title="calibration")
right.legend()
plt.show()

# %%
# **Conclusion.** The probabilities are as accurate and as well calibrated as those of logistic regression. In addition,
# every coefficient has an interval, which is narrow for age and hours and wide for categories with few people.
