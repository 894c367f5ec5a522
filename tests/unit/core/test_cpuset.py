"""CPUSet: the kernel's list format in and out, and set algebra."""

from __future__ import annotations

import pytest

from cpupool.core.cpuset import MAX_CPU, CPUSet, format_ids
from cpupool.core.errors import CPUSetParseError


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        pytest.param("", [], id="nothing is the empty set"),
        pytest.param(" \n", [], id="blanks are the empty set"),
        pytest.param("2", [2], id="a bare number"),
        pytest.param("010", [10], id="leading zeros are decimal"),
        pytest.param("000000000000000000001", [1], id="any number of leading zeros"),
        pytest.param("2-5", [2, 3, 4, 5], id="a range"),
        pytest.param("7-7", [7], id="a range of one"),
        pytest.param("0-1,4,8-9\n", [0, 1, 4, 8, 9], id="pieces and the line end of sysfs"),
        pytest.param(" 1 , 3 - 5 ", [1, 3, 4, 5], id="blanks around everything"),
        pytest.param("3,1-3,2", [1, 2, 3], id="overlaps and any order"),
        pytest.param("0-9:2", [0, 2, 4, 6, 8], id="a stride takes every second CPU"),
        pytest.param("1-9:3", [1, 4, 7], id="a stride counts from its start"),
        pytest.param("0-9:1", list(range(10)), id="a stride of one takes all"),
        pytest.param("0-3:8191", [0], id="a stride beyond its range takes the first"),
        pytest.param("0-11:2/4", [0, 1, 4, 5, 8, 9], id="the first two of each four"),
        pytest.param("0-6:3/4", [0, 1, 2, 4, 5, 6], id="a last group cut off by the range's end"),
        pytest.param("0-8:3/4", [0, 1, 2, 4, 5, 6, 8], id="a last group cut off in its used part"),
        pytest.param("0-3:4/4", [0, 1, 2, 3], id="a group used whole"),
        pytest.param("8191", [8191], id="the largest id"),
    ],
)
def test_a_list_is_read_as_the_kernel_reads_it(text: str, cpus: list[int]) -> None:
    assert list(CPUSet.parse(text)) == cpus


@pytest.mark.parametrize(
    ("text", "piece", "reason"),
    [
        pytest.param("1,,2", "", "extra comma", id="two commas"),
        pytest.param("1,", "", "extra comma", id="a comma at the end"),
        pytest.param("1,x", "x", "neither a CPU", id="a word"),
        pytest.param("1-", "1-", "neither a CPU", id="a range without end"),
        pytest.param("-1", "-1", "neither a CPU", id="a negative number"),
        pytest.param("1:2", "1:2", "neither a CPU", id="a stride without a range"),
        pytest.param("0-3/2", "0-3/2", "neither a CPU", id="a group without a stride"),
        pytest.param("1 2", "1 2", "neither a CPU", id="a blank for a comma"),
        pytest.param("0x3", "0x3", "neither a CPU", id="a hexadecimal number"),
        pytest.param("\u0663", "\u0663", "neither a CPU", id="digits of another script"),
        pytest.param("5-2", "5-2", "ends before it starts", id="a range backwards"),
        pytest.param("8192", "8192", "goes beyond CPU 8191", id="an id too large"),
        pytest.param("0-8192", "0-8192", "goes beyond CPU 8191", id="a range too long"),
        pytest.param("0-3:8192", "0-3:8192", "goes beyond CPU 8191", id="a stride too large"),
        pytest.param("0-3:0", "0-3:0", "zero or larger than its group", id="a stride of zero"),
        pytest.param("0-3:0/2", "0-3:0/2", "zero or larger than its group", id="none of each two"),
        pytest.param("0-3:3/2", "0-3:3/2", "zero or larger than its group", id="three of each two"),
    ],
)
def test_what_is_no_list_names_the_wrong_piece(text: str, piece: str, reason: str) -> None:
    with pytest.raises(CPUSetParseError, match=reason) as raised:
        CPUSet.parse(text)
    assert (raised.value.text, raised.value.piece) == (text, piece)


def test_a_number_of_many_digits_is_refused_and_not_printed_in_full() -> None:
    with pytest.raises(CPUSetParseError, match="goes beyond CPU 8191") as raised:
        CPUSet.parse("9" * 100_000)
    assert len(str(raised.value)) < 250


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        pytest.param("0", "", id="no bit"),
        pytest.param("f", "0-3", id="one digit"),
        pytest.param("0000000F\n", "0-3", id="capital digits and the line end of sysfs"),
        pytest.param("00000001,80000000", "31-32", id="words from the highest to the lowest"),
        pytest.param("1,0,3", "0-1,64", id="words without their leading zeros"),
    ],
)
def test_a_mask_is_read_in_words_of_32_bits(text: str, cpus: str) -> None:
    assert str(CPUSet.parse_mask(text)) == cpus


@pytest.mark.parametrize(
    ("text", "piece"),
    [
        pytest.param("", "", id="nothing"),
        pytest.param("0,,1", "", id="an empty word"),
        pytest.param("0x1", "0x1", id="a prefix"),
        pytest.param("0,123456789", "123456789", id="a word of more than 32 bits"),
        pytest.param("1," + ",".join(["0"] * 256), "1", id="a CPU above the largest"),
    ],
)
def test_what_is_no_mask_names_the_wrong_word(text: str, piece: str) -> None:
    with pytest.raises(CPUSetParseError) as raised:
        CPUSet.parse_mask(text)
    assert raised.value.piece == piece


@pytest.mark.parametrize("cpu", [-1, MAX_CPU + 1])
def test_an_id_outside_the_range_is_refused(cpu: int) -> None:
    with pytest.raises(ValueError, match=rf"CPU {cpu} is outside 0-8191"):
        CPUSet([cpu])


def test_an_empty_set_has_no_first_cpu() -> None:
    with pytest.raises(ValueError, match="has no first CPU"):
        _ = CPUSet().first


def test_the_first_cpu_is_the_lowest() -> None:
    assert CPUSet.of(9, 4, 12).first == 4


def test_a_set_holds_what_it_was_made_of() -> None:
    cpus = CPUSet.of(3, 1, 3)
    assert list(cpus) == [1, 3]
    assert len(cpus) == 2
    assert 3 in cpus
    assert 2 not in cpus
    assert -1 not in cpus
    assert cpus
    assert not CPUSet()


def test_sets_are_compared_by_what_they_hold() -> None:
    small, large = CPUSet.of(1), CPUSet.of(1, 2)
    assert small < large
    assert not large < large  # noqa: PLR0124 - a set is no proper part of itself
    assert large >= small
    assert small == CPUSet.parse("1")
    assert small != {1}
    assert len({small, CPUSet.of(1), large}) == 2


def test_the_union_of_any_number_of_sets_joins_them() -> None:
    assert CPUSet.union([]) == CPUSet()
    assert str(CPUSet.union(map(CPUSet.of, [4, 1, 2]))) == "1-2,4"


def test_disjoint_sets_share_no_cpu() -> None:
    assert CPUSet.of(1).isdisjoint(CPUSet.of(2))
    assert not CPUSet.of(1, 2).isdisjoint(CPUSet.of(2))


def test_a_set_shows_how_to_make_it() -> None:
    assert repr(CPUSet.of(0, 1, 5)) == "CPUSet.parse('0-1,5')"


def test_ids_of_any_size_are_written_as_a_list() -> None:
    assert format_ids([]) == ""
    assert format_ids([0]) == "0"
    assert format_ids([5, 6, 8, 100_000, 100_001]) == "5-6,8,100000-100001"


@pytest.mark.parametrize(("text", "cpus"), [("1-3", "1-3"), ("", ""), ("3-1", ""), ("x", "")])
def test_a_list_of_another_program_is_read_or_empty(text: str, cpus: str) -> None:
    assert str(CPUSet.parse_or_empty(text)) == cpus
