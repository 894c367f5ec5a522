"""Kubernetes quantities: the grammar of k8s.io/apimachinery/pkg/api/resource/quantity.go."""

from __future__ import annotations

import re
from decimal import Context, Decimal, Inexact
from typing import Final

from cpupool.core.errors import QuantityError

_QUANTITY: Final = re.compile(
    r"([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))"
    r"(?:(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)|[eE]([+-]?[0-9]{1,3}))?",
    re.ASCII,
)
_SCALE: Final = {
    "": Decimal(1),
    **{suffix: Decimal(1000) ** n for n, suffix in enumerate("num", start=-3)},
    **{suffix: Decimal(1000) ** n for n, suffix in enumerate("kMGTPE", start=1)},
    **{f"{suffix}i": Decimal(1024) ** n for n, suffix in enumerate("KMGTPE", start=1)},
}
_DIGITS: Final = 28
"""The 19 digits of the largest quantity, 2^63 - 1, and the 9 behind the point that it may have."""


def parse(text: str) -> Decimal:
    """Read a quantity such as `2`, `1.5k`, `100m`, `1e3` or `4Gi`.

    Raises:
        QuantityError: the text is outside the grammar, or has more than 28 digits that count.
    """
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise QuantityError(text, "write a number, as 2, 500m or 1k")
    number, suffix, exponent = match.groups()
    scale = Decimal(10) ** int(exponent) if exponent else _SCALE[suffix or ""]
    try:
        return Context(prec=_DIGITS, traps=[Inexact]).multiply(Decimal(number), scale)
    except Inexact:
        raise QuantityError(text, "it has more digits than a quantity can hold") from None


def parse_count(text: str) -> int:
    """Read the amount of an extended resource: a whole number, zero or more.

    The API server stores 1000 as `1k`, so a suffix is the ordinary case.

    Raises:
        QuantityError: the text is no quantity, or not a whole number from 0 to 2^63 - 1.
    """
    value = parse(text)
    if not 0 <= value < 2**63:
        raise QuantityError(text, "an extended resource is counted from 0 to 2^63 - 1")
    if value != value.to_integral_value():
        raise QuantityError(text, "an extended resource is asked for in whole numbers")
    return int(value)
