"""The node's one state and the decisions made from it."""
