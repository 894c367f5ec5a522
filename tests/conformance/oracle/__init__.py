"""Compares cpupool's choices with recorded answers of the kubelet and of Koordinator.

`python -m tests.conformance.oracle DIR` runs every file of cases in a folder; the folders under
tests/data hold recordings, and their READMEs give the format.
"""
