from __future__ import annotations

import logging
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from cpupool.kube.client import APIError, APIServer
from cpupool.webhook.certificate_maker import TRIES, CertificateMaker
from cpupool.webhook.https import certificate_renewal
from cpupool.webhook.https.certificate_renewal import SecretContents
from tests.scenarios.certs.objects import (
    CONFIGURATION,
    DAY,
    INSTALLED,
    NOW,
    SECRET,
    aged,
    bundles,
    check_history,
    decoded,
    encoded,
    fill,
    maker,
    verify,
)

if TYPE_CHECKING:
    from datetime import datetime

    from tests.apiserver import FakeAPIServer


def test_an_empty_secret_is_filled_and_then_left_alone(server: FakeAPIServer) -> None:
    outcome = maker(server).look()
    assert [change.what for change in outcome.changes] == [
        "CA made",
        "bundle published",
        "serving certificate made",
    ]
    assert [path for path, _ in server.updates] == [SECRET, CONFIGURATION, SECRET]
    secret, configuration = server.kept(SECRET), server.kept(CONFIGURATION)
    assert sorted(secret["data"]) == ["ca.crt", "ca.key", "tls.crt", "tls.key"]
    assert bundles(configuration) == [decoded(secret)["ca.crt"]] * 2
    check_history(server, SecretContents(), NOW)

    again = maker(server).look()
    assert (again.changes, again.terms) == ((), outcome.terms)
    assert len(server.updates) == 3
    assert server.verbs() == {
        (verb, resource)
        for verb in ("get", "update")
        for resource in ("secrets", "mutatingwebhookconfigurations")
    }


def test_what_others_wrote_into_the_objects_stays(server: FakeAPIServer) -> None:
    server.keep(
        SECRET,
        {"metadata": {"labels": {"a": "b"}}, "type": "Opaque", "data": {"notes": encoded(b"hi")}},
    )
    webhook = {"name": "pods.cpupool.io", "clientConfig": {"url": "https://a"}, "timeoutSeconds": 5}
    server.keep(CONFIGURATION, {"metadata": {"annotations": {"c": "d"}}, "webhooks": [webhook]})
    maker(server).look()
    secret, configuration = server.kept(SECRET), server.kept(CONFIGURATION)
    assert (secret["metadata"]["labels"], secret["type"]) == ({"a": "b"}, "Opaque")
    assert decoded(secret)["notes"] == b"hi"
    assert configuration["metadata"]["annotations"] == {"c": "d"}
    only = configuration["webhooks"][0]
    assert (only["timeoutSeconds"], only["clientConfig"]["url"]) == (5, "https://a")


def test_over_years_there_is_no_moment_without_trust(server: FakeAPIServer) -> None:
    start = aged(30)
    fill(server, start)
    served = start.serving_data()["tls.crt"]
    for day in range(0, 12 * 365, 20):
        now = NOW + day * DAY
        maker(server, now).look()
        # What was there before the look is shown until the replicas have read the new one.
        for path, body in server.updates:
            for bundle in bundles(body) if path == CONFIGURATION else []:
                verify(served, bundle, now)
        served = decoded(server.kept(SECRET))["tls.crt"]
        for bundle in bundles(server.kept(CONFIGURATION)):
            verify(served, bundle, now)
        server.updates.clear()


def test_a_bundle_that_somebody_takes_away_is_put_back(server: FakeAPIServer) -> None:
    start = aged(30)
    fill(server, start)
    configuration = server.kept(CONFIGURATION)
    del configuration["webhooks"][1]["clientConfig"]["caBundle"]
    server.keep(CONFIGURATION, configuration)
    outcome = maker(server).look()
    assert [change.what for change in outcome.changes] == ["bundle published"]
    assert bundles(server.kept(CONFIGURATION)) == [start.bundle] * 2


def test_a_secret_that_is_emptied_costs_no_trust(server: FakeAPIServer) -> None:
    start = aged(30)
    fill(server, start)
    server.keep(SECRET, {"kind": "Secret"})
    maker(server).look()
    check_history(server, start, NOW)
    assert certificate_renewal.read(decoded(server.kept(SECRET))).trusted[1:] == start.trusted


def test_after_the_documented_steps_no_api_server_trusts_the_leaked_ca(
    server: FakeAPIServer,
) -> None:
    guide = (Path(__file__).parents[3] / "docs/user/webhook.md").read_text()
    (script,) = re.findall(r"\bsed '(.*caBundle.*)' \|", guide)
    start = aged(30)
    fill(server, start)
    written = yaml.safe_dump(server.kept(CONFIGURATION), width=10**6)
    replaced = subprocess.run(
        ["sed", script], input=written, capture_output=True, check=True, text=True
    )
    server.keep(CONFIGURATION, yaml.safe_load(replaced.stdout))
    server.keep(SECRET, {"kind": "Secret"})

    maker(server).look()

    trusted = certificate_renewal.read(decoded(server.kept(SECRET))).trusted
    assert len(trusted) == 1
    assert trusted != start.trusted
    assert bundles(server.kept(CONFIGURATION)) == [decoded(server.kept(SECRET))["ca.crt"]] * 2


@pytest.mark.parametrize(
    "data",
    [
        None,
        "text",
        ["list"],
        {"tls.crt": 7, "tls.key": None, "ca.crt": {"a": 1}, "ca.key": ["b"]},
        {"tls.crt": "not base64!", "tls.key": "é", "ca.crt": "AA=A", "ca.key": ""},
        {"tls.crt": encoded(b"\xff\0"), "ca.key": encoded(b"-----BEGIN")},
    ],
)
def test_damaged_data_is_made_anew(server: FakeAPIServer, data: object) -> None:
    server.keep(SECRET, {"kind": "Secret", "data": data})
    maker(server).look()
    for bundle in bundles(server.kept(CONFIGURATION)):
        verify(decoded(server.kept(SECRET))["tls.crt"], bundle, NOW)
    assert maker(server).look().changes == ()


def test_damage_is_reported_and_keys_are_not(
    server: FakeAPIServer, caplog: pytest.LogCaptureFixture
) -> None:
    start = aged(30)
    fill(server, start)
    secret = server.kept(SECRET)
    server.keep(SECRET, {**secret, "data": {**secret["data"], "tls.crt": encoded(b"x")}})
    with caplog.at_level(logging.INFO, "cpupool"):
        maker(server).look()
    told = [record.getMessage() for record in caplog.records]
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert told[0].startswith('unusable, made again object="Secret cpupool/cpupool-webhook-tls"')
    assert "tls.crt cannot be read" in told[0]
    assert told[1].startswith('serving certificate made reason="there is none"')
    made = decoded(server.kept(SECRET))
    keys = [base for name in ("tls.key", "ca.key") for base in made[name].decode().split()]
    assert not any(line in text for line in keys if len(line) > 20 for text in told)


def test_who_comes_second_reads_again(server: FakeAPIServer) -> None:
    first = maker(server)

    def meanwhile() -> datetime:
        # Between this replica's reading and its writing another one does all.
        if not server.updates:
            first.look()
        return NOW

    second = CertificateMaker(APIServer.at(server.url), INSTALLED, now=meanwhile)
    outcome = second.look()
    assert outcome.changes == ()
    assert len(server.updates) == 3
    assert outcome.terms == first.look().terms


def test_somebody_who_writes_all_the_time_is_left_to_it(server: FakeAPIServer) -> None:
    def meanwhile() -> datetime:
        server.keep(SECRET, server.kept(SECRET))
        return NOW

    writing = CertificateMaker(APIServer.at(server.url), INSTALLED, now=meanwhile)
    with pytest.raises(APIError) as conflict:
        writing.look()
    assert conflict.value.status == 409
    assert server.count("update", "secrets") == TRIES
    assert server.updates == []
