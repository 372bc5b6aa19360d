"""Formulas as MathML, which browsers draw themselves: pages need no script from elsewhere."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.util import logging

_LOGGER = logging.getLogger(__name__)


def _converted(node: nodes.Element, as_block: bool) -> str:
    try:
        return str(tex2mathml(node.astext(), as_block=as_block))
    except MathError as error:
        _LOGGER.warning("formula %r: %s", node.astext(), error, location=node)
        return ""


def _inline(self: Any, node: nodes.math) -> None:
    self.body.append(_converted(node, as_block=False))
    raise nodes.SkipNode


def _block(self: Any, node: nodes.math_block) -> None:
    self.body.append(f'<div class="math-block">{_converted(node, as_block=True)}</div>')
    raise nodes.SkipNode


def setup(app: Any) -> dict[str, bool]:
    """Register the renderer."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
