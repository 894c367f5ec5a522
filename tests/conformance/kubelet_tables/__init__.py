"""Compares cpupool's answers with the tables of the kubelet's own tests.

`python -m tests.conformance.kubelet_tables` lists the tables. The README of
tests/data/kubelet_tables has the format of the rows.
"""
