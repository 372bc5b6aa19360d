"""The commands put together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from cavity._version import __version__
from cavity.cli._commands import predict, score, update
from cavity.cli._fit import CHOICES, fit
from cavity.cli._inspect import inspect
from cavity.cli._options import with_choices
from cavity.cli._terminal import reported

app = typer.Typer(
    name="cavity", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
)
_EXAMPLES: dict[Callable[..., Any], str] = {
    fit: "cavity fit train.parquet --target income --model model.cavity --checkpoint run.ckpt",
    predict: "cavity predict model.cavity new.csv --out predictions.parquet",
    score: "cavity score model.cavity test.csv",
    inspect: "cavity inspect model.cavity --html model.html",
    update: "cavity update model.cavity more.parquet --halflife 100000",
}


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"cavity {__version__}")
        raise typer.Exit


@app.callback(epilog="Example:\n\ncavity fit train.csv --target income --model model.cavity")
def cavity(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Bayesian linear models with error bars, fitted to files that may be larger than memory."""


for _command, _example in _EXAMPLES.items():
    _made = with_choices(_command, CHOICES if _command is fit else [])
    app.command(_command.__name__, epilog=f"Example:\n\n{_example}")(reported(_made))
