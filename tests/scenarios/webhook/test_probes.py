from __future__ import annotations

import json
import ssl
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
import trustme

from tests.pods import container, pod, review
from tests.scenarios.webhook.processes import BAD, Here, asking
from tests.waiting import eventually
from tests.webhooks import LOCALHOST

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class TestProbes:
    def test_it_is_ready_while_it_has_a_certificate_and_is_not_asked_to_end(
        self, tmp_path: Path
    ) -> None:
        here = Here(tmp_path)
        with here.running():
            eventually(lambda: "cpupool certs" in here.page("/readyz")[1], "it says what it needs")
            assert here.page("/readyz")[0] == 503
            eventually(lambda: here.page("/healthz") == (200, "server: ok\nwebhook: ok\n"), "alive")
            here.files.secret.rotate()
            eventually(lambda: here.page("/readyz") == (200, "certificate: ok\n"), "it is ready")

    def test_it_is_not_ready_for_as_long_as_it_ends(self, here: Here) -> None:
        def slowly() -> Iterator[bytes]:
            """Send a request of which half is there when the end begins."""
            text = json.dumps(asking()).encode()
            yield text[:100]
            here.stop.set()
            eventually(lambda: "it is ending" in here.page("/readyz")[1], "it says so")
            for _ in range(3):
                assert here.page("/readyz")[0] == 503
                assert here.page("/healthz")[0] == 200
            yield text[100:]

        with here.running():
            eventually(lambda: here.page("/readyz")[0] == 200, "it is ready")
            assert here.ask(slowly()).status == 200

    @pytest.mark.parametrize("version", [None, 9])
    def test_a_pair_that_is_bad_is_kept_out_and_reported_once(
        self, here: Here, version: int | None, caplog: pytest.LogCaptureFixture
    ) -> None:
        with here.running():
            eventually(lambda: here.page("/readyz")[0] == 200, "it is ready")
            bad = "no certificate"
            if version:
                good = ssl.PEM_cert_to_DER_cert(here.files.secret.certificate.read_text())
                of_version_3 = b"\xa0\x03\x02\x01\x02"
                changed = good.replace(of_version_3, of_version_3[:-1] + bytes([version]), 1)
                assert changed != good
                bad = ssl.DER_cert_to_PEM_cert(changed)
            here.files.secret.show(bad, here.files.secret.key.read_text())
            eventually(lambda: "certificate not taken" in caplog.text, "it says so")
            for _ in range(3):
                here.webhook.look()
            assert caplog.text.count("certificate not taken") == 1
            assert here.page("/readyz")[0] == 200
            assert here.ask(asking()).status == 200

    def test_a_key_that_cannot_be_read_is_reported_with_what_to_do(self, tmp_path: Path) -> None:
        here = Here(tmp_path)
        here.files.secret.certificate.touch()
        here.files.secret.key.mkdir()
        with here.running():
            eventually(
                lambda: "tls.key: Is a directory; let this process" in here.page("/readyz")[1],
                "it says so",
            )

    def test_a_certificate_that_has_expired_is_reported(
        self, here: Here, caplog: pytest.LogCaptureFixture
    ) -> None:
        pair = trustme.CA().issue_cert(LOCALHOST, not_after=datetime(2020, 1, 1, tzinfo=UTC))
        certificate = pair.cert_chain_pems[0].bytes().decode()
        with here.running():
            eventually(lambda: here.page("/readyz")[0] == 200, "it is ready")
            assert "expired" not in caplog.text
            here.files.secret.show(certificate, pair.private_key_pem.bytes().decode())
            eventually(lambda: "certificate has expired" in caplog.text, "it says so")


class TestMetrics:
    REVIEWS = "cpupool_admission_reviews_total"

    def test_reviews_are_counted_by_what_becomes_of_them(
        self, here: Here, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with here.running():
            eventually(lambda: here.page("/readyz")[0] == 200, "it is ready")
            here.ask(asking())
            here.ask(asking("exclusive-x"))
            here.ask(review(pod(container()), "UPDATE", old=pod(container())))
            here.ask(review(pod(), "DROP TABLE"))
            assert here.ask({}).status == 400
            with monkeypatch.context() as patched:
                patched.setattr("cpupool.webhook.admission.review.admit", lambda *_: 1 / 0)
                assert here.ask(asking()).status == 500
            for operation, decision, count in (
                ("CREATE", "mutated", 1),
                ("CREATE", "denied", 1),
                ("CREATE", "failed", 1),
                ("UPDATE", "allowed", 1),
                ("other", "allowed", 1),
                ("other", "unreadable", 1),
            ):
                labels = f'{{decision="{decision}",operation="{operation}"}}'
                assert here.measured(self.REVIEWS + labels) == count
            assert here.measured("cpupool_admission_review_duration_seconds_count") == 6
            assert here.measured('cpupool_https_refused_total{status="400"}') == 1
            assert here.measured('cpupool_https_refused_total{status="500"}') == 1
            assert "cpupool_containers" not in here.page("/metrics")[1]

    def test_the_pool_files_are_reported_to_be_good_or_bad(self, here: Here) -> None:
        def valid(number: int) -> bool:
            return here.measured("cpupool_config_valid") == number

        with here.running():
            eventually(lambda: valid(1), "they are good")
            here.files.pools.show(worker=BAD)
            eventually(lambda: valid(0), "they are bad")
            here.files.pools.show()
            eventually(lambda: valid(1), "there are none")
            response = here.ask(asking("exclusive-x")).document["response"]
            assert response["allowed"]

    def test_the_certificates_end_is_reported(self, here: Here) -> None:
        # trustme's certificates are good until 2999 is over.
        with here.running():
            eventually(
                lambda: here.measured("cpupool_certificate_expiry_timestamp_seconds") > 3e10,
                "its end",
            )


class TestLog:
    def test_what_is_done_to_a_pod_is_reported_in_one_line_with_who_asked(
        self, here: Here, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("INFO", "cpupool")
        with here.running():
            eventually(lambda: here.page("/readyz")[0] == 200, "it is ready")
            caplog.clear()
            here.ask(asking(dryRun=True))
            here.ask(asking("exclusive-x"))
            here.ask(review(pod(container())))
            hostile = asking() | {}
            hostile["request"] |= {"userInfo": {"username": "a\nb c"}, "namespace": 5}
            here.ask(hostile)
        lines = [line for line in caplog.messages if line.startswith("pod ")]
        user = "user=system:serviceaccount:apps:deployer"
        assert lines[0] == f"pod completed pod=apps/a {user} operation=CREATE dry_run=true"
        assert lines[1].startswith(f"pod denied pod=apps/a {user} operation=CREATE reason=")
        assert lines[2:] == ['pod completed pod=5/a user="a\\nb c" operation=CREATE']
