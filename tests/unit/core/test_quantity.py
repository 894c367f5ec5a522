"""Kubernetes quantities: the grammar, and whole amounts of extended resources."""

from __future__ import annotations

from decimal import Decimal

import pytest

from cpupool.core import quantity
from cpupool.core.errors import QuantityError
from cpupool.core.quantity import Quantity


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", "0"),
        ("2", "2"),
        ("+2", "2"),
        ("-1.5", "-1.5"),
        (".5", "0.5"),
        ("5.", "5"),
        ("100n", "0.0000001"),
        ("100u", "0.0001"),
        ("100m", "0.1"),
        ("1k", "1000"),
        ("1M", "1000000"),
        ("1.5G", "1500000000"),
        ("1T", "1e12"),
        ("1P", "1e15"),
        ("1E", "1e18"),
        ("1E3", "1000"),
        ("1e-2", "0.01"),
        ("2e+2", "200"),
        ("1Ki", "1024"),
        ("4Mi", "4194304"),
        ("1Gi", "1073741824"),
        ("1Ti", "1099511627776"),
        ("1Pi", "1125899906842624"),
        ("1Ei", "1152921504606846976"),
    ],
)
def test_a_quantity_has_its_value(text: str, value: str) -> None:
    assert quantity.parse(text) == Decimal(value)


@pytest.mark.parametrize(
    "text",
    ["", " ", "k", "1K", "1 k", " 1", "1ki", "1ee3", "1e", "1.5.2", "--1", "1e1000", "\u0661"],
)
def test_what_is_outside_the_grammar_is_refused(text: str) -> None:
    with pytest.raises(QuantityError, match="write a number, as 2, 500m or 1k") as raised:
        quantity.parse(text)
    assert raised.value.text == text


def test_a_quantity_is_never_rounded() -> None:
    with pytest.raises(QuantityError, match="more digits than a quantity can hold"):
        quantity.parse(f"1.{'0' * 27}1")
    assert str(quantity.parse(f"1.{'0' * 26}1")) == f"1.{'0' * 26}1"


def test_zeros_behind_the_point_do_not_count_as_digits() -> None:
    assert Quantity.read(f"3.{'0' * 100}").count == 3


@pytest.mark.parametrize(
    ("text", "count"),
    [("0", 0), ("2", 2), ("1k", 1000), ("1.5k", 1500), ("2000m", 2), (str(2**63 - 1), 2**63 - 1)],
)
def test_an_extended_resource_is_a_whole_number(text: str, count: int) -> None:
    assert Quantity.read(text).count == count


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1500m", "whole numbers"),
        ("0.1", "whole numbers"),
        ("-1", "counted from 0"),
        (str(2**63), "counted from 0"),
        ("9e999", "counted from 0"),
        ("two", "write a number"),
    ],
)
def test_other_amounts_of_an_extended_resource_are_refused(text: str, reason: str) -> None:
    with pytest.raises(QuantityError, match=reason):
        Quantity.read(text).count  # noqa: B018


@pytest.mark.parametrize(
    ("written", "text", "number"),
    [
        ("500m", "500m", "0.5"),
        (2, "2", "2"),
        (0.5, "0.5", "0.5"),
        (-(2**63), str(-(2**63)), str(-(2**63))),
    ],
)
def test_an_amount_is_text_or_a_number_in_a_body(written: object, text: str, number: str) -> None:
    read = Quantity.read(written)
    assert (read.text, read.value) == (text, Decimal(number))


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("two", "'two' is not a quantity: write a number"),
        ([], "'list' is not a quantity: write a number"),
        (True, "'bool' is not a quantity: write a number"),
        (float("nan"), "'nan' is not a quantity: write a number"),
        pytest.param(
            10**5000, "'int' is not a quantity: a quantity is from", id="a number of many digits"
        ),
    ],
)
def test_what_is_no_amount_is_refused_where_it_is_needed(written: object, message: str) -> None:
    read = Quantity.read(written, "spec.overhead.cpu")
    assert not read.is_milli(0)
    with pytest.raises(QuantityError, match=message) as raised:
        read.milli  # noqa: B018
    assert raised.value.path == "spec.overhead.cpu"


@pytest.mark.parametrize(("text", "milli"), [("2", 2000), ("0.0005", 1), ("-1", 0), ("1k", 10**6)])
def test_thousandths_are_rounded_up(text: str, milli: int) -> None:
    assert Quantity.read(text).milli == milli


def test_so_many_thousandths_is_exact() -> None:
    assert Quantity.read("0.5").is_milli(500)
    assert not Quantity.read("0.5001").is_milli(500)
    assert not Quantity.read("0").is_milli(None)
