"""cpupool splits a Kubernetes node's CPUs into pools and keeps every container on its own."""
