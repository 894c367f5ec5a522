"""The agent of a node: `app.py` makes and connects its parts, and most other modules are one loop.

The loops that speak with the runtime and with plugins are in `runtime/` and `qrm/`.
"""
