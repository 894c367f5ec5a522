from __future__ import annotations

import copy
from typing import Any

import pytest

from cpupool.webhook.admission.json_patch import patch


@pytest.mark.parametrize(
    ("before", "after", "changes"),
    [
        ({"a": 1}, {"a": True}, [{"op": "replace", "path": "/a", "value": True}]),
        ({"a/~": 1}, {}, [{"op": "remove", "path": "/a~1~0"}]),
        ({}, {"a": None}, [{"op": "add", "path": "/a", "value": None}]),
        ([1, 2], [1], [{"op": "replace", "path": "", "value": [1]}]),
        (["ab", 2], ["ab", 3], [{"op": "replace", "path": "/1", "value": 3}]),
        ([1], [2, 3], [{"op": "replace", "path": "", "value": [2, 3]}]),
        ([1], {}, [{"op": "replace", "path": "", "value": {}}]),
    ],
)
def test_a_patch_says_what_is_different(before: Any, after: Any, changes: Any) -> None:
    assert patch(before, after) == changes
    assert patch(before, copy.deepcopy(before)) == []
