"""Sources of the documentation that are programs."""
