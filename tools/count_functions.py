"""Count the different functions of cavity that four calls run, and print them by module.

Usage: python tools/count_functions.py [--list]
"""

from __future__ import annotations

import sys
import warnings
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer

import cavity

SOURCE = str(Path(cavity.__file__).parent)


def functions_of(call: Callable[[], object]) -> dict[str, set[str]]:
    """Names of the functions that a call runs, by module; comprehensions and lambdas apart."""
    found: dict[str, set[str]] = defaultdict(set)

    def note(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(SOURCE) and not code.co_name.startswith("<"):
            found[code.co_filename[len(SOURCE) + 1 :]].add(code.co_qualname)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found


def main() -> None:
    """Print the four walks."""
    X, y = load_breast_cancer(return_X_y=True)
    stream = cavity.EPClassifier().partial_fit(X, y, classes=[0, 1])
    fitted = cavity.EPClassifier().fit(X, y)
    boxes = [cavity.CostFactor(lambda t, a=a: float(0.5 * (t - a) @ (t - a)), dim=2) for a in (1.0, 3.0)]
    prior = cavity.FactorialGaussian.from_moments(np.zeros(2), 1.0)
    walks = {
        "EPClassifier().fit(X, y)": lambda: cavity.EPClassifier().fit(X, y),
        "partial_fit of one row": lambda: stream.partial_fit(X[:1], y[:1]),
        "predict_proba": lambda: fitted.predict_proba(X),
        'cavity.fit(factors, prior, scheme="vq")': lambda: cavity.fit(boxes, prior, scheme="vq"),
    }
    for name, call in walks.items():
        call()  # what is imported or compiled at first does not count
        found = functions_of(call)
        print(f"{name}: {sum(map(len, found.values()))} functions in {len(found)} modules")
        if "--list" in sys.argv:
            for module, functions in sorted(found.items()):
                print(f"  {module}: {', '.join(sorted(functions))}")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
