"""Whatever is posted to the webhook is answered: with a review, or with what is wrong with it."""

from __future__ import annotations

import copy
import json
import random
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from cpupool.telemetry.health import Health
from cpupool.telemetry.metrics import WebhookMetrics
from cpupool.webhook.admission.rules import Rules
from cpupool.webhook.service import Webhook, WebhookSettings
from tests.mounts import Mount
from tests.pods import ANNOTATION, container, pod, process, review, stored
from tests.webhooks import LOCALHOST, PATIENT, Client, Secret, serving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.webhooks import Answer

REVIEWS = 1250
POOLS = ("exclusive-a", "exclusive-b", "shared-a", "shared-x", "default", "", "a/b")
AMOUNTS = (*("1", "2", "0", "250m", "1e3", "1Ki", "-1", "x", "9" * 30, "1.5"), 2, 1.5, None)
WORDS = (
    "app",
    "$(X)",
    "$$",
    "é\ud800",
    "a\nb",
    "",
    "--",
    "/opt/cpupool/process-starter",
    "x" * 9999,
)
VALUES: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1e300,
    10**400,
    "",
    "x",
    [],
    {},
    [[]],
    {"a": {"b": []}},
    "\ud800",
)
EXAMPLES = Path(__file__).parents[2] / "examples"


def examples() -> list[Any]:
    """Read the pods that people are shown, and some that ask for everything at once."""
    texts = [path.read_text() for path in sorted(EXAMPLES.rglob("*.yaml"))]
    shown = [one for text in texts for one in yaml.safe_load_all(text)]
    both = {"exclusive-a": "2", "shared-a": "300"}
    entry = {
        "container": "main",
        "processes": [process(cpus=2), process("b", pool="shared-a", cpus=300)],
    }
    return [
        *(one for one in shown if isinstance(one, dict) and one.get("kind") == "Pod"),
        pod(container(pools=both, command=["app"], args=["x"])),
        pod(container(pools=both), processes=[entry]),
        pod(
            container("a", pools={"shared-a": "100"}, env=[{"name": "A", "value": "b"}]),
            container("b"),
            initContainers=[container("i", pools={"exclusive-b": 1}, restartPolicy="Always")],
        ),
    ]


class Fuzzer:
    """Makes requests out of pods.

    Args:
        seed: the same one makes the same requests.
        pods: what they are made of.
    """

    def __init__(self, seed: int, pods: list[Any]) -> None:
        self._random = random.Random(seed)
        self._pods = pods

    def valid(self) -> bytes:
        """Make a review of a pod that the API server's schema takes."""
        return self._text(self._review())

    def odd(self) -> bytes:
        """Make a review in which anything may stand somewhere."""
        document = self._review()
        for _ in range(self._random.randint(1, 3)):
            inside, key = self._random.choice(_places(document))
            if isinstance(inside, dict) and self._random.random() < 0.3:
                del inside[key]
            else:
                inside[key] = copy.deepcopy(self._random.choice(VALUES))
        return self._text(document)

    def broken(self) -> bytes:
        """Make the text of a review, and damage it."""
        text = bytearray(self._text(self._review()))
        for _ in range(self._random.randint(1, 4)):
            place = self._random.randrange(len(text))
            text[place : place + self._random.randint(0, 3)] = self._random.randbytes(
                self._random.randint(0, 3)
            )
        return bytes(text[: self._random.choice([len(text), self._random.randrange(len(text))])])

    def garbage(self) -> bytes:
        """Make what is no review at all."""
        depth = self._random.choice([10, 300, 900, 990, 100_000])
        return self._random.choice(
            [
                self._random.randbytes(self._random.randint(0, 2000)),
                self._text(self._random.choice(VALUES)),
                b"[" * depth + b"]" * depth,
                self._text(review(None)).replace(b"null", b'{"a":' * depth + b"1" + b"}" * depth),
                json.dumps(self._review()).encode("utf-16"),
                b"\xef\xbb\xbf" + self._text(self._review()),
            ]
        )

    def _review(self) -> Any:
        return review(
            self._pod(),
            self._random.choice(["CREATE", "CREATE", "CREATE", "UPDATE", "DELETE"]),
            old=self._random.choice([None, self._pod()]),
            uid=str(self._random.getrandbits(64)),
            subResource=self._random.choice(["", "", "ephemeralcontainers", "status"]),
            userInfo={"username": self._random.choice(WORDS)},
        )

    def _pod(self) -> Any:
        body = json.loads(json.dumps(self._random.choice(self._pods)))
        spec = body["spec"]
        for one in [*spec["containers"], *spec.get("initContainers", [])]:
            for change in (self._resources, self._words, self._variables):
                if self._random.random() < 0.3:
                    change(one)
        if self._random.random() < 0.3:
            entries = [self._entry(one["name"]) for one in spec["containers"]]
            body["metadata"].setdefault("annotations", {})[ANNOTATION] = json.dumps(entries)
        if self._random.random() < 0.1:
            spec["resources"] = {"limits": {"cpu": str(self._random.choice(AMOUNTS))}}
        return body

    def _resources(self, one: Any) -> None:
        resources = one.setdefault("resources", {})
        for part in self._random.choice([("limits",), ("requests", "limits")]):
            amounts = resources.setdefault(part, {})
            name = self._random.choice(["cpu", *(f"nokia.k8s.io/{pool}" for pool in POOLS)])
            amounts[name] = self._random.choice(AMOUNTS)

    def _words(self, one: Any) -> None:
        one[self._random.choice(["command", "args"])] = self._random.choices(WORDS, k=3)

    def _variables(self, one: Any) -> None:
        name = self._random.choice(["A", "CPU_POOLS", "SHARED_CPUS", "CPUPOOL_X"])
        one["env"] = [{"name": name, "value": self._random.choice(["shared", "exclusive"])}]

    def _entry(self, name: str) -> Any:
        processes = [
            process(
                *self._random.choices(WORDS, k=2),
                pool=self._random.choice(POOLS),
                cpus=self._random.choice([0, 1, 2, 300]),
            )
            for _ in range(self._random.randint(0, 3))
        ]
        return {"container": name, "processes": processes}

    def _text(self, document: Any) -> bytes:
        return json.dumps(document).encode()


def _places(document: Any) -> list[tuple[Any, Any]]:
    """List every place in a document: what it is in, and where in that."""
    if not isinstance(document, dict | list):
        return []
    inner = document.items() if isinstance(document, dict) else enumerate(document)
    return [place for key, one in inner for place in ((document, key), *_places(one))]


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    pools = Mount(tmp_path / "pools")
    pools.show(a="pools: {exclusive-a: {cpus: 2-5}, shared-a: {cpus: 6-7}, default: {cpus: 0-1}}")
    secret = Secret(tmp_path / "tls")
    secret.rotate()
    settings = WebhookSettings(
        pools.folder,
        secret.certificate,
        secret.key,
        Rules(),
        address=LOCALHOST,
        port=0,
        limits=PATIENT,
    )
    webhook = Webhook(settings, WebhookMetrics(), Health())
    webhook.look()
    with serving(webhook.server), closing(Client(webhook.server.port, secret.trusting())) as made:
        yield made


@pytest.mark.parametrize("make", [Fuzzer.valid, Fuzzer.odd, Fuzzer.broken, Fuzzer.garbage])
def test_every_request_is_answered_well(
    client: Client, make: Callable[[Fuzzer], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING")
    fuzzer = Fuzzer(seed=4, pods=examples())
    kept, answered = None, 0
    for _ in range(REVIEWS):
        body = make(fuzzer)
        answer = client.post("/mutating-pods", body)
        assert kept in (None, client.connection.sock)
        kept = client.connection.sock
        assert not caplog.records, body
        if answer.status == 200:
            _check(json.loads(body), answer)
            answered += 1
        else:
            assert answer.status == 400, body
            assert answer.text.count("\n") == 1, body
            assert answer.text.isprintable() or answer.text[:-1].isprintable(), body
    assert make is Fuzzer.garbage or answered > REVIEWS / 100


def _check(document: Any, answer: Answer) -> None:
    response = answer.document.pop("response")
    assert response["uid"] == document["request"]["uid"]
    assert response["allowed"] is ("status" not in response), document
    assert "patch" not in response or isinstance(
        stored(document["request"]["object"], response), dict
    ), document
