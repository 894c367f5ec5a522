"""A kubeconfig, for commands that an admin runs away from the node.

The official client reads it, and does what it says to log in: contexts, tokens, certificates, exec
plugins, and their refresh. It sends no request to the API server: that is `APIConnection`'s work.

This is the only module that imports `kubernetes`, which comes with the extra `cluster`.

Source: https://kubernetes.io/docs/concepts/configuration/organize-cluster-access-kubeconfig/.
"""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kubernetes.client import Configuration
from kubernetes.config import load_kube_config

from cpupool.kube.client import APIServer, NoAPIServer

if TYPE_CHECKING:
    from collections.abc import Iterator

_PROXY: Final = "run `kubectl proxy` with this kubeconfig, and name its address with --api-server"


def api_server(files: str, context: str = "") -> APIServer:
    """Return the API server of a kubeconfig's context, with its credentials.

    The function runs an exec plugin, which may ask its user something, without a time limit, as
    kubectl does.

    Args:
        files: the kubeconfig, or several with colons between them, as in `KUBECONFIG`.
        context: which context; empty for the current one.

    Raises:
        NoAPIServer: there is no such file or context, it gives no credentials, or it asks for what
            cpupool does not do: a proxy, or a server whose certificate is not verified.
    """
    credentials = KubeconfigCredentials(files, context)
    found = credentials.load()
    if found.proxy:
        raise NoAPIServer(f"{files}: its proxy-url is not supported; {_PROXY}")
    if not found.verify_ssl:
        raise NoAPIServer(
            f"{files}: insecure-skip-tls-verify is not supported; name the server's CA with"
            " certificate-authority"
        )
    return APIServer(
        found.host,
        ca=Path(found.ssl_ca_cert) if found.ssl_ca_cert else None,
        credentials=credentials,
        server_name=found.tls_server_name or "",
    )


class KubeconfigCredentials:
    """The user of a kubeconfig's context: `Credentials`.

    The class renews a token with an expiry before it expires. It reads everything else again, exec
    plugins included, when the API server has refused it.

    Args:
        files: the kubeconfig, or several with colons between them, as in `KUBECONFIG`.
        context: which context; empty for the current one.
    """

    def __init__(self, files: str, context: str) -> None:
        self._files = files
        self._context = context
        self._lock = threading.Lock()
        self._loaded: Configuration | None = None

    def authorization(self) -> str:
        """Return the Authorization header; empty where a certificate is the identity.

        Raises:
            NoAPIServer: the kubeconfig gives no credentials any more.
        """
        with self._lock:
            found = self._loaded or self.load()
            with self._errors():
                header = str(found.get_api_key_with_prefix("BearerToken") or "")
                if not (header.isascii() and header.isprintable()):
                    raise ValueError("its token has characters that no header may have")
                return header

    def certificate(self) -> tuple[Path, Path] | None:
        """Return the files of the certificate and its key; None where a token is the identity.

        Raises:
            NoAPIServer: the kubeconfig gives no credentials any more.
        """
        with self._lock:
            found = self._loaded or self.load()
            both = found.cert_file, found.key_file
            return (Path(both[0]), Path(both[1])) if both[0] and both[1] else None

    def forget(self) -> None:
        """Read the kubeconfig again for the next request."""
        with self._lock:
            self._loaded = None

    def load(self) -> Configuration:
        """Read the kubeconfig, and do what it says to log in.

        Raises:
            NoAPIServer: there is no such file or context, it gives no credentials, or it asks for
                what cpupool does not do: a proxy, or a server whose certificate is not verified.
        """
        if not any(Path(file).expanduser().exists() for file in self._files.split(":") if file):
            raise NoAPIServer(f"{self._files}: no such file; name a kubeconfig that is there")
        found = Configuration(host="")
        # Otherwise it is the environment's, which is not the kubeconfig's word.
        found.proxy = ""
        with self._errors() as said:
            load_kube_config(
                config_file=self._files,
                context=self._context or None,
                client_configuration=found,
            )
        known = found.api_key.get("BearerToken") or found.cert_file
        if found.host.startswith("https:") and not known:
            # The client only logs that a plugin has failed.
            reason = f" ({'; '.join(said)})" if said else ""
            raise NoAPIServer(
                f"{self._files}: {self._named()} gives no credentials{reason}; check its user with"
                f" `{self._kubectl()} auth whoami`"
            )
        self._loaded = found
        return found

    @contextmanager
    def _errors(self) -> Iterator[list[str]]:
        """Collect the log lines of the client, and turn its errors into a NoAPIServer."""
        said: list[str] = []
        handler = _Collector(said)
        logging.getLogger().addHandler(handler)
        try:
            yield said
        except Exception as error:
            what = " ".join(str(error).split()) or type(error).__name__
            raise NoAPIServer(
                f"{self._files}: {self._named()} cannot be used ({what}); check it with"
                f" `{self._kubectl()} config view`"
            ) from error
        finally:
            logging.getLogger().removeHandler(handler)

    def _kubectl(self) -> str:
        context = f" --context {self._context}" if self._context else ""
        return f"KUBECONFIG={self._files} kubectl{context}"

    def _named(self) -> str:
        return f"the context {self._context!r}" if self._context else "the current context"


class _Collector(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(record.getMessage())
