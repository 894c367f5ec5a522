"""Makes the webhook's certificates: those in its Secret, and the CAs that API servers trust.

Every look reads both objects, decides what is due, and writes only that. Several may look at once:
each write carries the version that was read, and who comes second reads again.

A certificate is never where a client does not trust it yet, because of two orders:

* the bundle is in the webhook's configuration before a certificate that needs it is in the Secret;
* the configuration is read before the Secret, so who has an old Secret has an old version of the
  configuration, too, and cannot take a new CA out of it again.

An end between two writes costs nothing for the same reason: the next look goes on.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from cpupool.kube.client import APIError
from cpupool.kube.connection import APIConnection
from cpupool.telemetry import log as logs
from cpupool.webhook.https import certificate_renewal
from cpupool.webhook.objects import NotInstalled, WebhookObjects, webhooks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cpupool.kube.client import APIServer
    from cpupool.kube.views import Body
    from cpupool.webhook.https.certificate_renewal import Term
    from cpupool.webhook.objects import Installed

log = logs.get(__name__)

TRIES: Final = 10


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
class LookResult:
    """The result of a look.

    Attributes:
        changes: the changes, in their order.
        terms: name → the expiry and renewal of each certificate that the Secret has now.
    """

    changes: tuple[Change, ...]
    terms: Mapping[str, Term]


class CertificateMaker:
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
        objects = WebhookObjects(APIConnection(server), installed)
        self._secret = objects.secret
        self._configuration = objects.configuration
        self._now = now
        self._names = certificate_renewal.service_names(installed.service, installed.namespace)

    def look(self) -> LookResult:
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

    def _look(self, changes: list[Change]) -> LookResult:
        configuration = self._configuration.read()
        if not webhooks(configuration):
            raise NotInstalled(self._configuration.title, "there is no webhook in it")
        secret = self._secret.read()
        now = self._now()
        data = _data(secret)
        contents = certificate_renewal.read(data, _in_use(configuration))
        for problem in contents.problems:
            log.warning("unusable, made again", object=self._secret.title, what=problem)
        contents = certificate_renewal.without_expired(contents, now)
        what, why = "bundle tidied", "a CA has expired or cannot be read"
        if due := certificate_renewal.ca_due(contents, self._names, now):
            contents = certificate_renewal.with_ca(contents, now)
            what, why = "CA made", due
        if any(data.get(entry) != text for entry, text in contents.ca_data().items()):
            secret = self._secret.write(_with_data(secret, contents.ca_data()))
            _note(changes, what, why, contents.terms())
        trusting = _with_bundle(configuration, contents.bundle)
        if trusting != configuration:
            self._configuration.write(trusting)
            _note(
                changes, "bundle published", "the configuration had another one", contents.terms()
            )
        if due := certificate_renewal.serving_due(contents, self._names, now):
            contents = certificate_renewal.with_serving(contents, self._names, now)
            self._secret.write(_with_data(secret, contents.serving_data()))
            _note(changes, "serving certificate made", due, contents.terms())
        if not changes:
            log.info("certificates are good", **_ends(contents.terms()))
        return LookResult(tuple(changes), contents.terms())


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
    data = secret.get("data")
    kept = data if isinstance(data, dict) else {}
    new = {name: _encoded(text) for name, text in entries.items()}
    return {**secret, "data": {**kept, **new}}


def _in_use(configuration: Body) -> bytes:
    return b"\n".join(
        _decoded(webhook["clientConfig"].get("caBundle", "")) for webhook in webhooks(configuration)
    )


def _with_bundle(configuration: Body, bundle: bytes) -> Body:
    text = _encoded(bundle)
    trusting = [
        {**webhook, "clientConfig": {**webhook["clientConfig"], "caBundle": text}}
        for webhook in webhooks(configuration)
    ]
    return {**configuration, "webhooks": trusting}
