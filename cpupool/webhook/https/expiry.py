"""When a certificate expires, read without the library that makes certificates.

That library takes 10 MiB of each process that imports it, and the webhook's process makes no
certificates.

Source: RFC 5280, section 4.1 for the fields, section 4.1.2.5 for the times; X.690, section 8.1 for
the encoding.
"""

from __future__ import annotations

import base64
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_FIRST: Final = re.compile(rb"-----BEGIN CERTIFICATE-----(.*?)-----END CERTIFICATE-----", re.DOTALL)
_VERSION: Final = 0xA0
"""The tag of the field before the serial number; version 1 has none."""
_VERSIONS: Final = (b"\x02\x01\x00", b"\x02\x01\x01", b"\x02\x01\x02")
"""OpenSSL serves certificates of other versions, too, which clients refuse."""
_UTC_TIME: Final = 0x17
"""Two digits of the year, 1950 to 2049; the other kind of time has four."""


def expires(pem: bytes) -> datetime:
    """Return when the first certificate of a PEM file expires.

    Raises:
        ValueError: the file has no certificate that can be read.
    """
    first = _FIRST.search(pem)
    if first is None:
        raise ValueError("no certificate in it")
    try:
        return _end(base64.b64decode(first[1]))
    except (IndexError, ValueError) as error:
        raise ValueError(f"no certificate that can be read: {error}") from error


def _end(der: bytes) -> datetime:
    ((_, certificate),) = _elements(der)
    (_, signed), *_ = _elements(certificate)
    (tag, version), *fields = _elements(signed)
    if tag == _VERSION and version not in _VERSIONS:
        raise ValueError("its version is none of 1 to 3")
    _, _issuer, (_, validity), *_ = fields[tag == _VERSION :]
    _begin, (kind, end) = _elements(validity)
    text = end.decode("ascii")
    if kind == _UTC_TIME:
        text = f"{19 if text >= '50' else 20}{text}"
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _elements(der: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the tag and the content of each element; raise IndexError where the bytes end early."""
    while der:
        tag, length, begins = der[0], der[1], 2
        if length & 0x80:
            begins += length & 0x7F
            length = int.from_bytes(der[2:begins], "big")
        ends = begins + length
        if ends > len(der):
            raise IndexError("it is cut off")
        yield tag, der[begins:ends]
        der = der[ends:]
