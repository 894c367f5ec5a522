"""The Kubernetes API's bodies as values of ours."""
