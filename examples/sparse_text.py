"""
Text classification in one pass
===============================

The task is to predict whether a paragraph comes from the documentation of NumPy or SciPy. The words of their
docstrings, without the names of the libraries, are hashed into 262,144 sparse columns.
"""

import inspect
import re
import warnings
from importlib import import_module

import matplotlib.pyplot as plt
import numpy as np
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split

import cavity

PARTS = {
    "numpy": ("", ".linalg", ".fft", ".polynomial", ".random", ".ma"),
    "scipy": (".linalg", ".optimize", ".stats", ".signal", ".sparse", ".interpolate"),
}


def paragraphs(library):
    """Distinct paragraphs of the docstrings of a library, without the names of both libraries."""
    with warnings.catch_warnings(action="ignore"):
        modules = [import_module(library + part) for part in PARTS[library]]
        texts = [inspect.getdoc(getattr(module, name)) or "" for module in modules for name in sorted(dir(module))]
    for paragraph in dict.fromkeys(part for text in texts for part in re.split(r"\n\s*\n", text)):
        words = re.findall(r"[a-z]{3,}", re.sub(r"\b(num|sci)py\w*|\bnp\b", " ", paragraph.lower()))
        if len(words) >= 8:
            yield " ".join(words)


texts, labels = zip(*[(text, library) for library in PARTS for text in paragraphs(library)], strict=True)
X = HashingVectorizer(n_features=2**18, alternate_sign=False).transform(texts)
X_train, X_test, y_train, y_test = train_test_split(X, np.array(labels), test_size=0.3, random_state=0)

# %%
# With a diagonal covariance and a single pass, memory and time depend only on the number of non-zeros. With
# ``covariance="auto"``, all correlations of the words would be kept, at a much higher cost.
model = cavity.EPClassifier(covariance="diagonal", max_iter=1, prior_variance=25.0, random_state=0)
mean, std = model.fit(X_train, y_train).decision_function(X_test, return_std=True)
right, loss = model.predict(X_test) == y_test, log_loss(y_test, model.predict_proba(X_test))
print(f"{X.shape[0]} paragraphs, accuracy {right.mean():.1%}, log loss {loss:.3f}")
figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
certainty = np.abs(mean) / std
axes.hist([certainty[right], certainty[~right]], np.linspace(0.0, 8.0, 33), stacked=True, label=["correct", "wrong"])
axes.set(xlabel="|linear predictor| / its standard deviation", ylabel="number of paragraphs")
axes.legend()
plt.show()

# %%
# **Conclusion.** Most wrong predictions are uncertain: their linear predictor is small relative to its standard
# deviation. These standard deviations are conditional on the coefficients of all other words.
