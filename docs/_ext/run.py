"""Directives ``run`` and ``shell``: code and commands that are run when the site is built, with what they print."""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import shlex
import sys
import tempfile
import warnings
from typing import Any, ClassVar

import matplotlib
import pandas as pd
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.util.docutils import SphinxDirective
from typer.testing import CliRunner

from cavity.cli.commands import app


class Run(SphinxDirective):
    """Code of a page, all of which shares its variables. An error or a warning in it fails the build."""

    has_content = True
    option_spec: ClassVar[dict[str, Any]] = {"alt": directives.unchanged}

    def run(self) -> list[nodes.Node]:
        """Run the code; give it, its output and its figure."""
        code = "\n".join(self.content)
        namespace = self.env.current_document.setdefault("run_namespace", {"__name__": "page"})
        try:
            output = executed(code, namespace)
        except Exception as error:
            raise self.error(f"the code raised {type(error).__name__}: {error}") from error
        found: list[nodes.Node] = [nodes.literal_block(code, code, language="python")]
        if output:
            found.append(nodes.literal_block(output, output, language="none", classes=["run-output"]))
        return found + self._figures()

    def _figures(self) -> list[nodes.Node]:
        pyplot = sys.modules.get("matplotlib.pyplot")
        found: list[nodes.Node] = []
        for number in pyplot.get_fignums() if pyplot else []:
            buffer = io.BytesIO()
            pyplot.figure(number).savefig(buffer, format="png", dpi=110)
            data, alt = base64.b64encode(buffer.getvalue()).decode(), self.options.get("alt")
            if not alt:
                raise self.error("a figure needs :alt: in words")
            image = f'<img class="run-figure" alt="{alt}" src="data:image/png;base64,{data}">'
            found.append(nodes.raw("", image, format="html"))
        if pyplot:
            pyplot.close("all")
        return found


class Shell(SphinxDirective):
    """Commands ``cavity ...``, one per line, run in a folder that all of a page share."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Run the commands in this process; give each with what it prints."""
        folder = self.env.current_document.setdefault("run_namespace", {}).setdefault("folder", tempfile.mkdtemp())
        found: list[nodes.Node] = []
        for line in self.content:
            with contextlib.chdir(folder):
                outcome = CliRunner().invoke(app, shlex.split(line)[1:], env={"COLUMNS": "100"})
            if outcome.exit_code:
                raise self.error(f"{line!r} ended with {outcome.exit_code}: {outcome.output}")
            text = f"$ {line}\n{outcome.output.strip()}"
            found.append(nodes.literal_block(text, text, language="none"))
        return found


def executed(code: str, namespace: dict[str, Any]) -> str:
    """Run code, and return what it prints and what its last line gives, as an interpreter would show it."""
    tree, buffer = ast.parse(code), io.StringIO()
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(buffer), warnings.catch_warnings(action="error"):
        exec(compile(tree, "<page>", "exec"), namespace)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "<page>", "eval"), namespace)
            if value is not None and not _is_artist(value):
                print(value if isinstance(value, str) else repr(value))
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()).strip("\n")


def _is_artist(value: Any) -> bool:
    return type(value).__module__.startswith("matplotlib")


def setup(site: Any) -> dict[str, bool]:
    """Register the directives; figures need no screen, and tables have the width of a page."""
    matplotlib.use("Agg")
    pd.set_option("display.width", 110, "display.max_columns", 20)
    site.add_directive("run", Run)
    site.add_directive("shell", Shell)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
