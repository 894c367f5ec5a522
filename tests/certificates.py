"""Keys and certificates of tests, ours and others', as a Secret holds them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID
from cryptography.x509.verification import PolicyBuilder, Store

from cpupool.webhook.https import certificate_renewal
from cpupool.webhook.https.certificate_renewal import Pair, SecretContents

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes

NAMES = certificate_renewal.service_names("cpupool-webhook", "cpupool")
NOW = datetime(2026, 11, 21, 8, 0, 0, tzinfo=UTC)
DAY = timedelta(days=1)


def kept(contents: SecretContents, now: datetime, names: tuple[str, ...] = NAMES) -> SecretContents:
    """Do what is due, as the role does."""
    contents = certificate_renewal.without_expired(contents, now)
    if certificate_renewal.ca_due(contents, names, now):
        contents = certificate_renewal.with_ca(contents, now)
    if certificate_renewal.serving_due(contents, names, now):
        contents = certificate_renewal.with_serving(contents, names, now)
    return contents


def data(contents: SecretContents) -> dict[str, bytes]:
    return {**contents.ca_data(), **contents.serving_data()}


def verify(serving: Pair | None, bundle: bytes, now: datetime) -> None:
    """Take what is served as a client does that trusts this bundle."""
    assert serving
    trusted = Store(x509.load_pem_x509_certificates(bundle))
    for name in NAMES:
        verifier = (
            PolicyBuilder().store(trusted).time(now).build_server_verifier(x509.DNSName(name))
        )
        verifier.verify(serving.certificate, [])


def certificate(
    key: CertificateIssuerPrivateKeyTypes,
    *,
    begins: datetime = NOW - DAY,
    ends: datetime = NOW + 2000 * DAY,
    constraints: x509.BasicConstraints | None = None,
    permitted: str = "",
) -> x509.Certificate:
    """Sign a certificate with its own key, as somebody else may have made it."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "theirs")])
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
    )
    own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    # The one that is true is keyCertSign.
    signs = x509.KeyUsage(False, False, False, False, False, True, False, False, False)
    builder = builder.add_extension(own, critical=False).add_extension(signs, critical=True)
    if constraints:
        builder = builder.add_extension(constraints, critical=True)
    if permitted:
        only = x509.NameConstraints([x509.DNSName(permitted)], None)
        builder = builder.add_extension(only, critical=True)
    algorithm = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    return builder.sign(key, algorithm)


def pem(key: CertificateIssuerPrivateKeyTypes, password: bytes = b"") -> bytes:
    encryption = BestAvailableEncryption(password) if password else NoEncryption()
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)


def pem_of(one: x509.Certificate) -> bytes:
    return one.public_bytes(Encoding.PEM)


def uses_library(pid: int) -> bool:
    """Return whether a process has the library that makes certificates in its memory."""
    return "/cryptography/" in Path(f"/proc/{pid}/maps").read_text()


P256 = ec.generate_private_key(ec.SECP256R1())
RSA = rsa.generate_private_key(65537, 2048)
CA = x509.BasicConstraints(ca=True, path_length=None)


GOOD = data(kept(SecretContents(), NOW))
OTHER = data(kept(SecretContents(), NOW))


ED25519 = ed25519.Ed25519PrivateKey.generate()
