"""The webhook's decision about a pod: whether it is admitted, and what the webhook adds to it."""
