"""The admission webhook, a process of its own, and its certificates."""
