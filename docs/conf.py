"""How Sphinx builds the site: `make docs`, or `make docs-full` with the gallery run."""

from __future__ import annotations

import sys
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

import public

from cavity import __version__

project = "cavity"
author = "the cavity developers"
copyright = author  # noqa: A001  (Sphinx's name)
version = release = __version__

extensions = [
    "as_in",
    "mathml",
    "matplotlib.sphinxext.plot_directive",
    "myst_parser",
    "numpydoc",
    "run",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "gallery/sg_execution_times.rst"]
templates_path = ["_templates"]
default_role = "py:obj"  # `fit` in a docstring is a link
html_math_renderer = "mathml"

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

autosummary_generate = True
# `Tilts` and `tilts` would share a page where file names do not tell cases apart.
autosummary_filename_map = {"cavity.moments.Tilts": "cavity.moments.tilts-result"}
autodoc_typehints = "none"  # types stand in the docstrings where they help
autodoc_member_order = "bysource"
toc_object_entries_show_parents = "hide"  # `fit()` in the list of a page, not `EPClassifier.fit()`
numpydoc_show_class_members = False

plot_html_show_formats = False
plot_html_show_source_link = False
plot_formats = [("svg", 100)]

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r"/[a-z]\w*\.py$",
    "ignore_pattern": r"/_",
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "remove_config_comments": True,
    "write_computation_times": False,
    "image_scrapers": ("matplotlib",),
    "matplotlib_animations": False,
    "within_subsection_order": "FileNameSortKey",
}

html_theme = "pydata_sphinx_theme"
html_title = "cavity"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_show_sphinx = False
html_theme_options = {
    "header_links_before_dropdown": 8,
    "navbar_align": "left",
    "navbar_end": ["theme-switcher"],
    "show_prev_next": False,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "show_nav_level": 1,
    "navigation_depth": 3,
}
html_sidebars = {"start": [], "faq": [], "comparison": [], "measured": [], "changelog": []}


def _leave_out(app: Any, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """Leave out what others add, what a protocol describes, and fitted attributes, which their class describes."""
    if what != "class" or isinstance(obj, Enum):
        return False if isinstance(obj, Enum) else None
    function = getattr(obj, "fget", None) or getattr(obj, "func", None) or getattr(obj, "__func__", obj)
    if not public.is_ours(name, function) or name.endswith(("_request", "_")):
        return True
    cls = getattr(import_module(function.__module__), function.__qualname__.split(".")[0])
    return True if public.is_of_protocol(cls, name) else None


def setup(app: Any) -> None:
    """Connect what decides on members."""
    app.connect("autodoc-skip-member", _leave_out)
