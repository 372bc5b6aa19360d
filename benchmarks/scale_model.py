"""What a round over partitions costs, in seconds: compute, bytes and latency.

    compute  rows / workers · (per_row + per_entry · columns + per_square · columns²)
    bytes    4 columns² · (log2(workers) + partitions / workers + 8 log8(workers)) / bandwidth
    tasks    15/7 partitions · per_task
    latency  (3 + log8(partitions)) · latency
    client   columns³ / flops

A row takes one integral, is read from memory, and multiplied by a matrix of columns × columns. The packed triangle of
the posterior goes to every worker, from one to the next; sums come back along a tree of eight branches, in a task per
partition and one per branching. The client factorises and inverts one matrix.

Run: python -m benchmarks.scale_model [rows columns workers partitions]
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

# Tasks of a round per partition: a sweep, its sums apart from its sites, and its share of the tree.
_TASKS = 15.0 / 7.0


@dataclass(frozen=True, slots=True)
class Machine:
    """Rates of one worker of one thread, in seconds, bytes and operations.

    Parameters
    ----------
    per_row
        Seconds per row, for its integrals and arrays.
    per_entry
        Seconds per row and column, for reading and copying rows.
    per_square
        Seconds per row and squared column, for products and sums of matrices.
    per_task
        Seconds of the scheduler per task.
    latency
        Seconds from the last result of a stage to the first task of the next one.
    bandwidth
        Bytes per second between two machines.
    flops
        Operations per second of the client, for factorisations.
    """

    per_row: float
    per_entry: float
    per_square: float
    per_task: float = 1e-3
    latency: float = 0.02
    bandwidth: float = 1e9
    flops: float = 2e10


def triangle(columns: int) -> float:
    """Bytes of what travels: a packed matrix and a few vectors."""
    return 8.0 * (0.5 * columns * (columns + 1.0) + 6.0 * columns)


def round_seconds(machine: Machine, rows: float, columns: int, workers: int, partitions: int) -> dict[str, float]:
    """Seconds of a round, by what they are spent on."""
    at_once = min(workers, partitions)
    copies = np.ceil(np.log2(max(at_once, 2))) + partitions / at_once + 8.0 * _depth_of_tree(at_once)
    return {
        "compute": rows / at_once * _seconds_of_row(machine, columns),
        "bytes": triangle(columns) * copies / machine.bandwidth,
        "tasks": _TASKS * partitions * machine.per_task,
        "latency": (3.0 + _depth_of_tree(partitions)) * machine.latency,
        "client": columns**3 / machine.flops,
    }


def _seconds_of_row(machine: Machine, columns: int) -> float:
    return machine.per_row + machine.per_entry * columns + machine.per_square * columns**2


def fitted(sweeps: list[tuple[int, int, float]], rounds: list[tuple[int, float]]) -> Machine:
    """Rates that explain what was measured, in least squares of relative errors.

    Parameters
    ----------
    sweeps
        Rows, columns and seconds of sweeps of one partition by one thread.
    rounds
        Partitions and seconds of rounds that have nothing to do, on two workers.
    """
    table = np.array([[n, n * d, n * d**2] for n, d, _ in sweeps], dtype=np.float64)
    seconds = np.array([sweep[-1] for sweep in sweeps])
    rates = nnls(table / seconds[:, None], np.ones(seconds.size))[0]
    stages = np.array([[_TASKS * k, 3.0 + _depth_of_tree(k)] for k, _ in rounds])
    seconds = np.array([each[-1] for each in rounds])
    per_task, latency = nnls(stages / seconds[:, None], np.ones(seconds.size))[0]
    return Machine(*map(float, rates), float(per_task), float(latency))


def _depth_of_tree(leaves: int) -> int:
    return int(np.ceil(np.log(max(leaves, 2)) / np.log(8.0)))


def described(machine: Machine, rows: float, columns: int, workers: int, partitions: int, rounds: int) -> str:
    """A fit in words."""
    parts = round_seconds(machine, rows, columns, workers, partitions)
    total = sum(parts.values())
    spent = ", ".join(f"{name} {seconds:.3g} s" for name, seconds in parts.items())
    memory = 8.0 * rows * columns / workers / 2**30
    return (
        f"{rows:.3g} rows of {columns:,} columns on {workers} workers in {partitions:,} partitions: {total:.3g} s per "
        f"round ({spent}), {rounds} rounds in {rounds * total / 3600.0:.2g} hours; {memory:.3g} GiB of rows per worker"
    )


def main() -> None:
    """Print the model for sizes on the command line, with the default rates."""
    rows, columns, workers, partitions = (float(a) for a in (sys.argv[1:] or ("1e9", "1000", "100", "800")))
    machine = Machine(3e-7, 1e-8, 1e-10)  # of the order that `python -m benchmarks --only dask` fits
    print(described(machine, rows, int(columns), int(workers), int(partitions), 20))


if __name__ == "__main__":
    main()
