"""Choosing CPUs: pure functions of a topology and what is free."""
