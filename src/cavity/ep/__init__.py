"""Expectation propagation by blocks of rows, with all correlations, for linear models."""
