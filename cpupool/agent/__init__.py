"""The agent of a node: `app.py` makes and connects its parts, most others are one loop each.

The loops that speak with the runtime and with plugins are in the rooms of these.
"""
