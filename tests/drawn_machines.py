"""Machines that hypothesis draws: all shapes that `Machine` can describe, with few CPUs."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import assume
from hypothesis import strategies as st

from tests.machines import Machine

shapes = st.builds(
    Machine,
    sockets=st.integers(1, 2),
    dies=st.integers(1, 2),
    nodes=st.integers(1, 2),
    l3=st.integers(0, 2),
    cores=st.integers(1, 3),
    threads=st.integers(1, 4),
    adjacent=st.booleans(),
    efficiency_cores=st.integers(0, 3),
)
"""NUMA nodes have the ids from 0 on, and CPUs."""


@st.composite
def machines(draw: st.DrawFn, *, fewest: int = 5, most: int = 24) -> Machine:
    """Draw a machine whose NUMA nodes may have any ids, and some of them no CPUs.

    Args:
        draw: from hypothesis.
        fewest: how many CPUs it has at least; with more than four it has two cores.
        most: and at most.
    """
    shape = draw(shapes)
    assume(fewest <= len(shape.layout()) <= most)
    nodes = shape.sockets * shape.dies * shape.nodes
    ids = st.lists(st.integers(0, 255), min_size=nodes, max_size=nodes + 2, unique=True)
    return replace(shape, node_ids=draw(st.just(()) | ids.map(tuple)))
