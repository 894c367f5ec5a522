"""The embedded node: substitutes for kubelet and runtime that speak the real protocols."""
