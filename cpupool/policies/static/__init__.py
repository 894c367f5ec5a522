"""The kubelet's static policy: whole CPUs for Guaranteed pods."""
