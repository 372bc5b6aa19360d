"""Tables in files that may be larger than memory."""

from cavity.tables.readers import Batch, Reader, Texts, open_reader
from cavity.tables.table import Block, Table
from cavity.tables.writers import open_writer

__all__ = ["Batch", "Block", "Reader", "Table", "Texts", "open_reader", "open_writer"]
