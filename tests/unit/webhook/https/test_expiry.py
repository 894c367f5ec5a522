from __future__ import annotations

import ssl
from datetime import UTC, datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from cpupool.webhook.https.expiry import expires
from tests.certificates import ED25519, GOOD, NOW, OTHER, P256, RSA, certificate, pem, pem_of

VERSION_3 = bytes.fromhex("a003020102")


@pytest.mark.parametrize("key", [P256, RSA, ED25519])
@pytest.mark.parametrize(
    "ends",
    [
        datetime(1950, 1, 1, tzinfo=UTC),
        datetime(1999, 12, 31, 23, 59, 59, tzinfo=UTC),
        datetime(2026, 2, 28, 12, 30, 15, tzinfo=UTC),
        datetime(2049, 12, 31, 23, 59, 59, tzinfo=UTC),
        datetime(2050, 1, 1, tzinfo=UTC),
        datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC),
    ],
)
def test_the_end_is_that_which_the_library_reads(key: object, ends: datetime) -> None:
    begins = datetime(1950, 1, 1, tzinfo=UTC)
    one = certificate(key, begins=begins, ends=ends)  # type: ignore[arg-type]
    assert expires(pem_of(one)) == one.not_valid_after_utc == ends


def test_the_first_certificate_of_a_file_counts() -> None:
    served = x509.load_pem_x509_certificate(GOOD["tls.crt"])
    chain = b"a comment\r\n" + GOOD["tls.crt"] + OTHER["ca.crt"]
    assert expires(chain.replace(b"\n", b"\r\n")) == served.not_valid_after_utc


def with_version(field: bytes) -> bytes:
    """Give the PEM of a certificate with this field in place of its version."""
    one = certificate(P256, ends=NOW)
    signed, whole = one.tbs_certificate_bytes, one.public_bytes(Encoding.DER)
    signature = whole.partition(signed)[2]
    fields = signed.partition(VERSION_3)[2]
    return ssl.DER_cert_to_PEM_cert(sequence(sequence(field + fields) + signature)).encode()


def sequence(content: bytes) -> bytes:
    return b"\x30\x82" + len(content).to_bytes(2, "big") + content


@pytest.mark.parametrize("field", [b"", VERSION_3, VERSION_3[:-1] + b"\1"])
def test_every_version_of_certificates_has_an_end(field: bytes) -> None:
    assert expires(with_version(field)) == NOW


def test_a_version_that_clients_refuse_is_refused() -> None:
    with pytest.raises(ValueError, match="its version is none of 1 to 3"):
        expires(with_version(VERSION_3[:-1] + b"\3"))


@pytest.mark.parametrize("text", [b"", b"nothing", pem(P256), GOOD["tls.key"]])
def test_a_file_without_a_certificate_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match="no certificate in it"):
        expires(text)


def test_a_certificate_that_is_cut_off_is_refused_wherever_the_cut_is() -> None:
    der = x509.load_pem_x509_certificate(GOOD["tls.crt"]).public_bytes(Encoding.DER)
    for length in range(len(der)):
        with pytest.raises(ValueError, match="no certificate that can be read"):
            expires(ssl.DER_cert_to_PEM_cert(der[:length]).encode())
