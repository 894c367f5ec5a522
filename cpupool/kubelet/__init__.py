"""The kubelet's doors: device plugin, registration, podresources, checkpoint file."""
