"""Codecs for the files and objects of other programs, and for our records.

A codec turns bytes or JSON values into values, and back, without I/O.
"""
