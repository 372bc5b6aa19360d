"""Search longer for the least quasi 0-1 costs, and keep what is lower than the points known.

Run: python tools/search_quasi01.py [--hops 200] [--seed 1] [--data ionosphere ...]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from cavity import datasets
from paper import minima, quasi01
from reference import solvers
from reference.problems import PRIOR_VARIANCE, QUASI01

KNOWN = Path(minima.__file__).with_name("known_points.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hops", type=int, default=200, help="how often the best point is shaken")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data", nargs="*", default=list(datasets.NAMES), choices=datasets.NAMES)
    options = parser.parse_args()
    points = json.loads(KNOWN.read_text())
    for name in options.data:
        design = datasets.paper(name)
        A = design.y[:, None] * design.X
        known = np.array(points[name])
        starts = [
            known,
            solvers.newton_logistic(A, PRIOR_VARIANCE).point,
            solvers.hinge_program(A, PRIOR_VARIANCE).point,
        ]
        rng = np.random.default_rng(options.seed)
        found = quasi01.search(QUASI01, A, PRIOR_VARIANCE, starts, options.hops, rng)
        before, after = (solvers.cost(QUASI01, A, point, PRIOR_VARIANCE) for point in (known, found))
        print(f"{name}: {before:.4f} known, {after:.4f} found")
        if after < before:
            points[name] = found.tolist()
            KNOWN.write_text(json.dumps(points, indent=0) + "\n")


if __name__ == "__main__":
    main()
