"""CPU manager policies, a folder each, and the tools with which several of them choose.

A policy decides which CPUs a container gets. It sees a view of the node, does no I/O and keeps no
state, so its decisions can be tested without a node.
"""
