"""Reviews pods for the API server, by the pool files and with the certificate of the moment.

Both are mounted folders that others write: the files of now are compared with those that were
looked at last, and events only say *look now*. What cannot be used changes nothing: the last good
pools and the last good certificate stay.

The API server is asked about nothing but the ConfigMap that the folder of pool files shows late,
and the namespaces of pods with OpenShift's resource for shared CPUs.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from cpupool.config import poolconfig
from cpupool.config.poolconfig import Source
from cpupool.core.errors import HostFileError, Problem, RemoteProtocolError, errors_in
from cpupool.core.names import DNS_LABEL
from cpupool.host.files import DirectoryWatch
from cpupool.host.installed_policies import find_policy
from cpupool.host.pool_files import PoolFiles
from cpupool.kube.client import APIError
from cpupool.kube.config_map import CONFIG_MAP_WATCH, ConfigMapWatch
from cpupool.kube.connection import APIConnection
from cpupool.kube.resources import NAMESPACES
from cpupool.loops.step_loop import StepLoop
from cpupool.telemetry import log as logs
from cpupool.webhook.admission import review
from cpupool.webhook.admission.mixed_cpus import NamespaceUnknown
from cpupool.webhook.https.expiry import expires
from cpupool.webhook.https.server import CertificateError, HTTPSServer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cpupool.kube.client import APIServer
    from cpupool.kube.config_map import ConfigMapName
    from cpupool.telemetry.health import Health
    from cpupool.telemetry.metrics import WebhookMetrics
    from cpupool.webhook.admission.rules import Rules
    from cpupool.webhook.https.application import Limits

log = logs.get(__name__)

NAME: Final = "webhook"
SERVER: Final = "server"
CERTIFICATE: Final = "certificate"
_CHECK_S: Final = 10.0
"""How often the folders are looked at without an event."""
_SILENT_S: Final = 60.0
_WATCH_SILENT_S: Final = 300.0
"""Longer than a watch without an edit, and a server that hangs at its end."""
_OPERATIONS: Final = ("CREATE", "UPDATE", "DELETE", "CONNECT")
_SHOWN_CHARACTERS: Final = 1000
_ASK_S: Final = 2.0
"""How long a question may take in all; the API server waits for 5 s itself meanwhile."""
_STEP_S: Final = 1.0
"""How long it may be silent: to connect, for TLS, and for the response."""


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """The settings of the webhook.

    Attributes:
        config: the folder with `poolconfig-<name>.yaml` files; missing or empty where the pools of
            the cluster are not to be known.
        certificate: the PEM file of the serving certificate.
        key: the PEM file of its key.
        rules: what to go by beside the pools.
        address: where to listen; empty for every address.
        port: 0 for any free port.
        limits: how much it takes upon itself.
        api_server: where to ask about namespaces; None where there is no API server to ask.
        config_map: the ConfigMap that `config` shows; None where the folder alone counts.
    """

    config: Path
    certificate: Path
    key: Path
    rules: Rules
    address: str = ""
    port: int = 8443
    limits: Limits | None = None
    api_server: APIServer | None = None
    config_map: ConfigMapName | None = None


class Webhook(StepLoop):
    """The role that answers the API server.

    Args:
        settings: its settings.
        metrics: counts every review, and shows whether the newest pool files are in force.
        health: hears that the loops turn, and whether there is a certificate.

    Attributes:
        server: what `run` lets answer; its own `run` is a loop beside those of `loops`.

    Raises:
        CannotListen: the port cannot be had.
    """

    def __init__(self, settings: WebhookSettings, metrics: WebhookMetrics, health: Health) -> None:
        folders = {settings.config, settings.certificate.parent, settings.key.parent}
        super().__init__(
            partial(health.beat, NAME),
            [DirectoryWatch(folder, lambda _path: self._wake.set()) for folder in folders],
        )
        self._settings = settings
        self._metrics = metrics
        self._health = health
        self._rules = settings.rules
        if settings.api_server is not None:
            ask = partial(_namespace_annotations, settings.api_server)
            self._rules = replace(settings.rules, namespaces=ask)
        self._config_map = (
            ConfigMapWatch(
                settings.api_server,
                settings.config_map,
                changed=self._wake.set,
                restarted=metrics.watch_restarted,
            )
            if settings.api_server and settings.config_map
            else None
        )
        self._pool_files = PoolFiles(settings.config, self._config_map, optional=True)
        self._texts: Mapping[str, bytes] | str | None = None
        self._pair: tuple[bytes, bytes] | str | None = None
        self.server = HTTPSServer(
            settings.address,
            settings.port,
            {
                "/mutating-pods": partial(self.review, mutate=True),
                "/validating-pods": partial(self.review, mutate=False),
            },
            beat=partial(health.beat, SERVER),
            refused=metrics.refused,
            limits=settings.limits,
        )
        for loop in (NAME, SERVER):
            health.expect(loop, _SILENT_S)
        if self._config_map:
            health.expect(CONFIG_MAP_WATCH, _WATCH_SILENT_S)
        health.set(CERTIFICATE, ok=False, message="it is starting; wait")

    def loops(self) -> Mapping[str, Callable[[threading.Event], None]]:
        """Return what must run, by name, beside the server."""
        loops = {NAME: self.run}
        if self._config_map:
            beat = partial(self._health.beat, CONFIG_MAP_WATCH)
            loops[CONFIG_MAP_WATCH] = partial(self._config_map.run, beat=beat)
        return loops

    def step(self) -> float:
        """Look at the pool files and the certificate; return the seconds to the next step."""
        with logs.operation("config"):
            self.look()
        return _CHECK_S

    def wake(self) -> None:
        """Look now; once `run` is to end, be ready for no more requests."""
        self._health.set(NAME, ok=False, message="it is ending; ask another one")
        super().wake()
        if self._config_map:
            self._config_map.wake()

    def look(self) -> None:
        """Go by the pool files and the certificate of now, or tell why not."""
        self._look_at_pools()
        self._look_at_certificate()

    def review(self, document: object, *, mutate: bool) -> dict[str, Any]:
        """Answer an AdmissionReview.

        Raises:
            RemoteProtocolError: the document is none.
        """
        begun_s = time.perf_counter()
        asked = _part(document, "request")
        decision = "failed"
        try:
            answer = review.answer(document, self._rules, mutate=mutate)
            decision = _tell(asked, answer["response"])
        except RemoteProtocolError:
            decision = "unreadable"
            raise
        finally:
            operation = asked.get("operation")
            known = str(operation) if operation in _OPERATIONS else "other"
            self._metrics.reviewed(known, decision, time.perf_counter() - begun_s)
        return answer

    def _look_at_pools(self) -> None:
        texts: Mapping[str, bytes] | str
        try:
            texts = self._pool_files.read()
        except (HostFileError, OSError) as error:
            texts = str(error)
        if texts == self._texts:
            return
        self._texts = texts
        if isinstance(texts, str):
            self._refuse([texts])
            return
        problems: list[Problem] = []
        sources = itertools.starmap(Source.of, texts.items())
        files = poolconfig.parse_all(sources, self._rules.names, problems, find_policy=find_policy)
        if refused := errors_in(problems):
            self._refuse([str(problem) for problem in refused])
            return
        for file in files:
            if file.unusable:
                so = "pods are judged by its pools, and by the words of every policy"
                log.warning("pool file", problem=file.unusable, so=so)
        self._rules = self._rules.knowing([file.pools for file in files])
        self._metrics.config_valid(valid=True)
        pools = self._rules.pools
        if pools is None:
            log.warning(
                "pools not known, requests are checked by their form",
                folder=self._settings.config,
            )
        else:
            log.info("pools known", files=len(files), pools=", ".join(sorted(pools)))

    def _refuse(self, problems: list[str]) -> None:
        self._metrics.config_valid(valid=False)
        for problem in problems:
            log.error("pool file", problem=problem)
        kept = "are not known" if self._rules.pools is None else "of before stay"
        log.error("pool configuration refused", problems=len(problems), so=f"the pools {kept}")

    def _look_at_certificate(self) -> None:
        certificate, key = self._settings.certificate, self._settings.key
        pair: tuple[bytes, bytes] | str
        try:
            pair = certificate.read_bytes(), key.read_bytes()
        except FileNotFoundError as error:
            pair = (
                f"{error.filename}: there is none yet; in a cluster wait for `cpupool certs` or"
                " cert-manager, elsewhere give --tls-cert-file and --tls-private-key-file"
            )
        except OSError as error:
            pair = f"{error.filename}: {error.strerror}; let this process read it"
        if pair == self._pair:
            return
        self._pair = pair
        if isinstance(pair, str):
            self._go_without(pair)
            return
        try:
            expiry = expires(pair[0])
            self.server.present(certificate, key)
        except (CertificateError, ValueError) as error:
            self._go_without(str(error))
            return
        self._metrics.certificate_expires(expiry.timestamp())
        self._health.set(CERTIFICATE, ok=True)
        log.info("certificate in use", file=certificate, expires=expiry.isoformat())
        if expiry <= datetime.now(UTC):
            log.warning("certificate has expired", so="API servers refuse it; renew it")

    def _go_without(self, reason: str) -> None:
        kept = "the one before stays" if self.server.presents else "nothing is served"
        log.warning("certificate not taken", reason=reason, so=kept)
        if not self.server.presents:
            self._health.set(CERTIFICATE, ok=False, message=reason)


def _namespace_annotations(server: APIServer, namespace: str) -> Mapping[str, Any]:
    """Ask for a namespace, and do not remember: what it allows can be taken back at any time.

    Raises:
        NamespaceUnknown: there is no response in time, or it is a refusal.
    """
    if not DNS_LABEL.fullmatch(namespace):
        raise NamespaceUnknown("no namespace can be called so; correct it")
    connection = APIConnection(server)
    late = threading.Timer(_ASK_S, connection.interrupt)
    late.start()
    try:
        body = connection.get(NAMESPACES.object(namespace), timeout_s=_STEP_S)
    except APIError as error:
        silent = f"the API server has not answered within {_ASK_S:g} s; see why"
        raise NamespaceUnknown(silent if connection.interrupted else str(error)) from error
    finally:
        late.cancel()
    return _part(_part(body, "metadata"), "annotations")


def _tell(asked: Mapping[str, Any], response: Mapping[str, Any]) -> str:
    """Log what is done to a pod, and name it in a word."""
    if response["allowed"] and "patch" not in response:
        return "allowed"
    facts = {
        "pod": f"{asked.get('namespace') or 'default'}/{_name(asked)}",
        "user": _part(asked, "userInfo").get("username"),
        "operation": asked.get("operation"),
    }
    shown = {name: str(value)[:_SHOWN_CHARACTERS] for name, value in facts.items()}
    if asked.get("dryRun") is True:
        shown["dry_run"] = "true"
    if response["allowed"]:
        log.info("pod completed", **shown)
        return "mutated"
    log.info("pod denied", **shown, reason=response["status"]["message"][:_SHOWN_CHARACTERS])
    return "denied"


def _name(asked: Mapping[str, Any]) -> object:
    metadata = _part(_part(asked, "object"), "metadata")
    return asked.get("name") or metadata.get("name") or metadata.get("generateName") or "(no name)"


def _part(document: object, key: str) -> Mapping[str, Any]:
    """Return a part of a document that may be anything."""
    part = document.get(key) if isinstance(document, Mapping) else None
    return part if isinstance(part, Mapping) else {}
