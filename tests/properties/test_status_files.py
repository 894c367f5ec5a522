"""Whatever a status file has in it: its meaning or one clear line, and no byte of a command."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cpupool.manager.status_json import from_json
from tests import statuses
from tests.machines import MACHINES
from tests.printed import EVIL, printed

if TYPE_CHECKING:
    from pathlib import Path

DOCUMENT = statuses.document()
PLACES = list(statuses.places(DOCUMENT))
TEXTS = [path for path in PLACES if isinstance(statuses.at(DOCUMENT, path), str)]
KEYED = ("draining", "pools", "sizes", "sets")
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**25), 10**25)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.sampled_from(EVIL + "a-1,/"), max_size=8)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab\x1b"), inner),
    max_leaves=6,
)
FAST = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    MACHINES["laptop_4c8t"].write(tmp_path)
    return tmp_path / "status.json"


def ask(file: Path, *arguments: str) -> None:
    """Show the file, and explain what is in it: whatever it is, the terminal is safe."""
    options = ("--file", str(file), "--topology", str(file.parent))
    for command in (("status",), ("explain", "ns/a")):
        found = printed(*command, *options, *arguments)
        found.check()
        if found.code == 2:
            found.check_refusal()
        else:
            assert found.out


@given(path=st.sampled_from(PLACES), value=VALUES)
@FAST
def test_another_value_anywhere(file: Path, path: statuses.Path, value: object) -> None:
    file.write_text(json.dumps(statuses.with_value(DOCUMENT, path, value)))
    ask(file)


@given(path=st.sampled_from(PLACES[1:]))
@FAST
def test_a_missing_value(file: Path, path: statuses.Path) -> None:
    file.write_text(json.dumps(statuses.without(DOCUMENT, path)))
    ask(file, "--json")


@given(data=st.data())
@FAST
def test_other_bytes(file: Path, data: st.DataObject) -> None:
    whole = json.dumps(DOCUMENT).encode()
    start = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(start, min(start + 20, len(whole))) | st.just(len(whole)))
    file.write_bytes(whole[:start] + data.draw(st.binary(max_size=8)) + whole[end:])
    ask(file)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(json.dumps(DOCUMENT).encode()[:-1], id="truncated"),
        pytest.param(b"[" * 100_000, id="deep and open"),
        pytest.param(b"[" * 500 + b"]" * 500, id="deep"),
        pytest.param(
            b'{"schema": "cpupool-status/2", "a": ' + b"[" * 101 + b"]" * 101 + b"}", id="in it"
        ),
        pytest.param(b'{"a":' * 100_000, id="deep objects"),
        pytest.param(b"9" * 5000, id="digits"),
        pytest.param(b'{"schema": NaN}', id="NaN"),
        pytest.param(b'{"schema": -Infinity}', id="Infinity"),
        pytest.param(b'{"schema": 1e999}', id="too large"),
        pytest.param(json.dumps(DOCUMENT).encode()[:-1] + b', "lost": []}', id="a key twice"),
        pytest.param(json.dumps(DOCUMENT).encode("utf-16"), id="UTF-16"),
        pytest.param(b"\xef\xbb\xbf" + json.dumps(DOCUMENT).encode(), id="a mark of order"),
        pytest.param(b'{"schema": "\xff"}', id="no UTF-8"),
        pytest.param(b'{"schema": "\\ud800"}', id="half a pair"),
        pytest.param(b" " * (17 << 20), id="long"),
        pytest.param(b'{"schema": "' + b"x" * 10**6 + b'"}', id="a long text"),
        pytest.param(b'{"' + b"x" * 10**6 + b'": 1, "schema": 1}', id="a long key"),
    ],
)
def test_what_is_no_status_is_refused_in_a_line(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    for command in (("status",), ("status", "--json"), ("explain", "ns/a"), ("explain", "--pools")):
        named = () if command[-1] == "--pools" else ("--file",)
        printed(*command, *named, str(file)).check_refusal()


def _evil() -> dict[str, Any]:
    """Return the status with control characters in every text and name that may have them."""
    evil = DOCUMENT
    for path in TEXTS:
        was = statuses.at(evil, path)
        kept = statuses.with_value(evil, path, was + EVIL)
        try:
            # An agent that waits explains nothing.
            evil = evil if from_json(kept).waiting_for else kept
        except ValueError:
            continue
    for key in KEYED:
        evil = {
            **evil,
            key: {**evil[key], **{f"{name}{EVIL}": each for name, each in evil[key].items()}},
        }
    return evil


@pytest.mark.parametrize("colours", [False, True])
@pytest.mark.parametrize("shape", [(), ("--json",), ("--svg",)])
def test_control_characters_anywhere_reach_no_terminal(
    file: Path, shape: tuple[str, ...], colours: bool
) -> None:
    evil = _evil()
    assert json.dumps(evil).count("\\u001b") > 2 * 80
    file.write_text(json.dumps(evil))
    waiting = file.with_name("waiting.json")
    waiting.write_text(json.dumps({**evil, "waiting_for": EVIL}))
    printed("explain", "ns/a", "--file", str(waiting)).check_refusal()
    options = [*shape, *([str(file.parent / "a.svg")] if shape == ("--svg",) else [])]
    options += ["--file", str(file), "--topology", str(file.parent)]
    pods = {container["name"].rpartition("/")[0] for container in evil["containers"]}
    assert pods
    for command in (["status"], *(["explain", pod] for pod in sorted(pods))):
        found = printed(*command, *options, colours=colours)
        found.check(colours=colours)
        assert found.code < 2, found.err
        assert ("\x1b[" in found.out) is (colours and shape != ("--json",))
        # It is shown, not hidden.
        assert "\\u001b]0;owned\\u0007" in found.out
    if shape == ("--svg",):
        assert "\x1b" not in (file.parent / "a.svg").read_text()


def test_one_step_is_one_line(file: Path) -> None:
    reason = "x => 4\n  9. found: its cgroup has these CPUs: it is where it belongs => 4"
    forged = statuses.with_value(DOCUMENT, ("containers", 0, "reason"), reason)
    file.write_text(json.dumps(forged))

    found = printed("explain", "ns/a", "--file", str(file), "--topology", str(file.parent))
    assert not any(
        line.startswith("  9. found") and line.endswith("=> 4") for line in found.out.splitlines()
    )
    assert "x => 4\\u000a  9. found" in found.out


def test_a_stream_of_another_character_set_takes_every_text(file: Path) -> None:
    named = statuses.with_value(DOCUMENT, ("containers", 0, "name"), "ns/münchen/main")
    file.write_text(json.dumps(named))
    for encoding, shown in (("ascii", "m\\xfcnchen"), ("latin-1", "münchen")):
        found = printed(
            "explain",
            "ns/münchen",
            "--file",
            str(file),
            "--topology",
            str(file.parent),
            encoding=encoding,
        )
        assert found.code == 1
        assert f"ns/{shown}/main: 4-6" in found.out
