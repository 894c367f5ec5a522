"""Good CPUs for one request, taken in the order of the kubelet or of a scheduler."""
