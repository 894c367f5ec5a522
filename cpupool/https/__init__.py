"""The webhook's HTTPS: the server, and the certificates that it shows."""
