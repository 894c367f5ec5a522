from __future__ import annotations

from benchmarks.flood import Kind, measure

REQUESTS = 20
CLIENTS = 40


def test_a_flood_fails_no_request_of_a_good_client() -> None:
    """`make flood` does so for 30 minutes with 12,500 clients, and measures how long it takes."""
    figures = dict(measure(4.0, REQUESTS / 4.0, dict.fromkeys(Kind, CLIENTS), 1, None))
    for kind in ("new connections", "a kept connection"):
        assert figures[kind].startswith(f"{REQUESTS // 2} answered, ")
        assert figures[kind].endswith(", 0 failed")
