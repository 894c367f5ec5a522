"""Codecs for other people's formats: bytes in, values out, no I/O."""
