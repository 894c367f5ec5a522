"""The webhook's Secret and its MutatingWebhookConfiguration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cpupool.core.errors import CPUPoolError
from cpupool.kube.client import APIError
from cpupool.kube.resources import SECRETS, WEBHOOK_CONFIGURATIONS

if TYPE_CHECKING:
    from cpupool.kube.connection import APIConnection
    from cpupool.kube.resources import APIPath
    from cpupool.kube.views import Body


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


class WebhookObject:
    """One of the two objects.

    Args:
        connection: reads and writes it.
        path: where it is.
        title: what people call it.

    Attributes:
        title: the same.
    """

    def __init__(self, connection: APIConnection, path: APIPath, title: str) -> None:
        self._connection = connection
        self._path = path
        self.title = title

    def read(self) -> Body:
        """Return the object.

        Raises:
            NotInstalled: it is missing, or the right to get it.
            APIError: the API server does not answer, or refuses.
        """
        try:
            return self._connection.get(self._path)
        except APIError as error:
            raise self._explained(error, "get") from error

    def write(self, body: Body) -> Body:
        """Replace the object by this body, which has the version that was read; return the new one.

        Raises:
            NotInstalled: it is missing, or the right to update it.
            APIError: the API server does not answer, or refuses; 409: others have written it.
        """
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


class WebhookObjects:
    """Both objects.

    Args:
        connection: reads and writes them.
        installed: their names.

    Attributes:
        secret: the Secret.
        configuration: the MutatingWebhookConfiguration.
    """

    def __init__(self, connection: APIConnection, installed: Installed) -> None:
        self.secret = WebhookObject(
            connection,
            SECRETS.object(installed.secret, installed.namespace),
            f"Secret {installed.namespace}/{installed.secret}",
        )
        self.configuration = WebhookObject(
            connection,
            WEBHOOK_CONFIGURATIONS.object(installed.configuration),
            f"MutatingWebhookConfiguration {installed.configuration}",
        )


def webhooks(configuration: Body) -> list[Body]:
    """Return the webhooks of a configuration."""
    found = configuration.get("webhooks")
    return found if isinstance(found, list) else []
