"""What the webhook decides about a pod: whether it is let in, and what is written into it."""
