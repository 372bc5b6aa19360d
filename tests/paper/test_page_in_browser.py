"""The page in a real browser: Debian's chromium, headless, without network."""

import html
import json
import re
import shutil
import subprocess

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (Debian: apt install chromium)")

WIDTHS = (390, 1280)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--allow-file-access-from-files",
    "--enable-logging=stderr",
)
HARNESS = """<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,">
<pre id="found"></pre>
<iframe src="index.html" style="width: {width}px; height: 900px; border: 0"></iframe>
<script>
const frame = document.querySelector("iframe");
frame.onload = () => {{
  const page = frame.contentDocument, view = frame.contentWindow;
  page.querySelectorAll("details").forEach((d) => {{ d.open = true; }});
  const isHidden = (e) => e.closest("thead") && view.getComputedStyle(e.closest("thead")).clipPath !== "none";
  const sticksOut = (e) => e.getBoundingClientRect().right > view.innerWidth + 0.5;
  const spills = (e) => e.clientWidth > 0 && e.scrollWidth > e.clientWidth + 1;
  const elements = [...page.body.querySelectorAll("*")].filter((e) => !isHidden(e));
  const wide = elements.filter((e) => sticksOut(e) || spills(e));
  const found = {{
    title: page.title,
    inner: view.innerWidth,
    scroll: page.documentElement.scrollWidth,
    wide: wide.map((e) => e.tagName + ": " + e.textContent.trim().slice(0, 60)),
    images: [...page.images].map((i) => {{
      const box = i.getBoundingClientRect();
      return [i.complete, i.naturalWidth, i.naturalHeight, box.width, box.height];
    }}),
    smallest: Math.min(...[...page.querySelectorAll("p, li, td, th, figcaption, h1, h2, h3, span")]
      .map((e) => parseFloat(view.getComputedStyle(e).fontSize))),
  }};
  document.getElementById("found").textContent = JSON.stringify(found);
}};
</script>"""


@pytest.fixture(scope="module", params=WIDTHS)
def seen(request, report, tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser")
    shutil.copy(report / "index.html", folder)
    (folder / "harness.html").write_text(HARNESS.format(width=request.param))
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={folder / 'profile'}", "--window-size=1400,1000", "--dump-dom"]
    done = subprocess.run(
        [*command, (folder / "harness.html").as_uri()], capture_output=True, text=True, timeout=300, check=True
    )
    text = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    assert text, done.stderr
    return request.param, json.loads(html.unescape(text[1])), done.stderr


def test_it_loads_without_console_messages(seen):
    width, found, log = seen
    assert found["inner"] == width
    assert "reproduced" in found["title"]
    assert "CONSOLE" not in log


def test_every_figure_is_visible(seen):
    _, found, _ = seen
    assert len(found["images"]) == 19
    for complete, natural_width, natural_height, width, height in found["images"]:
        assert complete
        assert natural_width > 300
        assert natural_height > 200
        assert width > 200
        assert height / width == pytest.approx(natural_height / natural_width, rel=0.02)


def test_nothing_overflows(seen):
    width, found, _ = seen
    assert found["wide"] == []
    assert found["scroll"] <= width


def test_no_text_is_tiny(seen):
    assert seen[1]["smallest"] >= 11.0
