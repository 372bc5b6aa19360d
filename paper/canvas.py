"""The one place that imports matplotlib: drawings become PNG and PDF files, or pictures for the page."""

from __future__ import annotations

from base64 import b64encode
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from paper.experiment import Drawing, Panel
from paper.panels import LABELS, STYLES, WIDTHS
from paper.store import replace_bytes

_RC: Any = {
    "font.size": 9.0,
    "axes.titlesize": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": False,
    "legend.frameon": False,
    "pdf.fonttype": 42,
    "figure.dpi": 100.0,
    "svg.hashsalt": "cavity",
}
_DPI = 150
# No date in the file: the same numbers give the same bytes.
_METADATA: dict[str, dict[str, Any]] = {"png": {"Software": "cavity"}, "pdf": {"CreationDate": None}}


def write(drawing: Drawing, folder: Path, name: str) -> list[str]:
    """Write the whole figure as PNG and PDF; returns the file names."""
    rows, columns = len(drawing.panels), max(map(len, drawing.panels))
    width, height = drawing.panel_size
    extra = 0.6 if drawing.legend else 0.0
    with matplotlib.rc_context(_RC):
        figure = Figure(figsize=(columns * width, rows * height + extra), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(rows, columns, squeeze=False)
        for i in range(rows):
            for j in range(columns):
                if j < len(drawing.panels[i]):
                    drawing.panels[i][j].draw(axes[i, j])
                else:
                    axes[i, j].set_axis_off()
        if drawing.legend:
            figure.legend(handles=_handles(drawing.legend), loc="outside lower center", ncols=4, handlelength=3.5)
        names = [f"{name}.png", f"{name}.pdf"]
        for filename in names:
            replace_bytes(folder / filename, _encoded(figure, filename.rpartition(".")[2]))
    return names


def data_uri(panel: Panel, size: tuple[float, float]) -> str:
    """Draw one panel as a picture that stands inside a page."""
    with matplotlib.rc_context(_RC):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        panel.draw(figure.subplots())
        return "data:image/png;base64," + b64encode(_encoded(figure, "png")).decode("ascii")


def _encoded(figure: Figure, kind: str) -> bytes:
    buffer = BytesIO()
    figure.savefig(buffer, format=kind, dpi=_DPI, metadata=_METADATA[kind])
    # The layout is found by the first drawing; the next kind of file keeps it.
    figure.set_layout_engine("none")
    return buffer.getvalue()


def _handles(names: tuple[str, ...]) -> list[Line2D]:
    return [
        Line2D([], [], label=LABELS[name], linewidth=WIDTHS.get(name, 1.3), markersize=4.5, **STYLES[name])
        for name in names
    ]
