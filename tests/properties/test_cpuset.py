"""Laws of CPUSet: exact round trips, Python's set as the oracle, no surprise from garbage."""

from __future__ import annotations

import contextlib
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from cpupool.core.cpuset import MAX_CPU, CPUSet
from cpupool.core.errors import CPUSetParseError

ids = st.frozensets(
    st.one_of(st.integers(0, 40), st.integers(MAX_CPU - 3, MAX_CPU), st.integers(0, MAX_CPU))
)
almost_lists = st.text(alphabet="0123456789-:/, \nx+_", max_size=20)


@given(ids)
def test_a_set_survives_being_written_and_read(cpus: frozenset[int]) -> None:
    made = CPUSet(cpus)
    assert CPUSet.parse(str(made)) == made
    assert list(made) == sorted(cpus)
    assert len(made) == len(cpus)


@given(ids)
def test_the_written_form_is_the_shortest(cpus: frozenset[int]) -> None:
    ranges = [tuple(map(int, piece.split("-"))) for piece in str(CPUSet(cpus)).split(",") if piece]
    assert all(one[-1] + 1 < other[0] for one, other in pairwise(ranges))
    assert all(len(one) == 1 or one[0] < one[1] for one in ranges)


@given(ids)
def test_a_set_survives_a_mask_in_the_kernels_words(cpus: frozenset[int]) -> None:
    words = [0] * (max(cpus, default=0) // 32 + 1)
    for cpu in cpus:
        words[-1 - cpu // 32] |= 1 << cpu % 32
    assert CPUSet.parse_mask(",".join(f"{word:08x}" for word in words)) == CPUSet(cpus)


@given(ids, ids)
def test_the_algebra_is_that_of_pythons_sets(one: frozenset[int], other: frozenset[int]) -> None:
    left, right = CPUSet(one), CPUSet(other)
    assert left | right == CPUSet(one | other)
    assert left & right == CPUSet(one & other)
    assert left - right == CPUSet(one - other)
    assert CPUSet.union([left, right]) == left | right
    assert (left <= right, left < right) == (one <= other, one < other)
    assert (left >= right, left > right) == (one >= other, one > other)
    assert (left == right) == (one == other)
    assert left.isdisjoint(right) == one.isdisjoint(other)
    assert hash(left | right) == hash(right | left)


@given(ids, st.integers(-2, MAX_CPU + 2))
def test_membership_is_that_of_pythons_sets(cpus: frozenset[int], cpu: int) -> None:
    assert (cpu in CPUSet(cpus)) == (cpu in cpus)


@given(
    first=st.integers(0, 300),
    length=st.integers(1, 300),
    group=st.integers(1, 20),
    used=st.integers(1, 20),
)
def test_a_stride_takes_the_first_of_each_group(
    first: int, length: int, group: int, used: int
) -> None:
    used = min(used, group)
    expected = [first + offset for offset in range(length) if offset % group < used]
    written = f"{first}-{first + length - 1}:{used}/{group}"
    assert list(CPUSet.parse(written)) == expected


@given(st.one_of(st.text(), almost_lists))
def test_garbage_is_a_set_or_a_parse_error(text: str) -> None:
    for parse in (CPUSet.parse, CPUSet.parse_mask):
        with contextlib.suppress(CPUSetParseError):
            parse(text)
