"""What doctor prints, by part."""

from __future__ import annotations

Rows = dict[str, list[dict[str, str]]]
NOBODY = "http://127.0.0.1:9"


def verdicts(rows: Rows) -> dict[str, list[str]]:
    return {check: [row["verdict"] for row in found] for check, found in rows.items()}
