"""Rows of tables from files that may be larger than memory."""

from cavity.tables._batches import Batch, RawTexts, Reader, Texts
from cavity.tables._files import open_reader

__all__ = ["Batch", "RawTexts", "Reader", "Texts", "open_reader"]
