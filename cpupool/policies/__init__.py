"""Choices of CPUs: pure functions of a topology and the free CPUs."""
