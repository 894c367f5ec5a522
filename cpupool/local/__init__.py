"""The embedded node: a kubelet and a runtime stand-in that speak the real protocols."""
