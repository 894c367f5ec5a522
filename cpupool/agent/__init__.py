"""The agent of a node: `app.py` makes and connects its parts, and most other modules are one loop.

A loop that speaks with a container runtime or with plugins is in the room of that peer.
"""
