"""Timed comparisons, run by `make bench`. Not part of the tests: machines are noisy."""
