from __future__ import annotations

import ssl
import warnings
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
import trustme

from cpupool.webhook.https.server import CertificateError, HTTPSServer
from tests.unit.webhook.https.clients import (
    FUNCTIONS,
    answered_by,
    client_of,
    locked_pem,
    plain_to,
)
from tests.webhooks import LOCALHOST, PATIENT, Client, Secret, serving

if TYPE_CHECKING:
    from pathlib import Path


class TestCertificates:
    def test_until_there_is_one_no_client_is_let_in(self, secret: Secret) -> None:
        server = HTTPSServer(LOCALHOST, 0, FUNCTIONS, limits=PATIENT)
        with serving(server):
            assert not server.presents
            hung_up = pytest.raises((ConnectionError, ssl.SSLEOFError))
            with client_of(server, secret) as client, hung_up:
                client.shown()
            server.present(secret.certificate, secret.key)
            assert answered_by(server, secret)

    def test_a_pair_that_cannot_be_used_leaves_the_one_of_before(
        self, server: HTTPSServer, secret: Secret, tmp_path: Path
    ) -> None:
        with client_of(server, secret) as client:
            before = client.shown()
        certificate, key = secret.certificate.read_text(), secret.key.read_text()
        other = trustme.CA().issue_cert(LOCALHOST).private_key_pem.bytes().decode()
        for number, (one, two) in enumerate(
            [(certificate, other), ("", key), (certificate, ""), ("x", "y"), (key, certificate)]
        ):
            bad = Secret(tmp_path / str(number))
            bad.show(one, two)
            with pytest.raises(CertificateError, match=r"tls\.crt: cannot be used with"):
                server.present(bad.certificate, bad.key)
        with pytest.raises(CertificateError, match="No such file"):
            server.present(tmp_path / "missing", secret.key)
        with client_of(server, secret) as client:
            assert client.shown() == before
            assert client.post("/echo", {}).status == 200

    def test_a_key_with_a_passphrase_is_refused_without_a_question(
        self, server: HTTPSServer, secret: Secret, tmp_path: Path
    ) -> None:
        text = secret.key.read_text()
        locked = tmp_path / "locked.key"
        locked.write_text(locked_pem(text))
        with pytest.raises(CertificateError):
            server.present(secret.certificate, locked)

    def test_a_chain_with_an_rsa_key_is_shown_whole(
        self, server: HTTPSServer, tmp_path: Path
    ) -> None:
        root = trustme.CA()
        pair = root.create_child_ca().issue_cert(LOCALHOST, key_type=trustme.KeyType.RSA)
        chained = Secret(tmp_path)
        chain = b"".join(pem.bytes() for pem in pair.cert_chain_pems).decode()
        chained.show(chain, pair.private_key_pem.bytes().decode())
        server.present(chained.certificate, chained.key)
        trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        root.configure_trust(trusting)
        with closing(Client(server.port, trusting)) as client:
            assert client.post("/echo", {}).status == 200

    def test_old_tls_is_refused(self, server: HTTPSServer, secret: Secret) -> None:
        context = secret.trusting()
        context.set_ciphers("ALL:@SECLEVEL=0")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            context.minimum_version = ssl.TLSVersion.TLSv1_1
            context.maximum_version = ssl.TLSVersion.TLSv1_1
        with plain_to(server) as connection, pytest.raises(ssl.SSLError):
            context.wrap_socket(connection, server_hostname=LOCALHOST)
