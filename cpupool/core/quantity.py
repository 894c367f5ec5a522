"""Kubernetes quantities: the grammar of k8s.io/apimachinery/pkg/api/resource/quantity.go."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
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
_MILLI: Final = 1000
_END: Final = 2**63
_GRAMMAR: Final = "write a number, as 2, 500m or 1k"
_MOST_EXACT: Final = 2**53
"""Up to this number every whole number is a float."""
_DIGITS: Final = 28
"""The 19 digits of the largest quantity, 2^63 - 1, and the 9 digits allowed after the point."""


def parse(text: str) -> Decimal:
    """Read a quantity such as `2`, `1.5k`, `100m`, `1e3` or `4Gi`.

    Raises:
        QuantityError: the text is outside the grammar, or has more than 28 significant digits.
    """
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise QuantityError(text, _GRAMMAR)
    number, suffix, exponent = match.groups()
    scale = Decimal(10) ** int(exponent) if exponent else _SCALE[suffix or ""]
    try:
        return Context(prec=_DIGITS, traps=[Inexact]).multiply(Decimal(number), scale)
    except Inexact:
        raise QuantityError(text, "it has more digits than a quantity can hold") from None


def as_quantity(milli: int) -> str:
    """Write thousandths as Kubernetes does: `2`, `1500m`."""
    whole, rest = divmod(milli, _MILLI)
    return f"{milli}m" if rest else str(whole)


def is_amount(number: float) -> bool:
    """Return whether a number is an amount of a resource: from 0 to 2^53, and not -0.0.

    An amount equals itself, also after it was written to a file and read.
    """
    return 0 <= number <= _MOST_EXACT and math.copysign(1.0, number) > 0


@dataclass(frozen=True, slots=True)
class Quantity:
    """An amount of a resource in a pod's body, parsed when the body is read.

    A wrong amount raises only where it is needed: resources of other plugins may be anything.

    Attributes:
        text: as written; the name of the type where it is neither text nor number.
        path: its place in the body.
        number: its value; None where it is not a quantity.
        fault: why it is not a quantity.
    """

    text: str
    path: str = ""
    number: Decimal | None = None
    fault: str = ""

    @classmethod
    def read(cls, written: object, path: str = "") -> Quantity:
        """Read an amount, which JSON and YAML may hold as a number."""
        try:
            text = _text(written)
            return cls(text, path, parse(text))
        except QuantityError as error:
            return cls(error.text, path, fault=error.reason)

    @classmethod
    def of_milli(cls, milli: int, path: str = "") -> Quantity:
        """Return an amount of thousandths."""
        return cls.read(as_quantity(milli), path)

    @property
    def error(self) -> QuantityError | None:
        """The error with the reason why it is no quantity; None if it is one."""
        return self._error(self.fault) if self.number is None else None

    @property
    def value(self) -> Decimal:
        """The value.

        Raises:
            QuantityError: it is no quantity.
        """
        if self.number is None:
            raise self._error(self.fault)
        return self.number

    @property
    def milli(self) -> int:
        """The value in thousandths, 0 or more.

        The API's quantities round up (MilliValue in apimachinery's quantity.go).

        Raises:
            QuantityError: it is no quantity.
        """
        return max(0, math.ceil(self.value * _MILLI))

    @property
    def count(self) -> int:
        """The amount of an extended resource: a whole number, zero or more.

        The API server stores 1000 as `1k`, so a suffix is the ordinary case.

        Raises:
            QuantityError: it is no quantity, or not a whole number from 0 to 2^63 - 1.
        """
        value = self.value
        if not 0 <= value < _END:
            raise self._error("an extended resource is counted from 0 to 2^63 - 1")
        if value != value.to_integral_value():
            raise self._error("an extended resource is requested in whole numbers")
        return int(value)

    def is_milli(self, milli: int | None) -> bool:
        """Return whether the value is exactly `milli` thousandths; None means no amount."""
        return self.number is not None and self.number * _MILLI == milli

    def _error(self, reason: str) -> QuantityError:
        return QuantityError(self.text, reason, self.path)


def _text(written: object) -> str:
    if isinstance(written, int) and not isinstance(written, bool):
        # Python refuses to write a number with thousands of digits.
        if not -_END <= written < _END:
            raise QuantityError(type(written).__name__, "a quantity is from -2^63 to 2^63 - 1")
        return str(written)
    if isinstance(written, str | float):
        return str(written)
    raise QuantityError(type(written).__name__, _GRAMMAR)
