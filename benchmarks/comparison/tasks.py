"""All tasks by name, in the order of the tables."""

from __future__ import annotations

from benchmarks.comparison import classes, effects, quantiles, streams, wide
from benchmarks.comparison.core import Task

_SMALL, _CLASSES = classes.TASKS
_MIXED, _ONE_HOT = effects.TASKS
TASKS: dict[str, Task] = {
    task.name: task for task in (_SMALL, wide.TASK, _ONE_HOT, _MIXED, _CLASSES, quantiles.TASK, *streams.TASKS)
}
