"""Expectation propagation: one driver, its backends, and what comes out."""
