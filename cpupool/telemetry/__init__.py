"""How cpupool tells what it does: log lines, metrics, health."""
