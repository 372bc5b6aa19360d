"""Tables in files that may be larger than memory."""

from cavity.tables._batches import Batch, RawTexts, Reader, Texts
from cavity.tables._files import open_reader
from cavity.tables._hashing import hashed
from cavity.tables._table import Block, Table
from cavity.tables._writers import open_writer

__all__ = ["Batch", "Block", "RawTexts", "Reader", "Table", "Texts", "hashed", "open_reader", "open_writer"]
