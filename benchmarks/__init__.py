"""What cpupool costs a node: `python -m benchmarks`."""
