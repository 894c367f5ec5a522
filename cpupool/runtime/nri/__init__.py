"""The agent as the container runtime's NRI plugin, from the answers down to the bytes."""
