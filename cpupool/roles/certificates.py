"""Keeps the webhook's certificates in the cluster: its Secret, and the CAs that API servers trust.

Every look reads both objects, decides what is due, and writes only that. Several replicas may look
at once: each write carries the version that was read, and who comes second reads again.

A certificate is never where a client does not trust it yet, because of two orders:

* the bundle is in the webhook's configuration before a certificate that needs it is in the Secret;
* the configuration is read before the Secret, so a replica with an old Secret has an old version
  of the configuration, too, and cannot take a new CA out of it again.
"""

from __future__ import annotations

import base64
import binascii
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from cpupool.core.errors import CPUPoolError
from cpupool.https import certificates
from cpupool.kube.client import APIError
from cpupool.kube.connection import APIConnection
from cpupool.kube.reflector import Reflector
from cpupool.kube.resources import SECRETS, WEBHOOK_CONFIGURATIONS
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cpupool.https.certificates import Term
    from cpupool.kube.client import APIServer
    from cpupool.kube.resources import APIPath
    from cpupool.kube.views import Body

log = logs.get(__name__)

NAME: Final = "certificates"
LOOK_S: Final = 60.0
"""Two small requests: what is due, and what the watch of the configuration has not shown."""
REST_S: Final = 0.25
"""Between two looks, however often the configuration changes."""
LONGEST_PAUSE_S: Final = 300.0
TRIES: Final = 10


class NotInstalled(CPUPoolError):
    """An object of the webhook is not there, or may not be read or written.

    Attributes:
        title: the object, as `Secret cpupool/cpupool-webhook-tls`.
    """

    def __init__(self, title: str, what: str) -> None:
        self.title = title
        super().__init__(
            f"{title}: {what}; apply the webhook's manifests: kubectl apply -k daemonsets/webhook"
        )


@dataclass(frozen=True, slots=True)
class Installed:
    """The webhook's objects by name.

    Attributes:
        namespace: where the Secret and the Service are.
        secret: holds the certificates and their keys.
        service: as which the API servers call the webhook.
        configuration: the MutatingWebhookConfiguration, which names the CAs that they trust.
    """

    namespace: str
    secret: str
    service: str
    configuration: str


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that a look has changed.

    Attributes:
        what: what was made or written.
        why: why that was due.
    """

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a look has come to.

    Attributes:
        changes: what has become different, in the order in which it has.
        terms: how long the certificates that the Secret holds now will do, by name.
    """

    changes: tuple[Change, ...]
    terms: Mapping[str, Term]


class CertificateKeeper:
    """Makes the webhook's certificates, renews them, and names their CAs to the API servers.

    Args:
        server: the API server.
        installed: what the webhook's objects are called.
        now: the time, in UTC.
    """

    def __init__(
        self,
        server: APIServer,
        installed: Installed,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._connection = connection = APIConnection(server)
        self._now = now
        self._news = threading.Event()
        self._names = certificates.service_names(installed.service, installed.namespace)
        self._secret = _Object(
            connection,
            SECRETS.object(installed.secret, installed.namespace),
            f"Secret {installed.namespace}/{installed.secret}",
        )
        self._configuration = _Object(
            connection,
            WEBHOOK_CONFIGURATIONS.object(installed.configuration),
            f"MutatingWebhookConfiguration {installed.configuration}",
        )
        self._watch = Reflector(
            server,
            WEBHOOK_CONFIGURATIONS.collection(),
            _webhooks,
            fields=f"metadata.name={installed.configuration}",
            changed=self._news.set,
        )

    def loops(
        self, beat: Callable[[str], None] = lambda _loop: None
    ) -> Mapping[str, Callable[[threading.Event], None]]:
        """Return what must run, by name.

        Args:
            beat: called by each loop with its name, as it turns.
        """
        loops = {NAME: self.run, "webhook configuration watch": self._watch.run}
        return {name: partial(run, beat=partial(beat, name)) for name, run in loops.items()}

    def wake(self) -> None:
        """Let every loop notice that it shall stop."""
        self._connection.interrupt()
        self._news.set()
        self._watch.wake()

    def run(self, stop: threading.Event, beat: Callable[[], None] = lambda: None) -> None:
        """Look until `stop` is set and `wake` called.

        The next look is due when the watch shows another configuration, after a minute, and sooner
        after trouble. Without the right to watch, a deleted and applied configuration waits for
        that minute, and the watch logs what to do.

        Args:
            stop: ends it.
            beat: called before each look.
        """
        failures = 0
        rest_s = REST_S
        logged: Mapping[str, Term] = {}
        while True:
            beat()
            self._connection.resume()
            self._news.clear()
            if stop.is_set():
                return
            pause_s = LOOK_S
            try:
                outcome = self.look()
                failures = 0
                if outcome.terms != logged:
                    log.info("certificates are good", **_ends(outcome.terms))
                logged = outcome.terms
                # Another controller may undo each write, and answers a write as fast as this one.
                rest_s = min(2 * rest_s, LOOK_S) if outcome.changes else REST_S
            except CPUPoolError as error:
                if stop.is_set():
                    return
                logged = {}
                pause_s = min(2.0 ** min(failures, 20), LONGEST_PAUSE_S)
                failures += 1
                log.warning("certificates not looked at", reason=error, again_in_s=pause_s)
            stop.wait(rest_s)
            self._news.wait(pause_s)

    def look(self) -> Outcome:
        """Make and write what is due.

        Raises:
            NotInstalled: an object is missing, or a right.
            APIError: the API server does not answer, or refuses, or others write all the time.
        """
        changes: list[Change] = []
        for _ in range(TRIES - 1):
            try:
                return self._look(changes)
            except APIError as error:
                if error.status != 409:
                    raise
        return self._look(changes)

    def _look(self, changes: list[Change]) -> Outcome:
        configuration = self._configuration.read()
        if not _webhooks(configuration):
            raise NotInstalled(self._configuration.title, "there is no webhook in it")
        secret = self._secret.read()
        now = self._now()
        data = _data(secret)
        held = certificates.read(data, _in_use(configuration))
        for problem in held.problems:
            log.warning("unusable, made again", object=self._secret.title, what=problem)
        held = certificates.without_expired(held, now)
        what, why = "bundle tidied", "a CA has expired or cannot be read"
        if due := certificates.ca_due(held, self._names, now):
            held = certificates.with_ca(held, now)
            what, why = "CA made", due
        if any(data.get(entry) != text for entry, text in held.ca_data().items()):
            secret = self._secret.write(_with_data(secret, held.ca_data()))
            _note(changes, what, why, held.terms())
        trusting = _with_bundle(configuration, held.bundle)
        if trusting != configuration:
            self._configuration.write(trusting)
            _note(changes, "bundle published", "the configuration had another one", held.terms())
        if due := certificates.serving_due(held, self._names, now):
            held = certificates.with_serving(held, self._names, now)
            self._secret.write(_with_data(secret, held.serving_data()))
            _note(changes, "serving certificate made", due, held.terms())
        return Outcome(tuple(changes), held.terms())


class _Object:
    """One object of the API server's.

    Args:
        connection: reads and writes it.
        path: where it is.
        title: what people call it.
    """

    def __init__(self, connection: APIConnection, path: APIPath, title: str) -> None:
        self._connection = connection
        self._path = path
        self.title = title

    def read(self) -> Body:
        try:
            return self._connection.get(self._path)
        except APIError as error:
            raise self._explained(error, "get") from error

    def write(self, body: Body) -> Body:
        try:
            return self._connection.update(self._path, body)
        except APIError as error:
            raise self._explained(error, "update") from error

    def _explained(self, error: APIError, verb: str) -> CPUPoolError:
        if error.status == 404:
            return NotInstalled(self.title, "there is none")
        if error.status == 403:
            return NotInstalled(self.title, f"there is no right to {verb} it")
        return error


def _note(changes: list[Change], what: str, why: str, terms: Mapping[str, Term]) -> None:
    changes.append(Change(what, why))
    log.info(what, reason=why, **_ends(terms))


def _ends(terms: Mapping[str, Term]) -> Mapping[str, object]:
    return {f"{name}_until": term.until.isoformat() for name, term in terms.items()}


def _data(secret: Body) -> dict[str, bytes]:
    """Decode a Secret's entries; what is no base64 is as good as absent."""
    data = secret.get("data")
    entries = data.items() if isinstance(data, dict) else ()
    return {name: text for name, value in entries if (text := _decoded(value))}


def _decoded(value: Any) -> bytes:  # noqa: ANN401 - JSON may hold anything
    try:
        return base64.b64decode(value, validate=True)
    except (TypeError, ValueError, binascii.Error):
        return b""


def _encoded(text: bytes) -> str:
    return base64.b64encode(text).decode("ascii")


def _with_data(secret: Body, entries: Mapping[str, bytes]) -> Body:
    held = secret.get("data")
    kept = held if isinstance(held, dict) else {}
    new = {name: _encoded(text) for name, text in entries.items()}
    return {**secret, "data": {**kept, **new}}


def _webhooks(configuration: Body) -> list[Body]:
    webhooks = configuration.get("webhooks")
    return webhooks if isinstance(webhooks, list) else []


def _in_use(configuration: Body) -> bytes:
    webhooks = _webhooks(configuration)
    return b"\n".join(_decoded(webhook["clientConfig"].get("caBundle", "")) for webhook in webhooks)


def _with_bundle(configuration: Body, bundle: bytes) -> Body:
    text = _encoded(bundle)
    webhooks = [
        {**webhook, "clientConfig": {**webhook["clientConfig"], "caBundle": text}}
        for webhook in _webhooks(configuration)
    ]
    return {**configuration, "webhooks": webhooks}
