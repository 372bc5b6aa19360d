"""One quick run from end to end, and what can be done with its folder."""

import json
import re
import shutil
import socket
from html.parser import HTMLParser

import pytest

from paper import runner
from paper.catalogue import EXPERIMENTS
from paper.experiment import Settings

# As in conftest.
DATA = ("haberman", "bank")
FIGURES = ("fig1", "fig2", "fig3", "closedform", "posterior")


@pytest.fixture
def copy(report, tmp_path):
    return shutil.copytree(report, tmp_path / "copy")


def made(folder):
    return {name: json.loads((folder / f"{name}.json").read_text())["made"] for name in EXPERIMENTS}


def backdated(folder):
    """Give every results file an old date, to see which ones are written again."""
    for name in EXPERIMENTS:
        path = folder / f"{name}.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "made": "2000-01-01"}))
    return folder


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_numbers_are_written(report, name):
    record = json.loads((report / f"{name}.json").read_text())
    assert record["experiment"] == name
    assert record["settings"] == Settings(True, DATA).as_json()
    assert record["results"]
    assert record["machine"]["processor"]
    assert socket.gethostname() not in record["machine"].values()


def test_nothing_unexpected_is_written(report):
    expected = {f"{name}.json" for name in EXPERIMENTS} | {f"{n}.{kind}" for n in FIGURES for kind in ("png", "pdf")}
    assert {path.name for path in report.iterdir()} == expected | {"index.html"}


@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_written(report, name):
    assert (report / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert (report / f"{name}.pdf").read_bytes().startswith(b"%PDF")


def test_the_cells_are_all_there(report):
    fig2, fig3, table = (json.loads((report / f"{n}.json").read_text())["results"] for n in ("fig2", "fig3", "table1"))
    assert [(c["data"], c["loss"], len(c["curves"])) for c in fig2["cells"]] == [
        ("haberman", "logistic", 6),
        ("haberman", "hinge", 6),
        ("haberman", "quasi01", 6),
        ("haberman", "zero_one", 4),
    ]
    assert [(c["data"], len(c["curves"])) for c in fig3["cells"]] == [("bank", 6)] * 3
    assert len(table["rows"]) == 6
    assert all(time["ms"] > 0.0 for row in table["rows"] for time in row["here"].values())


class Page(HTMLParser):
    """Collects what a page refers to."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.references, self.alts, self.ids = [], [], [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.tags.append(tag)
        self.references += [found[k] for k in ("src", "href", "srcset", "poster", "data", "action") if k in found]
        self.ids |= {found["id"]} if "id" in found else set()
        if tag == "img":
            self.alts.append(found.get("alt") or "")


def test_the_page_stands_alone(report):
    text = (report / "index.html").read_text()
    page = Page(text)
    assert not {"script", "iframe", "object", "embed"} & set(page.tags)
    assert all(r.startswith(("data:", "#")) for r in page.references)
    assert not re.search(r"https?://|url\(|@import", text)
    assert {r[1:] for r in page.references if r.startswith("#")} <= page.ids


def test_the_page_shows_everything(report):
    text = (report / "index.html").read_text()
    page = Page(text)
    assert set(EXPERIMENTS) <= page.ids
    assert len(page.alts) == 1 + 3 + 3 + 4 + 8
    assert all(len(alt) > 60 for alt in page.alts)
    assert "This is a quick run" in text
    assert "cavity/f" in text or "cavity divided by factor" in text
    assert "curvature=&#34;slope&#34;" in text


def test_figures_come_before_tables_and_verdicts_before_criteria(report):
    page = Page((report / "index.html").read_text())
    assert page.tags.index("img") < page.tags.index("table")
    text = (report / "index.html").read_text()
    claims = text[text.index('<section id="claims">') :].partition("</section>")[0]
    rows = claims.split("<tr>")[1:]
    claimed = [row for row in rows if "Criterion" in row]
    assert len(claimed) == 37
    for row in claimed:
        assert row.index('class="verdict') < row.index("<details>") < row.index("Criterion")


def test_figures_are_redrawn_from_the_numbers_alone(copy, invoke, monkeypatch):
    def no_workers(count):
        raise AssertionError("redrawing must not compute")

    monkeypatch.setattr(runner, "workers", no_workers)
    before = (copy / "fig1.png").read_bytes()
    (copy / "fig1.png").unlink()
    (copy / "fig2.pdf").write_bytes(b"")
    result = invoke("--out", copy, "--redraw", "--only", "fig1")
    assert result.exit_code == 0, result.output
    assert (copy / "fig1.png").read_bytes() == before
    assert (copy / "fig2.pdf").read_bytes() == b""


def test_resume_computes_what_is_missing_or_damaged(copy, invoke, inline):
    backdated(copy)
    (copy / "fig1.json").write_text("{ cut off")
    (copy / "minima.json").unlink()
    result = invoke("--out", copy, "--quick", "--data", ",".join(DATA), "--resume")
    assert result.exit_code == 0, result.output
    again = {name for name, date in made(copy).items() if date != "2000-01-01"}
    assert again == {"fig1", "minima", "claims"}
    assert {task.function.__name__ for task in inline.tasks} == {"tabulate", "minimum"}


def test_other_numbers_give_another_figure(tmp_path, invoke, inline):
    assert invoke("--out", tmp_path, "--quick", "--only", "fig1").exit_code == 0
    before = (tmp_path / "fig1.png").read_bytes()
    record = json.loads((tmp_path / "fig1.json").read_text())
    record["results"]["losses"]["hinge"] = [1.0] * len(record["results"]["margin"])
    (tmp_path / "fig1.json").write_text(json.dumps(record))
    assert invoke("--out", tmp_path, "--redraw").exit_code == 0
    assert (tmp_path / "fig1.png").read_bytes() != before


def test_resume_does_not_take_results_of_other_settings(tmp_path, invoke, inline):
    for arguments, computed in ((["--quick"], 1), ([], 1), ([], 0)):
        inline.tasks.clear()
        assert invoke("--out", tmp_path, "--only", "fig1", "--resume", *arguments).exit_code == 0
        assert len(inline.tasks) == computed


def test_only_and_needs_and_an_interrupt(tmp_path, invoke, inline, monkeypatch):
    arguments = ("--out", tmp_path, "--quick", "--data", "haberman", "--only", "fig2")
    submit = inline.submit

    def interrupted(function, task):
        if task.arguments[-2:] == ("vq", True):
            raise KeyboardInterrupt
        return submit(function, task)

    monkeypatch.setattr(inline, "submit", interrupted)
    result = invoke(*arguments)
    assert result.exit_code == 130
    assert "--resume" in result.output
    assert {p.name for p in tmp_path.iterdir()} <= {"minima.json"}

    monkeypatch.setattr(inline, "submit", submit)
    assert invoke(*arguments, "--resume").exit_code == 0
    assert {p.name for p in tmp_path.iterdir()} == {"fig2.json", "fig2.png", "fig2.pdf", "minima.json", "index.html"}
    page = Page((tmp_path / "index.html").read_text())
    assert {"fig2", "minima"} <= page.ids
    assert "claims" not in page.ids

    inline.tasks.clear()
    assert invoke(*arguments).exit_code == 0
    assert {task.function.__name__ for task in inline.tasks} == {"traced"}, "minima are needed, not named: they stay"
