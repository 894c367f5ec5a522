"""What cpupool reports about itself: log lines, metrics, health."""
