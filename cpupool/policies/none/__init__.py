"""The CPU manager policy `none`: no container has CPUs of its own."""
