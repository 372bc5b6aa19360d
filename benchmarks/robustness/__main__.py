"""Run the study: `python -m benchmarks.robustness [--out FILE] [--seeds 2] [--quick]`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

# One thread: set before any library reads it.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[_name] = "1"

from benchmarks.robustness import study, summary  # noqa: E402


def main() -> int:
    """Fit every cell with every choice, save one line per fit, print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.robustness", description=__doc__)
    parser.add_argument("--out", type=Path, default=summary.RESULTS, help="file of the fits")
    parser.add_argument("--seeds", type=int, default=1, help="splits of every data set")
    parser.add_argument("--quick", action="store_true", help="the first data set only: a smoke test")
    options = parser.parse_args()
    cells = list(study.cells(options.seeds))
    if options.quick:
        cells = [cell for cell in cells if cell.data == cells[0].data]
    outcomes = []
    for done, cell in enumerate(cells, 1):
        outcomes += [study.run(cell, choice) for choice in study.CHOICES]
        print(f"{done} of {len(cells)}: {cell.data}, {cell.scaling}, {cell.loss}, split {cell.seed}", flush=True)
    summary.save(outcomes, options.out)
    print("\n" + "\n\n".join(summary.tables(outcomes).values()))
    print(f"\n{len(outcomes)} fits in {options.out}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
