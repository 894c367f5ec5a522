"""The vocabulary: CPU sets, topology, pools, workloads. Pure values; imports only itself."""
