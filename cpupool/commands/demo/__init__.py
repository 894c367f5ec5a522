"""`cpupool demo`: a whole node in one process, with an agent and pods."""
