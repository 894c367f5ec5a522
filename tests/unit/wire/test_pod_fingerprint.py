"""Recorded fingerprints are in tests/conformance/oracle, the laws in tests/properties."""

from __future__ import annotations

from cpupool.wire.pod_fingerprint import fingerprint

WEB, DB = ("default", "web"), ("default", "db")


def test_no_pods_have_a_fingerprint() -> None:
    assert fingerprint(()) == "pfp0v001ef46db3751d8e999"


def test_it_names_exactly_these_pods() -> None:
    assert fingerprint((WEB, DB)) == fingerprint((DB, WEB))
    assert len({fingerprint(pods) for pods in ((WEB,), (DB,), (WEB, DB), (WEB, WEB))}) == 4
