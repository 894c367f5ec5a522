"""Keeps the webhook's certificates valid: sees when a look at them is due, and starts it.

`https/certificate_renewal.py` decides what is renewed, and `certificate_maker.py` writes it. A look
needs a library that takes 10 MiB. Its decision follows from two objects and from the time. So this
process compares the versions of the objects with those of the last look, and another process, which
ends afterwards, has the library.
"""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from cpupool.core.errors import CPUPoolError
from cpupool.kube.connection import APIConnection
from cpupool.kube.reflector import Reflector
from cpupool.kube.resources import WEBHOOK_CONFIGURATIONS
from cpupool.telemetry import log as logs
from cpupool.webhook.objects import WebhookObjects, webhooks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cpupool.kube.client import APIServer
    from cpupool.webhook.objects import Installed

log = logs.get(__name__)

NAME: Final = "certificates"
COMPARE_S: Final = 60.0
"""Two small requests: what the watch of the configuration does not show."""
LOOK_S: Final = 3600.0
"""Only time makes something due then: months before the end of a certificate."""
REST_S: Final = 0.25
"""Between two comparisons, however often the configuration changes."""
LONGEST_PAUSE_S: Final = 300.0


class CertificateKeeper:
    """Has the certificates looked at when an object of theirs has changed, and every hour.

    Args:
        server: the API server.
        installed: what the webhook's objects are called.
        look: makes and writes what is due.
        clock_s: the time of the hour.
    """

    def __init__(
        self,
        server: APIServer,
        installed: Installed,
        look: Callable[[], object],
        *,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connection = connection = APIConnection(server)
        self._objects = WebhookObjects(connection, installed)
        self._look = look
        self._clock_s = clock_s
        self._good: object = None
        self._looked_s = 0.0
        self._news = threading.Event()
        self._watch = Reflector(
            server,
            WEBHOOK_CONFIGURATIONS.collection(),
            webhooks,
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
        """Let every loop notice `stop`."""
        self._connection.interrupt()
        self._news.set()
        self._watch.wake()

    def run(self, stop: threading.Event, beat: Callable[[], None] = lambda: None) -> None:
        """Compare, and look where that is due, until `stop` is set and `wake` called.

        The next comparison is due when the watch shows another configuration, after a minute, and
        sooner after trouble. Without the right to watch, a deleted and applied
        configuration waits for that minute, and the watch logs what to do.

        Args:
            stop: ends it.
            beat: called before each comparison.
        """
        failures = 0
        rest_s = REST_S
        for _ in self._connection.turns(stop, beat):
            self._news.clear()
            pause_s = COMPARE_S
            try:
                # Another controller may undo each write, and answers a write as fast as this one.
                rest_s = min(2 * rest_s, COMPARE_S) if self._turn() else REST_S
                failures = 0
            except CPUPoolError as error:
                if stop.is_set():
                    return
                pause_s = min(2.0 ** min(failures, 20), LONGEST_PAUSE_S)
                failures += 1
                log.warning("certificates not looked at", reason=error, again_in_s=pause_s)
            stop.wait(rest_s)
            self._news.wait(pause_s)

    def _turn(self) -> bool:
        """Look if that is due; return whether an object has changed by that."""
        seen, now_s = self._versions(), self._clock_s()
        if seen == self._good and now_s < self._looked_s + LOOK_S:
            return False
        self._look()
        # What was written meanwhile, by the look or by others, may have come after it had read.
        self._good = seen if self._versions() == seen else None
        self._looked_s = now_s
        return self._good is None

    def _versions(self) -> object:
        both = self._objects.configuration.read(), self._objects.secret.read()
        return [body["metadata"]["resourceVersion"] for body in both]
