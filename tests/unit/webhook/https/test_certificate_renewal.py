from __future__ import annotations

import re
import socket
import ssl
import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from cpupool.webhook.https import certificate_renewal
from cpupool.webhook.https.certificate_renewal import SecretContents
from tests.certificates import (
    CA,
    DAY,
    ED25519,
    GOOD,
    NAMES,
    NOW,
    OTHER,
    P256,
    RSA,
    certificate,
    data,
    kept,
    pem,
    pem_of,
    verify,
)
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from pathlib import Path


def ending_first() -> x509.Certificate:
    """Bend a certificate so that it begins long after its end."""
    begins, ends = NOW - 2 * DAY, NOW - DAY
    der = certificate(P256, begins=begins, ends=ends, constraints=CA).public_bytes(Encoding.DER)
    bent = der.replace(begins.strftime("%y%m%d").encode(), b"490101", 1)
    return x509.load_der_x509_certificate(bent)


YEARS = range(0, 12 * 365, 3)
"""The days on which the role looks: seldom, as clients may meet what it leaves for long."""


def test_over_years_clients_accept_what_is_served_whichever_bundle_they_know() -> None:
    before = contents = kept(SecretContents(), NOW)
    authorities, served = set(contents.trusted), {contents.serving}
    for day in YEARS:
        now = NOW + day * DAY
        contents = kept(contents, now)
        # What is good on the days of two changes is good on every day between them.
        if contents != before or day == YEARS[-1]:
            for one in {before.serving, contents.serving}:
                for bundle in {before.bundle, contents.bundle}:
                    verify(one, bundle, now)
        assert len(contents.trusted) <= 2
        authorities |= set(contents.trusted)
        served.add(contents.serving)
        before = contents
    # One at the start, then every 40 months; every 60 days, and sooner with each new CA.
    assert len(authorities) == 4
    assert len(served) == YEARS.stop // 60 + 3


def test_a_new_ca_is_trusted_for_an_hour_before_it_signs() -> None:
    old = SecretContents()
    for day in range(0, 1218, 30):
        old = kept(old, NOW + day * DAY)
    due = NOW + 1218 * DAY
    new = kept(old, due)
    assert new.trusted[1:] == old.trusted
    assert new.serving == old.serving
    assert kept(new, due + timedelta(minutes=59)) == new
    later = kept(new, due + timedelta(minutes=60))
    assert later.trusted == new.trusted
    verify(later.serving, pem_of(new.trusted[0]), due + timedelta(minutes=60))


def test_a_ca_leaves_the_bundle_when_it_has_expired() -> None:
    ends = NOW + DAY
    short = certificate(P256, ends=ends, constraints=CA)
    contents = SecretContents(trusted=(*kept(SecretContents(), NOW).trusted, short))
    assert certificate_renewal.without_expired(contents, ends) == contents
    assert (
        certificate_renewal.without_expired(contents, ends + DAY / 2).trusted
        == contents.trusted[:1]
    )


def test_nothing_is_due_soon_after_or_a_little_before() -> None:
    contents = kept(SecretContents(), NOW)
    for now in (NOW, NOW + 59 * DAY, NOW - timedelta(minutes=9)):
        assert kept(contents, now) == contents


def test_what_is_written_is_read_again() -> None:
    contents = kept(SecretContents(), NOW)
    assert certificate_renewal.read(data(contents)) == contents
    assert certificate_renewal.read({}) == SecretContents()


def test_the_terms_are_those_of_the_certificates() -> None:
    terms = kept(SecretContents(), NOW).terms()
    assert terms["serving"].until == NOW + 90 * DAY
    assert terms["ca"].until == NOW + 1825 * DAY
    assert terms["serving"].renewal < NOW + 60 * DAY < terms["ca"].renewal
    assert SecretContents().terms() == {}


def test_a_tls_client_is_answered_under_each_name(folder: Path) -> None:
    contents = kept(SecretContents(), datetime.now(UTC))
    for name, text in contents.serving_data().items():
        (folder / name).write_bytes(text)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    client = ssl.create_default_context(cadata=contents.bundle.decode())
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    for name in NAMES:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            listening.settimeout(DEADLINE_S)
            serving = threading.Thread(target=_serve_once, args=(listening, context))
            serving.start()
            with (
                socket.create_connection(listening.getsockname(), DEADLINE_S) as connection,
                client.wrap_socket(connection, server_hostname=name) as secured,
            ):
                assert secured.recv(5) == b"hello"
            serving.join(DEADLINE_S)


def _serve_once(listening: socket.socket, context: ssl.SSLContext) -> None:
    connection, _ = listening.accept()
    connection.settimeout(DEADLINE_S)
    with context.wrap_socket(connection, server_side=True) as secured:
        secured.sendall(b"hello")


def test_a_serving_certificate_signs_nothing_and_serves_only() -> None:
    contents = kept(SecretContents(), NOW)
    assert contents.serving
    extensions = contents.serving.certificate.extensions
    usage = extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert [*usage] == [x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]
    assert not extensions.get_extension_for_class(x509.BasicConstraints).value.ca


@pytest.mark.parametrize(
    ("changed", "now", "why"),
    [
        pytest.param({"tls.crt": b"", "tls.key": b""}, NOW, "there is none", id="none"),
        pytest.param({}, NOW + 60 * DAY, "two thirds of its life are over", id="old"),
        pytest.param({}, NOW + 91 * DAY, "no CA of the bundle vouches for it now", id="expired"),
        pytest.param({}, NOW - DAY, "no CA of the bundle vouches for it now", id="not yet valid"),
        pytest.param(
            {"ca.crt": OTHER["ca.crt"], "ca.key": OTHER["ca.key"]},
            NOW,
            "no CA of the bundle vouches for it now",
            id="another CA",
        ),
        pytest.param(
            {"ca.crt": GOOD["ca.crt"] + OTHER["ca.crt"], "ca.key": OTHER["ca.key"]},
            NOW,
            "",
            id="another CA that is new",
        ),
        pytest.param(
            {"ca.crt": GOOD["ca.crt"] + OTHER["ca.crt"], "ca.key": OTHER["ca.key"]},
            NOW + DAY,
            "another CA signs now",
            id="another CA that is known",
        ),
    ],
)
def test_a_serving_certificate_is_due(changed: dict[str, bytes], now: datetime, why: str) -> None:
    contents = certificate_renewal.read({**GOOD, **changed})
    assert certificate_renewal.serving_due(contents, NAMES, now) == why


def test_a_serving_certificate_for_other_names_is_replaced_at_once() -> None:
    contents = kept(SecretContents(), NOW)
    for names in (
        certificate_renewal.service_names("other", "cpupool"),
        NAMES[:2],
        (*NAMES, "more"),
    ):
        assert certificate_renewal.serving_due(contents, names, NOW) == "it is for other names"
        replaced = kept(contents, NOW, names)
        assert replaced.trusted == contents.trusted
        assert certificate_renewal.serving_due(replaced, names, NOW) == ""


def test_the_longest_names_that_kubernetes_allows_fit() -> None:
    names = certificate_renewal.service_names("s" * 63, "n" * 63)
    contents = kept(SecretContents(), NOW, names)
    assert certificate_renewal.serving_due(contents, names, NOW) == ""


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param(certificate(P256, ends=NOW - DAY / 2, constraints=CA), id="expired"),
        pytest.param(certificate(P256, begins=NOW + DAY, constraints=CA), id="not yet valid"),
        pytest.param(
            certificate(P256, begins=NOW - 4000 * DAY, constraints=CA), id="two thirds over"
        ),
        pytest.param(certificate(P256, constraints=CA, permitted="a.example"), id="other names"),
        pytest.param(ending_first(), id="ends before it begins"),
    ],
)
def test_a_ca_that_cannot_sign_for_the_webhook_is_replaced(odd: x509.Certificate) -> None:
    contents = certificate_renewal.read({"ca.crt": pem_of(odd), "ca.key": pem(P256)})
    assert contents.problems == ()
    assert certificate_renewal.ca_due(contents, NAMES, NOW)
    done = kept(contents, NOW)
    assert done.trusted[0] != odd
    verify(done.serving, done.bundle, NOW)


def test_somebody_elses_ca_that_can_sign_is_kept() -> None:
    theirs = certificate(P256, constraints=CA)
    contents = kept(certificate_renewal.read({"ca.crt": pem_of(theirs), "ca.key": pem(P256)}), NOW)
    assert contents.trusted == (theirs,)
    verify(contents.serving, pem_of(theirs), NOW)


def test_nothing_outlives_its_ca() -> None:
    theirs = certificate(P256, ends=NOW + 10 * DAY, begins=NOW - DAY, constraints=CA)
    contents = kept(certificate_renewal.read({"ca.crt": pem_of(theirs), "ca.key": pem(P256)}), NOW)
    assert contents.terms()["serving"].until == NOW + 10 * DAY


CURVE = ec.generate_private_key(ec.SECP224R1())


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"tls.crt": b"x"}, "tls.crt cannot be read"),
        ({"tls.crt": GOOD["tls.crt"][:-40]}, "tls.crt cannot be read"),
        ({"tls.crt": GOOD["tls.crt"] * 2}, "tls.crt holds more than one certificate"),
        ({"tls.crt": b""}, "of tls.crt and tls.key only one can be used"),
        ({"tls.key": b""}, "of tls.crt and tls.key only one can be used"),
        ({"tls.key": b"\xff\0"}, "tls.key is no private key that can be used"),
        ({"tls.key": pem(RSA)}, "tls.key is no private key that can be used"),
        ({"tls.key": pem(P256, b"s3cret")}, "tls.key is no private key that can be used"),
        ({"tls.key": OTHER["tls.key"]}, "tls.key is not the key of tls.crt"),
        ({"ca.crt": b"x"}, "ca.crt holds no certificate"),
        ({"ca.crt": GOOD["ca.crt"][:60] + b"\n" + GOOD["ca.crt"][70:]}, "certificate 1 cannot"),
        ({"ca.crt": GOOD["tls.crt"]}, "ca.crt: certificate 1 is not that of a CA"),
        ({"ca.crt": pem_of(certificate(P256))}, "ca.crt: certificate 1 cannot be read"),
        ({"ca.key": GOOD["ca.crt"]}, "ca.key is no private key that can be used"),
        ({"ca.key": pem(ED25519)}, "ca.key is no private key that can be used"),
        ({"ca.key": OTHER["ca.key"]}, "ca.key is the key of no CA in ca.crt"),
        (
            {"ca.crt": pem_of(certificate(CURVE, constraints=CA)), "ca.key": pem(CURVE)},
            "",
        ),
    ],
)
def test_what_is_damaged_is_reported_and_made_anew(changed: dict[str, bytes], problem: str) -> None:
    contents = certificate_renewal.read({**GOOD, **changed})
    assert bool(contents.problems) == bool(problem)
    assert not problem or re.search(re.escape(problem), "; ".join(contents.problems))
    done = certificate_renewal.read(data(kept(contents, NOW)))
    assert done.problems == ()
    assert kept(done, NOW) == done
    verify(done.serving, done.bundle, NOW)


def test_what_is_good_survives_damage_beside_it() -> None:
    damaged = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    contents = certificate_renewal.read(
        {**GOOD, "ca.crt": b"# ours\n" + damaged + GOOD["ca.crt"] * 2}
    )
    good = certificate_renewal.read(GOOD)
    assert (contents.trusted, contents.signer, contents.serving) == (
        good.trusted,
        good.signer,
        good.serving,
    )
    without_key = kept(certificate_renewal.read({**GOOD, "ca.key": b""}), NOW)
    assert without_key.trusted[1:] == good.trusted
    assert without_key.serving == good.serving


def test_where_the_bundle_is_lost_the_one_in_use_is_trusted_on() -> None:
    good = certificate_renewal.read(GOOD)
    leaf = GOOD["tls.crt"]
    contents = kept(certificate_renewal.read({}, leaf + b"rubbish" + GOOD["ca.crt"]), NOW)
    assert contents.trusted[1:] == good.trusted
    verify(good.serving, contents.bundle, NOW)
    assert certificate_renewal.read(GOOD, OTHER["ca.crt"]).trusted == good.trusted


def test_a_secret_that_is_emptied_again_and_again_does_not_grow() -> None:
    contents = kept(SecretContents(), NOW)
    for _ in range(2 * certificate_renewal.MOST_TRUSTED):
        before, contents = contents, kept(certificate_renewal.read({}, contents.bundle), NOW)
        verify(before.serving, contents.bundle, NOW)
        verify(contents.serving, contents.bundle, NOW)
    assert len(contents.trusted) == certificate_renewal.MOST_TRUSTED


def test_keys_are_not_shown() -> None:
    contents = certificate_renewal.read({**GOOD, "tls.crt": b"x"})
    assert "PRIVATE" not in repr(certificate_renewal.read(GOOD)) + repr(contents.problems)
    with pytest.raises(ValueError, match="a CA must be made first"):
        certificate_renewal.with_serving(SecretContents(), NAMES, NOW)
