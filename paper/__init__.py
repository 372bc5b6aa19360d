"""Every experiment of the paper: one file per figure or table, computed, saved, and drawn from what was saved.

Needs the extra ``reproduce`` (``pip install '.[reproduce]'``); `paper.runner.reproduce` runs them, ``python -m paper``
calls it.
"""
