"""The trust in certificates of the API server, and the reasons against other certificates.

The rules are kubectl's: Go's crypto/x509 accepts CAs that lack extensions of RFC 5280, and takes an
intermediate CA as an anchor. From Python 3.13 on the default contexts require these extensions.
"""

from __future__ import annotations

import socket
import ssl
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_SHOWN: Final = 300
# X509_V_FLAG_NO_CHECK_TIME and X509_V_ERR_... of openssl/x509_vfy.h.
_NO_CHECK_TIME: Final = 0x200000
_REMEDIES: Final = {
    9: "correct the clock of this machine or of the signer",
    10: "renew what has expired",
    62: "use one of its names, or have this one added",
    64: "use one of its names, or have this one added",
}


def client_context(ca: Path | None) -> ssl.SSLContext:
    """Make the context of a connection: chain, name and time are verified.

    Args:
        ca: the file of the trusted CAs; None for those of this machine.

    Raises:
        OSError: there is no CA in the file, or it cannot be read.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.hostname_checks_common_name = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if ca is None:
        context.load_default_certs()
    else:
        context.load_verify_locations(ca)
    return context


def remedy(
    error: ssl.SSLCertVerificationError, ca: Path | None, address: tuple[str, int], timeout_s: float
) -> str:
    """Return the facts about a certificate that was refused, and what to do.

    Args:
        error: the reason of the refusal.
        ca: the file of the trusted CAs; None for those of this machine.
        address: the server's; the function asks it once more.
        timeout_s: how long the server may be silent meanwhile.
    """
    parts = []
    try:
        if ca is not None:
            trusted = map(_described, client_context(ca).get_ca_certs())
            parts.append(f"{ca} has {_cut(' and '.join(trusted) or 'no CA')}")
        parts.append(f"the API server shows {_described(_certificate(address, timeout_s))}")
    except (OSError, ValueError) as unreadable:
        parts.append(f"more details cannot be read ({unreadable})")
    return "; ".join([*parts, _REMEDIES.get(error.verify_code, "trust the CA that issued it")])


def _certificate(address: tuple[str, int], timeout_s: float) -> Mapping[str, Any]:
    """Return the fields of the certificate that a server shows, trusted or not."""
    # `ssl` decodes only a certificate that it has verified, so this one is its own anchor here.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | cast("ssl.VerifyFlags", _NO_CHECK_TIME)
    context.load_verify_locations(cadata=ssl.get_server_certificate(address, timeout=timeout_s))
    with (
        socket.create_connection(address, timeout_s) as connected,
        context.wrap_socket(connected, server_hostname=address[0]) as secured,
    ):
        return cast("Mapping[str, Any]", secured.getpeercert())


def _described(certificate: Mapping[str, Any]) -> str:
    subject, issuer = (_name(certificate[part]) for part in ("subject", "issuer"))
    by = f" issued by {issuer}" if issuer != subject else ""
    names = ", ".join(name for _, name in certificate.get("subjectAltName", ()))
    valid = f"valid from {certificate['notBefore']} until {certificate['notAfter']}"
    return f"{subject}{by}, {valid}" + (f", for {_cut(names)}" if names else "")


def _name(parts: tuple[tuple[tuple[str, str], ...], ...]) -> str:
    return _cut(", ".join(f"{key}={value}" for part in parts for key, value in part))


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
