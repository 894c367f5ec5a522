from __future__ import annotations

import ipaddress
import ssl
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from urllib3 import connection as urllib3_connection

from cpupool.kube.client import APIError, APIServer, NoAPIServer
from cpupool.kube.connection import APIConnection
from cpupool.kube.resources import NODES
from tests.apiserver import FakeAPIServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

NOW = datetime.now(UTC)
YEAR = timedelta(days=365)
CAN_SIGN = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


@dataclass(frozen=True)
class Signer:
    """A CA; what it lacks, it is made without."""

    name: str = "kubernetes"
    key: ec.EllipticCurvePrivateKey = field(
        default_factory=lambda: ec.generate_private_key(ec.SECP256R1())
    )
    issuer: Signer | None = None
    key_usage: bool = True
    critical: bool = True
    key_identifiers: bool = True

    @property
    def subject(self) -> x509.Name:
        return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, self.name)])

    @property
    def own(self) -> x509.Certificate:
        """Return its own certificate."""
        issuer = self.issuer or self
        made = issuer.begun(self.subject, self.key, NOW - YEAR, NOW + YEAR).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=self.critical
        )
        if self.key_usage:
            made = made.add_extension(CAN_SIGN, critical=True)
        if self.key_identifiers:
            identifier = x509.SubjectKeyIdentifier.from_public_key(self.key.public_key())
            made = made.add_extension(identifier, critical=False)
        return made.sign(issuer.key, hashes.SHA256())

    def begun(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, since: datetime, until: datetime
    ) -> x509.CertificateBuilder:
        made = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(since)
            .not_valid_after(until)
        )
        if self.key_identifiers:
            identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
            made = made.add_extension(identifier, critical=False)
        return made

    def trusted_in(self, path: Path) -> None:
        path.write_bytes(pem(self.own))


@dataclass(frozen=True)
class Shown:
    """The certificate of an API server."""

    signer: Signer
    since: datetime = NOW - YEAR
    until: datetime = NOW + YEAR
    names: tuple[x509.GeneralName, ...] = (
        x509.DNSName("kubernetes"),
        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
    )

    def context(self, folder: Path) -> ssl.SSLContext:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "kube-apiserver")])
        made = (
            self.signer.begun(subject, key, self.since, self.until)
            .add_extension(x509.SubjectAlternativeName(self.names), critical=False)
            .sign(self.signer.key, hashes.SHA256())
        )
        secret = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        path = folder / "server.pem"
        path.write_bytes(pem(made) + secret)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path)
        return context


def pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


@pytest.fixture(autouse=True)
def _strict_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every Python's default be that of 3.13."""

    def strict(make: Callable[..., ssl.SSLContext]) -> Callable[..., ssl.SSLContext]:
        def made(*args: object, **more: object) -> ssl.SSLContext:
            context = make(*args, **more)
            context.verify_flags |= ssl.VERIFY_X509_STRICT
            return context

        return made

    for module, name in (
        (ssl, "create_default_context"),
        (urllib3_connection, "create_urllib3_context"),
    ):
        monkeypatch.setattr(module, name, strict(getattr(module, name)))


@contextmanager
def cluster(folder: Path, shown: Shown, trusted: Signer) -> Iterator[APIServer]:
    """Serve with a certificate, and mount a service account that trusts a CA."""
    trusted.trusted_in(folder / "ca.crt")
    (folder / "token").write_text("secret")
    with FakeAPIServer(tls=shown.context(folder)) as fake:
        environment = {
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": fake.url.rpartition(":")[2],
        }
        yield APIServer.in_cluster(environment, folder)
        assert all(asked.resource == "nodes" for asked in fake.requests)


def ask(server: APIServer) -> int:
    return len(APIConnection(server).page(NODES.collection(), {})["items"])


def refusal(folder: Path, shown: Shown, trusted: Signer) -> str:
    with cluster(folder, shown, trusted) as server, pytest.raises(APIError) as refused:
        ask(server)
    assert (refused.value.status, refused.value.reason) == (0, "untrusted")
    assert "check that the API server runs" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize(
    "signer",
    [
        pytest.param(Signer(), id="RFC 5280"),
        pytest.param(Signer(key_usage=False), id="without key usage"),
        pytest.param(Signer(critical=False), id="basic constraints not critical"),
        pytest.param(Signer(key_identifiers=False), id="without key identifiers"),
        pytest.param(Signer("front", issuer=Signer("root")), id="an intermediate"),
    ],
)
def test_a_ca_that_kubectl_trusts_is_trusted(folder: Path, signer: Signer) -> None:
    with cluster(folder, Shown(signer), signer) as server:
        assert ask(server) == 1


@pytest.mark.parametrize(
    "signer", [Signer(), Signer(key_usage=False), Signer("front", issuer=Signer("root"))]
)
def test_chain_name_and_time_are_still_verified(folder: Path, signer: Signer) -> None:
    shown = Shown(signer)
    forged = replace(signer, key=ec.generate_private_key(ec.SECP256R1()))
    named = x509.DNSName("kubernetes")

    refusal(folder, shown, forged)
    refusal(folder, replace(shown, names=(named,)), signer)
    refusal(folder, replace(shown, until=NOW - timedelta(minutes=1)), signer)
    refusal(folder, replace(shown, since=NOW + timedelta(days=1)), signer)


def test_an_expired_certificate_is_described(folder: Path) -> None:
    signer = Signer()
    until = datetime(2024, 2, 29, 12, 30, tzinfo=UTC)
    shown = Shown(signer, since=until - YEAR, until=until)

    told = refusal(folder, shown, signer)

    assert told.startswith(
        "API server: list nodes: untrusted: certificate has expired;"
        f" {folder}/ca.crt has commonName=kubernetes, valid from "
    )
    assert told.endswith(
        "; the API server shows commonName=kube-apiserver issued by commonName=kubernetes, valid"
        " from Mar  1 12:30:00 2023 GMT until Feb 29 12:30:00 2024 GMT, for kubernetes, 127.0.0.1;"
        " renew what has expired"
    )


def test_a_wrong_name_is_reported_beside_the_right_ones(folder: Path) -> None:
    signer = Signer()
    names = (x509.DNSName("kubernetes"), x509.IPAddress(ipaddress.ip_address("10.96.0.1")))

    told = refusal(folder, Shown(signer, names=names), signer)

    assert "not valid for '127.0.0.1'" in told
    assert ", for kubernetes, 10.96.0.1;" in told
    assert told.endswith("use one of its names, or have this one added")


def test_another_authority_is_reported_beside_the_trusted_one(folder: Path) -> None:
    told = refusal(folder, Shown(Signer("real")), Signer("other"))

    assert "unable to get local issuer certificate" in told
    assert "commonName=kube-apiserver issued by commonName=real" in told
    assert f"{folder}/ca.crt has commonName=other, valid from" in told
    assert told.endswith("trust the CA that issued it")


def test_a_name_of_any_form_is_described(folder: Path) -> None:
    assert "issued by commonName={0} %s" in refusal(folder, Shown(Signer("{0} %s")), Signer())


def test_a_certificate_of_many_names_is_cut_short(folder: Path) -> None:
    names = tuple(x509.DNSName(f"node-{number}.example.com") for number in range(500))

    assert len(refusal(folder, Shown(Signer(), names=names), Signer())) < 1500


def test_a_server_that_shows_its_certificate_once_is_reported(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object, **__: object) -> str:
        raise ConnectionRefusedError("it is gone")

    monkeypatch.setattr(ssl, "get_server_certificate", gone)
    told = refusal(folder, Shown(Signer("real")), Signer("other"))
    assert "ca.crt has commonName=other" in told
    assert "; more details cannot be read (it is gone); trust the CA that issued it" in told


@pytest.mark.parametrize("text", [None, b"", b"no certificate"])
def test_a_missing_or_damaged_ca_says_so(folder: Path, text: bytes | None) -> None:
    with cluster(folder, Shown(Signer()), Signer()) as server:
        (folder / "ca.crt").unlink()
        if text is not None:
            (folder / "ca.crt").write_bytes(text)
        with pytest.raises(APIError, match=r"/ca\.crt: cannot be read .*mount the CA") as refused:
            ask(server)
    assert str(refused.value).endswith("; it is tried again")
    assert isinstance(refused.value.__cause__, NoAPIServer)
