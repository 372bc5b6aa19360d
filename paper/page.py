"""The report: one HTML page with everything inside it."""

from __future__ import annotations

from collections.abc import Mapping

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from paper import canvas, views
from paper.experiment import Drawing, Json
from reference.problems import TITLES


def render(records: Mapping[str, Json], drawings: Mapping[str, Drawing]) -> str:
    """Fill the template with the experiments that have numbers."""
    environment = Environment(
        loader=PackageLoader("paper"),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    results = {name: record["results"] for name, record in records.items()}
    template = environment.get_template("report.html")
    return template.render(
        records=records,
        results=results,
        figures={name: _figure(drawing) for name, drawing in drawings.items()},
        quick=any(record["settings"]["quick"] for record in records.values()),
        sets=_sets(records),
        counts=views.counts(results) if "claims" in results else {},
        total=sum(views.counts(results).values()) if "claims" in results else 0,
        findings=views.findings(results),
        views=views,
    )


def _figure(drawing: Drawing) -> Json:
    panels = [
        {"alt": panel.alt, "uri": canvas.data_uri(panel, drawing.panel_size)} for row in drawing.panels for panel in row
    ]
    width, height = drawing.panel_size
    columns = max(map(len, drawing.panels))
    return {"panels": panels, "columns": columns, "ratio": f"{width:g} / {height:g}", "legend": drawing.legend}


def _sets(records: Mapping[str, Json]) -> list[str]:
    named = {data for record in records.values() for data in record["settings"]["data"]}
    return [title for data, title in TITLES.items() if data in named]
