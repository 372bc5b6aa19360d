"""The command line of the reproduction, and the progress bars it shows."""

from __future__ import annotations

from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from cavity.datasets import DataError
from paper import runner
from paper.catalogue import EXPERIMENTS
from paper.experiment import Settings
from paper.store import OutputError
from reference import machine
from reference.problems import TITLES

app = typer.Typer(
    name="paper",
    add_completion=False,
    pretty_exceptions_enable=False,
)


class Bars:
    """One bar an experiment, on standard error."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}

    def begin(self, name: str, summary: str, total: int) -> None:
        """Add a bar."""
        self._tasks[name] = self._progress.add_task(name, total=total, summary=summary, note="")

    def advance(self, name: str) -> None:
        """Move it on by one task."""
        self._progress.advance(self._tasks[name])

    def finish(self, name: str, note: str) -> None:
        """Fill it."""
        task = self._tasks[name]
        total = next(t.total for t in self._progress.tasks if t.id == task)
        self._progress.update(task, completed=total, note=note)
        self._progress.stop_task(task)


@app.command()
def reproduce(
    out: Annotated[Path, typer.Option("--out", help="Folder for numbers, figures and index.html; made if missing.")],
    only: Annotated[
        str, typer.Option("--only", help=f"Run these experiments only, with commas between: {', '.join(EXPERIMENTS)}.")
    ] = "",
    data: Annotated[
        str, typer.Option("--data", help=f"Use these data sets only, with commas between: {', '.join(TITLES)}.")
    ] = "",
    quick: Annotated[
        bool, typer.Option("--quick", help="Smaller everything, in seconds: to see the report, not to quote it.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Keep experiments already finished in the folder with the same settings.")
    ] = False,
    redraw: Annotated[
        bool,
        typer.Option("--redraw", help="Compute nothing: draw figures and page again from the numbers in the folder."),
    ] = False,
    jobs: Annotated[int | None, typer.Option("--jobs", min=1, help="Worker processes; by default one a core.")] = None,
) -> None:
    """Run every experiment of the paper on its five data sets and write a report.

    Writes one JSON file of numbers and one figure (PNG and PDF) an experiment, and index.html, a page with all
    figures, tables and claims that opens without a network. The full run takes about two minutes on two cores; an
    interrupted one leaves what it finished, and --resume goes on from there.
    """
    console = Console(stderr=True)
    try:
        names = runner.checked(_split(only), EXPERIMENTS, "experiment") if only else []
        settings = Settings(quick, tuple(runner.checked(_split(data), TITLES, "data set")))
        with _progress(console) as progress:
            bars = Bars(progress)
            if redraw:
                page = runner.redraw(out, names, bars)
            else:
                count = jobs or machine.usable_cores()
                page = runner.reproduce(out, names, settings, bars, resume=resume, jobs=count)
    except (runner.UnknownNameError, OutputError, DataError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    except BrokenProcessPool:
        typer.echo("error: a worker process died, perhaps out of memory; try again with --resume --jobs 1", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        typer.echo(f"interrupted; what is finished lies in {out}, go on with --resume", err=True)
        raise typer.Exit(130) from None
    typer.echo(f"report: {page}")


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description:<10}"),
        BarColumn(bar_width=14),
        MofNCompleteColumn(),
        TextColumn("{task.fields[summary]} [dim]{task.fields[note]}"),
        console=console,
    )
