"""Measurements of the cost of cpupool for a node: `python -m benchmarks`."""
