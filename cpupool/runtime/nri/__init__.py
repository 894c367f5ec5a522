"""The agent as the container runtime's NRI plugin, from the responses down to the bytes."""
