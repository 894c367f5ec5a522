"""The API server: its address, our credentials, and its errors.

Source: "Accessing the Kubernetes API from a Pod" in Kubernetes' documentation, for the files and
variables of a service account.
"""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, cast
from urllib.parse import urlencode

from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import LocationParseError
from urllib3.util import Url, parse_url

from cpupool.core.errors import CPUPoolError, RemoteProtocolError
from cpupool.kube import tls
from cpupool.version import VERSION

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping, Sequence

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
CONNECT_S: Final = 3.0
ANSWER_S: Final = 30.0
TOKEN_AGE_S: Final = 60.0

_SHOWN: Final = 300
_NOT_FOUND: Final = 404
_TOKEN: Final = re.compile(r"[\x21-\x7e]+")
# The kernel notices a peer that vanished without a word after a minute of silence.
_KEEPALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)
_REMEDIES: Final = {
    401: "check that this pod's service account exists and its token is mounted",
    403: "apply this pod's RBAC, which must grant {verb} on {resource}",
    404: "check that --api-server names the API server",
}
_GONE: Final = "it was deleted, or never was there"


class NoAPIServer(CPUPoolError):
    """The address of the API server, or the credentials for it, cannot be found."""


class APIError(RemoteProtocolError):
    """The API server refused a request, is not there, or broke the protocol.

    Attributes:
        status: the HTTP status, or 0 where there was no usable answer.
        reason: Kubernetes' word for it, as `Forbidden`; where status is 0, one of `unreachable`,
            `untrusted`, `broken` and `malformed`.
        version_lost: the watch cannot go on from the version in the request.
        retry_after_s: how long the server asks to be left alone.

    Args:
        remedy: what to do; empty where the status says it.
    """

    def __init__(
        self,
        verb: str,
        resource: str,
        reason: str,
        message: str,
        *,
        status: int = 0,
        version_lost: bool = False,
        retry_after_s: float = 0.0,
        remedy: str = "",
    ) -> None:
        self.status = status
        self.reason = reason
        self.version_lost = version_lost
        self.retry_after_s = retry_after_s
        said = message if len(message) <= _SHOWN else f"{message[:_SHOWN]}..."
        what = f"{status} {reason}" if status else reason
        unanswered = "check that the API server runs and can be reached"
        known = _REMEDIES.get(status, "it is tried again" if status else unanswered)
        remedy = remedy or known.format(verb=verb, resource=resource)
        super().__init__(f"API server: {verb} {resource}: {what}: {said}; {remedy}")

    @classmethod
    def refused(
        cls,
        verb: str,
        resource: str,
        status: Mapping[str, Any],
        *,
        code: int = 0,
        after_s: float = 0,
        remedy: str = "",
    ) -> Self:
        """Read a Status, the body of a refusal or the object of a watch's ERROR event.

        Args:
            verb: the verb of the request.
            resource: the resource of the request.
            status: as in apimachinery/pkg/apis/meta/v1/types.go.
            code: the HTTP status, where there is one.
            after_s: the Retry-After header, where there is one.
            remedy: what to do; empty where the status says it.
        """
        given = status.get("code")
        code = code or (given if isinstance(given, int) else 0)
        details = status.get("details")
        details = details if isinstance(details, dict) else {}
        # Only an API server names the object that it does not have.
        gone = code == _NOT_FOUND and details.get("name")
        return cls(
            verb,
            resource,
            str(status.get("reason") or "Unknown")[:_SHOWN],
            str(status.get("message") or "it does not say why"),
            status=code,
            # The second: an API server that is younger than the version, as after a restore.
            version_lost=code == 410
            or "ResourceVersionTooLarge" in json.dumps(details.get("causes")),
            retry_after_s=after_s,
            remedy=remedy or (_GONE if gone else ""),
        )


class Credentials(Protocol):
    """The identity of cpupool for the API server; both parts may change with time."""

    def authorization(self) -> str:
        """Return the Authorization header; empty for none.

        Raises:
            NoAPIServer: there should be one, and there is none.
        """
        ...

    def certificate(self) -> tuple[Path, Path] | None:
        """Return the files of the client's certificate and its key; None without.

        Raises:
            NoAPIServer: there should be one, and there is none.
        """
        ...

    def forget(self) -> None:
        """Look again for the next request: the server has refused the known credentials."""
        ...


class Token:
    """A service account's token, which the kubelet renews in its file: `Credentials`.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._text = ""
        self._read_s = 0.0

    def authorization(self) -> str:
        """Return the header with the token, at most `TOKEN_AGE_S` after it was read.

        Raises:
            NoAPIServer: the file cannot be read, or holds no token.
        """
        with self._lock:
            if not self._text or time.monotonic() - self._read_s > TOKEN_AGE_S:
                self._text = self._read()
                self._read_s = time.monotonic()
            return f"Bearer {self._text}"

    def certificate(self) -> None:
        """Return none: the token is enough."""

    def forget(self) -> None:
        """Read the file again for the next request: the server has refused the known token."""
        with self._lock:
            self._text = ""

    def _read(self) -> str:
        remedy = "mount the service account's token into the container"
        try:
            text = self._path.read_text("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise NoAPIServer(f"{self._path}: cannot be read ({error}); {remedy}") from error
        if not _TOKEN.fullmatch(text):
            raise NoAPIServer(f"{self._path}: this is no token; {remedy}")
        return text


class APIServer:
    """The address of the API server, and the credentials for it.

    Args:
        url: scheme, host, port and, where it is behind a proxy, the path before `/api`.
        ca: its certificate authority; None for the machine's own ones.
        credentials: the identity of cpupool; None where a proxy adds it.
        server_name: the name that the server's certificate must have; empty for the URL's.
        connect_s: how long a connection may take to be made.
        answer_s: how long the server may be silent before and within an answer.

    Raises:
        NoAPIServer: this is no address.
    """

    def __init__(
        self,
        url: str,
        *,
        ca: Path | None = None,
        credentials: Credentials | None = None,
        server_name: str = "",
        connect_s: float = CONNECT_S,
        answer_s: float = ANSWER_S,
    ) -> None:
        self._url = _address(url)
        self._host = cast("str", self._url.host).strip("[]")
        self._ca = ca
        self._credentials = credentials
        self._server_name = server_name or None
        self.connect_s = connect_s
        self.answer_s = answer_s

    def __str__(self) -> str:
        return str(self._url)

    @classmethod
    def in_cluster(cls, environment: Mapping[str, str], folder: Path = SERVICE_ACCOUNT) -> Self:
        """Find the API server as a pod does.

        Args:
            environment: with KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT.
            folder: where the service account's `ca.crt` and `token` are mounted.

        Raises:
            NoAPIServer: this is no pod.
        """
        host = environment.get("KUBERNETES_SERVICE_HOST", "")
        if not host:
            raise NoAPIServer(
                "KUBERNETES_SERVICE_HOST is not set, so this is no pod of a cluster; run"
                " `kubectl proxy` and name its address with --api-server, or name a --kubeconfig"
            )
        port = environment.get("KUBERNETES_SERVICE_PORT", "443")
        bracketed = f"[{host}]" if ":" in host else host
        token = Token(folder / "token")
        return cls(f"https://{bracketed}:{port}", ca=folder / "ca.crt", credentials=token)

    @classmethod
    def at(cls, url: str) -> Self:
        """Use this address without credentials; `kubectl proxy` adds them.

        Raises:
            NoAPIServer: this is no address.
        """
        return cls(url)

    def connection(self) -> HTTPConnection:
        """Make a connection, not yet connected; one to https trusts only the CA.

        Raises:
            NoAPIServer: the CA or the client's certificate cannot be read.
        """
        options = [*HTTPConnection.default_socket_options, *_KEEPALIVE]
        if self._url.scheme == "http":
            return HTTPConnection(
                self._host, self._url.port, timeout=self.connect_s, socket_options=options
            )
        try:
            context = tls.client_context(self._ca)
        except OSError as error:
            raise NoAPIServer(
                f"{self._ca}: cannot be read ({error}); mount the CA of the API server there"
            ) from error
        certificate = self._credentials.certificate() if self._credentials else None
        if certificate:
            try:
                context.load_cert_chain(*certificate)
            except OSError as error:
                raise NoAPIServer(
                    f"{certificate[0]}: this client certificate and its key {certificate[1]} cannot"
                    f" be used ({error}); renew them"
                ) from error
        return HTTPSConnection(
            self._host,
            self._url.port,
            timeout=self.connect_s,
            socket_options=options,
            ssl_context=context,
            server_hostname=self._server_name,
        )

    def target(self, path: str, parameters: Mapping[str, str | Sequence[str]]) -> str:
        """Return the request target for a path that begins with `/api`."""
        query = f"?{urlencode(parameters, doseq=True)}" if parameters else ""
        return f"{(self._url.path or '').rstrip('/')}{path}{query}"

    def headers(self) -> dict[str, str]:
        """Return the headers of a request.

        Raises:
            NoAPIServer: there should be credentials, and there are none.
        """
        headers = {
            "Accept": "application/json",
            "User-Agent": f"cpupool/{VERSION}",
        }
        authorization = self._credentials.authorization() if self._credentials else ""
        if authorization:
            headers["Authorization"] = authorization
        return headers

    def untrusted(self, error: ssl.SSLCertVerificationError) -> str:
        """Return the fault of the server's certificate in detail, and the remedy."""
        address = (self._host, self._url.port or HTTPSConnection.default_port)
        return tls.remedy(error, self._ca, address, self.connect_s)

    def unauthorized(self) -> None:
        """Note that the server has refused the credentials: the next request looks again."""
        if self._credentials is not None:
            self._credentials.forget()


def _address(url: str) -> Url:
    try:
        parsed = parse_url(url)
    except LocationParseError:
        parsed = Url()
    usable = parsed.scheme in {"http", "https"} and parsed.host
    if not usable or parsed.auth or parsed.query or parsed.fragment:
        raise NoAPIServer(
            f"{url[:_SHOWN]!r} is no address of an API server; give one as http://127.0.0.1:8001"
        )
    return parsed
