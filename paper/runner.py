"""Runs experiments: computes what is missing, writes each as soon as it is done, then figures and the page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

from paper import canvas, page, store
from paper.catalogue import EXPERIMENTS
from paper.experiment import Experiment, Json, Settings
from paper.pool import answers, answers_alone, workers
from reference import machine

Records = dict[str, Json]


class Progress(Protocol):
    """What is shown of a run while it works."""

    def begin(self, name: str, summary: str, total: int) -> None:
        """Announce an experiment and the number of its tasks."""

    def advance(self, name: str) -> None:
        """Show that one more of its tasks is done."""

    def finish(self, name: str, note: str) -> None:
        """Show that an experiment is done, and how."""


class UnknownNameError(ValueError):
    """A name that no experiment or data set has; the message lists those that exist."""


def reproduce(
    folder: Path,
    only: Sequence[str],
    settings: Settings,
    progress: Progress,
    *,
    resume: bool = False,
    jobs: int = 1,
) -> Path:
    """Run the experiments named, and those they need, and write numbers, figures and the page.

    Parameters
    ----------
    folder
        Where everything goes.
    only
        Names of experiments; empty for all.
    settings
        What the results depend on.
    progress
        What shows the progress.
    resume
        Keep finished experiments made with the same settings. Those that are merely needed are always kept.
    jobs
        Number of worker processes.

    Returns
    -------
    Path
        The page.
    """
    named = checked(only, EXPERIMENTS, "experiment")
    store.prepare(folder)
    wanted = with_needs(named)
    records: Records = {}
    for name in wanted:
        record = store.read(folder, name)
        # What has no tasks only reads the others, and is made again from them.
        may_stay = (resume or name not in named) and EXPERIMENTS[name].tasks(settings)
        if record is not None and may_stay and store.is_made_with(record, settings):
            records[name] = record
            progress.begin(name, EXPERIMENTS[name].summary, 1)
            progress.finish(name, "kept")
    missing = [EXPERIMENTS[name] for name in wanted if name not in records]
    run = _Run(folder, settings, progress, records, missing)
    with workers(jobs) as pool:
        run.stage(pool, alone=False)
        run.stage(pool, alone=True)
    run.without_tasks()
    return redraw(folder, named, progress)


def redraw(folder: Path, only: Sequence[str], progress: Progress) -> Path:
    """Draw figures from the numbers in the folder, those named or all that are there, and the page of all."""
    named = checked(only, EXPERIMENTS, "experiment")
    records = {name: record for name in EXPERIMENTS if (record := store.read(folder, name)) is not None}
    absent = [name for name in named if name not in records] if only else []
    if absent or not records:
        what = ", ".join(absent) or "any experiment"
        raise store.OutputError(f"no numbers of {what} in {folder} to draw from; run without --redraw first")
    store.prepare(folder)
    begin = perf_counter()
    results = {name: record["results"] for name, record in records.items()}
    drawings = {
        name: experiment.draw(results[name], results)
        for name, experiment in EXPERIMENTS.items()
        if name in records and experiment.draw is not None and all(need in results for need in experiment.needs)
    }
    drawings = {name: drawing for name, drawing in drawings.items() if drawing.panels}
    progress.begin("report", "figures and page", len(drawings) + 1)
    for name in drawings:
        if name in named:
            canvas.write(drawings[name], folder, name)
        progress.advance("report")
    path = folder / "index.html"
    store.replace_bytes(path, page.render(records, drawings).encode())
    progress.finish("report", f"{perf_counter() - begin:.0f} s")
    return path


def checked(names: Iterable[str], valid: Mapping[str, Any], what: str) -> list[str]:
    """Sort names as the valid ones are sorted, all of them if there are none; refuse any other."""
    given = list(names)
    unknown = [name for name in given if name not in valid]
    if unknown:
        raise UnknownNameError(f"unknown {what} {', '.join(map(repr, unknown))}; valid are: {', '.join(valid)}")
    return [name for name in valid if name in given or not given]


def with_needs(names: Iterable[str]) -> list[str]:
    """Add the experiments that the named ones need, in the order of the catalogue."""
    wanted = set(names)
    for experiment in reversed(EXPERIMENTS.values()):
        if experiment.name in wanted:
            wanted |= set(experiment.needs)
    return [name for name in EXPERIMENTS if name in wanted]


class _Run:
    """The part of a run that computes: in two stages, side by side and alone."""

    def __init__(
        self, folder: Path, settings: Settings, progress: Progress, records: Records, missing: list[Experiment]
    ) -> None:
        self.folder, self.settings, self.progress, self.records = folder, settings, progress, records
        self.missing = {experiment.name: experiment for experiment in missing}
        self.machine = machine.describe()
        self.tasks = {name: experiment.tasks(settings) for name, experiment in self.missing.items()}
        self.found: dict[str, dict[int, Any]] = {name: {} for name in self.tasks}
        self.seconds = dict.fromkeys(self.tasks, 0.0)
        for name, own in self.tasks.items():
            progress.begin(name, self.missing[name].summary, max(1, len(own)))

    def stage(self, pool: ProcessPoolExecutor, alone: bool) -> None:
        """Do what takes times one by one; all else at once, so that no experiment waits for another's last task."""
        owned = [
            (name, i, task) for name, own in self.tasks.items() for i, task in enumerate(own) if task.alone is alone
        ]
        ask = answers_alone if alone else answers
        for answer in ask(pool, [task for _, _, task in owned]):
            name, i, _ = owned[answer.task]
            self.found[name][i] = answer.value
            self.seconds[name] += answer.seconds
            self.progress.advance(name)
            if len(self.found[name]) == len(self.tasks[name]):
                self._finish(name)

    def without_tasks(self) -> None:
        """Finish what only reads the results of others."""
        for name, own in self.tasks.items():
            if not own:
                self._finish(name)

    def _finish(self, name: str) -> None:
        experiment, seconds = self.missing[name], self.seconds[name]
        needed = {need: self.records[need]["results"] for need in experiment.needs if need in self.records}
        found = [self.found[name][i] for i in range(len(self.tasks[name]))]
        results = experiment.gather(self.settings, found, needed)
        self.records[name] = store.save(self.folder, name, self.settings, seconds, self.machine, results)
        self.progress.finish(name, f"{seconds:.1f} s of work")
