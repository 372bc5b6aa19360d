"""cavity beside other libraries on eight tasks: `python -m benchmarks --only comparison`."""
