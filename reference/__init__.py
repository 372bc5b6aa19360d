"""What the reproduction, the benchmarks and the tests share; not installed."""
