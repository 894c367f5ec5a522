"""The webhook's HTTPS: the server, and its certificates."""
