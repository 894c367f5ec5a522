"""The webhook's certificates: those in its Secret, those that are due, and their replacements.

The webhook's own certificate authority (CA) signs one serving certificate. The webhook's clients
trust a bundle of CAs, so that another CA can take over without a gap. This module reads no clock
and writes nothing: the caller gives the time, and writes the result.

Source: RFC 5280 for the certificates. A Secret of the type kubernetes.io/tls names its entries
`tls.crt` and `tls.key`, and cert-manager adds `ca.crt`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, Self

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

CA_LIFE: Final = timedelta(days=5 * 365)
SERVING_LIFE: Final = timedelta(days=90)
SKEW: Final = timedelta(minutes=10)
"""A new certificate is valid for clocks that are behind ours by up to this time."""
SETTLE: Final = timedelta(hours=1)
"""A new CA is in the bundle for this time before it signs in place of another CA."""

MOST_TRUSTED: Final = 16
"""CAs in the bundle: if the CA's key is lost again and again, the bundle must not outgrow a Secret.
The oldest CA leaves first."""

SERVING_CERTIFICATE: Final = "tls.crt"
SERVING_KEY: Final = "tls.key"
BUNDLE: Final = "ca.crt"
CA_KEY: Final = "ca.key"

_BLOCK: Final = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_UNREADABLE: Final = (
    TypeError,
    ValueError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.ExtensionNotFound,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its private key.

    Attributes:
        certificate: the certificate.
        key: the private key, PKCS #8 in PEM.
    """

    certificate: x509.Certificate
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Term:
    """The expiry and the renewal of a certificate.

    Attributes:
        until: when it expires.
        renewal: when its renewal is due, after two thirds of its life.
    """

    until: datetime
    renewal: datetime

    @classmethod
    def of(cls, certificate: x509.Certificate) -> Self:
        """Return the term of a certificate."""
        begins, until = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        return cls(until, begins + (until - begins) * 2 / 3)


@dataclass(frozen=True, slots=True)
class SecretContents:
    """The usable part of the Secret.

    Attributes:
        trusted: the CAs of the bundle, the newest first.
        signer: the CA whose key is in the Secret.
        serving: the certificate that the webhook presents to its clients.
        problems: the unusable entries, and why; a missing entry is not a problem.
    """

    trusted: tuple[x509.Certificate, ...] = ()
    signer: Pair | None = None
    serving: Pair | None = None
    problems: tuple[str, ...] = ()

    @property
    def bundle(self) -> bytes:
        """The CAs in PEM, one after the other."""
        return b"".join(_pem(certificate) for certificate in self.trusted)

    def ca_data(self) -> dict[str, bytes]:
        """Return the Secret's entries about CAs; none without a CA that can sign."""
        return {BUNDLE: self.bundle, CA_KEY: self.signer.key} if self.signer else {}

    def serving_data(self) -> dict[str, bytes]:
        """Return the Secret's entries for serving; none without a serving certificate."""
        if self.serving is None:
            return {}
        return {SERVING_CERTIFICATE: _pem(self.serving.certificate), SERVING_KEY: self.serving.key}

    def terms(self) -> dict[str, Term]:
        """Return the terms of the certificates in use: `serving` and `ca`, if they exist."""
        pairs = {"serving": self.serving, "ca": self.signer}
        return {name: Term.of(pair.certificate) for name, pair in pairs.items() if pair}


def service_names(service: str, namespace: str) -> tuple[str, ...]:
    """Return the DNS names of a Service; the API server uses the first."""
    name = f"{service}.{namespace}"
    return (f"{name}.svc", f"{name}.svc.cluster.local", name)


def read(data: Mapping[str, bytes], in_use: bytes = b"") -> SecretContents:
    """Read the Secret; unusable entries are left out and listed in `problems`.

    Args:
        data: the entries of the Secret; any may be missing or damaged.
        in_use: the bundle that clients trust now. If the Secret's bundle is lost, its CAs stay
            trusted, because a certificate that they signed may still be in use.
    """
    problems: list[str] = []
    trusted = _authorities(data.get(BUNDLE, b""), problems) or _authorities(in_use, [])
    ca_key = _key(CA_KEY, data, problems)
    signer = None
    if ca_key:
        mine = [ca for ca in trusted if _belong_together(ca, ca_key)]
        signer = Pair(mine[0], ca_key) if mine else None
        if signer is None:
            problems.append(f"{CA_KEY} is the key of no CA in {BUNDLE}")
    return SecretContents(trusted, signer, _serving(data, problems), tuple(problems))


def without_expired(contents: SecretContents, now: datetime) -> SecretContents:
    """Return the certificates without expired CAs in the bundle."""
    return replace(
        contents, trusted=tuple(ca for ca in contents.trusted if now <= ca.not_valid_after_utc)
    )


def ca_due(contents: SecretContents, names: Sequence[str], now: datetime) -> str:
    """Return in a few words why a new CA is needed; empty if none is needed."""
    if contents.signer is None:
        return "there is none with its key"
    if now >= Term.of(contents.signer.certificate).renewal:
        return "two thirds of its life are over"
    if not _signs(contents.signer, names, now):
        return "what it signs is not accepted"
    return ""


def with_ca(contents: SecretContents, now: datetime) -> SecretContents:
    """Return the certificates with a new CA, which signs from now on; old CAs stay trusted."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(f"cpupool webhook CA {now:%Y-%m-%d}")
    usage = _usage(key_cert_sign=True)
    certificate = (
        _builder(name, name, key.public_key(), now, now + CA_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    return replace(
        contents,
        trusted=(certificate, *contents.trusted)[:MOST_TRUSTED],
        signer=Pair(certificate, _key_pem(key)),
    )


def serving_due(contents: SecretContents, names: Sequence[str], now: datetime) -> str:
    """Return in a few words why a new serving certificate is needed; empty if none is needed.

    A certificate that clients do not accept is replaced at once. Any other replacement waits until
    every API server has received a new CA.
    """
    if contents.serving is None or contents.signer is None:
        return "there is none"
    certificate, authority = contents.serving.certificate, contents.signer.certificate
    if _names_of(certificate) != set(names):
        return "it is for other names"
    if not _accepted(certificate, contents.trusted, names, now):
        return "no CA of the bundle vouches for it now"
    settled = now >= authority.not_valid_before_utc + SKEW + SETTLE
    if settled and not _accepted(certificate, [authority], names, now):
        return "another CA signs now"
    if settled and now >= Term.of(certificate).renewal:
        return "two thirds of its life are over"
    return ""


def with_serving(contents: SecretContents, names: Sequence[str], now: datetime) -> SecretContents:
    """Return the certificates with a new serving certificate.

    Raises:
        ValueError: there is no CA to sign it.
    """
    if contents.signer is None:
        raise ValueError("a CA must be made first")
    return replace(contents, serving=_signed(contents.signer, names, now))


def _signed(signer: Pair, names: Sequence[str], now: datetime) -> Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    authority = signer.certificate
    ends = min(now + SERVING_LIFE, authority.not_valid_after_utc)
    own = x509.SubjectAlternativeName([x509.DNSName(name) for name in names])
    signing = _loaded_key(signer.key)
    issuer_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key())
    certificate = (
        # The names do not fit: a common name has at most 64 characters.
        _builder(_name("cpupool webhook"), authority.subject, key.public_key(), now, ends)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(own, critical=False)
        .add_extension(issuer_key, critical=False)
        .sign(signing, hashes.SHA256())
    )
    return Pair(certificate, _key_pem(key))


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public: ec.EllipticCurvePublicKey,
    now: datetime,
    ends: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(ends)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _usage(*, key_cert_sign: bool = False, digital_signature: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=key_cert_sign,
        encipher_only=False,
        decipher_only=False,
    )


def _signs(signer: Pair, names: Sequence[str], now: datetime) -> bool:
    """Return whether clients of this CA accept a sample that it signs; the CA may be an admin's."""
    try:
        sample = _signed(signer, names, now)
    except _UNREADABLE:
        return False
    return _accepted(sample.certificate, [signer.certificate], names, now)


def _accepted(
    certificate: x509.Certificate,
    trusted: Iterable[x509.Certificate],
    names: Iterable[str],
    now: datetime,
) -> bool:
    """Return whether a client that trusts these CAs accepts the certificate for each name."""
    try:
        policy = PolicyBuilder().store(Store([*trusted])).time(now)
        for name in names:
            policy.build_server_verifier(x509.DNSName(name)).verify(certificate, [])
    except (VerificationError, *_UNREADABLE):
        return False
    return True


def _authorities(bundle: bytes, problems: list[str]) -> tuple[x509.Certificate, ...]:
    found: dict[x509.Certificate, None] = {}
    blocks = _BLOCK.findall(bundle)
    if bundle and not blocks:
        problems.append(f"{BUNDLE} holds no certificate")
    for number, block in enumerate(blocks, 1):
        try:
            certificate = x509.load_pem_x509_certificate(block)
            basic = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
            # What is asked of it later must have a response.
            certificate.public_key()
            Term.of(certificate)
        except _UNREADABLE as error:
            problems.append(f"{BUNDLE}: certificate {number} cannot be read: {error}")
            continue
        if basic.ca:
            found[certificate] = None
        else:
            problems.append(f"{BUNDLE}: certificate {number} is not that of a CA")
    return tuple(found)


def _serving(data: Mapping[str, bytes], problems: list[str]) -> Pair | None:
    text = data.get(SERVING_CERTIFICATE, b"")
    key = _key(SERVING_KEY, data, problems)
    if not text or not key:
        if text or key:
            problems.append(f"of {SERVING_CERTIFICATE} and {SERVING_KEY} only one can be used")
        return None
    try:
        certificate = x509.load_pem_x509_certificate(text)
        # What is asked of it later must have a response.
        certificate.public_key()
        _names_of(certificate)
        Term.of(certificate)
    except _UNREADABLE as error:
        problems.append(f"{SERVING_CERTIFICATE} cannot be read: {error}")
        return None
    if _pem(certificate) != text:
        problems.append(f"{SERVING_CERTIFICATE} holds more than one certificate")
        return None
    if not _belong_together(certificate, key):
        problems.append(f"{SERVING_KEY} is not the key of {SERVING_CERTIFICATE}")
        return None
    return Pair(certificate, key)


def _key(entry: str, data: Mapping[str, bytes], problems: list[str]) -> bytes:
    """Return the text of a private key, or nothing if it is not usable."""
    text = data.get(entry, b"")
    if not text:
        return b""
    try:
        _loaded_key(text)
    except _UNREADABLE as error:
        problems.append(f"{entry} is no private key that can be used: {error}")
        return b""
    return text


def _loaded_key(text: bytes) -> ec.EllipticCurvePrivateKey:
    key = load_pem_private_key(text, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise TypeError("it is not one of an elliptic curve")
    return key


def _belong_together(certificate: x509.Certificate, key: bytes) -> bool:
    return certificate.public_key() == _loaded_key(key).public_key()


def _names_of(certificate: x509.Certificate) -> set[str]:
    try:
        own = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return set()
    return {str(name.value) for name in own.value}


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
