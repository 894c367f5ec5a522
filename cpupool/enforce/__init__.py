"""Keeping containers as they must be: plan, write, verify, repair, tell."""
