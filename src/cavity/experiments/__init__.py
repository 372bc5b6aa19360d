"""Every experiment of the paper: one file a figure or table, computed, saved, and drawn from what was saved.

Needs the extra ``cavity[reproduce]``; `cavity.experiments.runner.reproduce` runs them, ``cavity reproduce`` calls it.
"""
