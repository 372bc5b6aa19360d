"""Compiled loops: arrays and NamedTuples in, arrays out. They check nothing."""
