"""Codecs for the formats of other programs: bytes in, values out, no I/O."""
