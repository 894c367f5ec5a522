"""Telemetry: the log lines, metrics and health that cpupool reports about itself."""
