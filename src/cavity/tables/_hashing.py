"""Wide text: words or levels of a column, hashed to a fixed number of columns."""

from __future__ import annotations

import hashlib
from importlib import import_module
from typing import Any

from scipy import sparse

from cavity._checks import flag, whole_number
from cavity.tables._batches import RawTexts


def hashed(texts: RawTexts, name: str, bits: int = 18, whole: bool = False) -> Any:
    """Count the words of every text in a CSR array of ``2**bits`` columns.

    Words are longest runs of letters and digits, where any character outside ASCII is a letter; capitals of ASCII are
    taken as small letters. Different words may share a column. The same word has the same column in every file, on
    every machine, and another one in a column of another name.

    Parameters
    ----------
    texts
        A column of a batch, asked for as ``raw``.
    name
        Name of the column.
    bits
        Logarithm of the number of columns to the base 2, from 1 to 30.
    whole
        Whether every text is taken as one word, as it is. Missing and empty texts have no word.
    """
    bits, whole = whole_number("bits", bits, least=1, most=30), flag("whole", whole)
    salt = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
    kernels = import_module("cavity.kernels._text")  # compiled code is loaded with the first text
    content = kernels.count_hashed(texts.offsets, texts.data, bits, salt, whole)
    rows = sparse.csr_array(content, shape=(texts.offsets.size - 1, 2**bits))
    rows.has_canonical_format = True  # indices ascend: need not be looked at again
    return rows
