"""The node's one state, and the decisions that the agent makes from it.

The roles bring facts to the `Manager` and ask it for answers. Nothing here does I/O.
"""
