"""The vocabulary: CPU sets, topology, pools, workloads. Pure values; imports nothing of ours but itself."""
