"""The API server: requests and watches, its objects as values, and the writes of cpupool."""
