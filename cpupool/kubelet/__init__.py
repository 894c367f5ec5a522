"""The interfaces of the kubelet: device plugin, registration, podresources, checkpoint file."""
