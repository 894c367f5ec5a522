"""The container runtime: CRI and NRI."""
