from __future__ import annotations

from itertools import pairwise

from cpupool.loops.attempts import PAUSE_S, Attempt


def test_a_refused_patch_is_tried_later_and_later_up_to_a_minute() -> None:
    attempts = [Attempt(100.0)]
    for _ in range(30):
        attempts.append(attempts[-1].refused(attempts[-1].due_s))

    pauses = [later.due_s - earlier.due_s for earlier, later in pairwise(attempts)]
    assert pauses[:4] == [PAUSE_S, 2.0, 4.0, 8.0]
    assert pauses[-1] == max(pauses) == 60.0
