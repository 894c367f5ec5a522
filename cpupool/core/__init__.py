"""The vocabulary of all rooms: CPU sets, topology, pools, workloads.

The modules hold pure values, and import only each other.
"""
