"""A simulated node: pods arrive and end, policies place them, and the simulation measures."""
