"""An API server over https with its own CA, and kubeconfigs for it."""

from __future__ import annotations

import base64
import json
import ssl
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import trustme
import yaml

from tests.apiserver import FakeAPIServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CREDENTIALS = "client.authentication.k8s.io/v1"


class Login:
    """An API server, and the folder of a kubeconfig for it.

    Attributes:
        server: the API server; it trusts the certificates of `authority`, and `server.tokens`.
    """

    def __init__(self, server: FakeAPIServer, authority: trustme.CA, folder: Path) -> None:
        self.server = server
        self.authority = authority
        self.folder = folder

    @property
    def cluster(self) -> dict[str, Any]:
        return {
            "server": self.server.url,
            "certificate-authority-data": encoded(self.authority.cert_pem.bytes()),
        }

    def kubeconfig(self, users: dict[str, Any], **cluster: Any) -> Path:
        """Write a kubeconfig with a context for each user, by the user's name; the first counts."""
        path = self.folder / "kubeconfig"
        contexts = [{"name": name, "context": {"cluster": "c", "user": name}} for name in users]
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {**self.cluster, **cluster}}],
            "users": [{"name": name, "user": user} for name, user in users.items()],
            "contexts": contexts,
            "current-context": next(iter(users)),
        }
        path.write_text(yaml.safe_dump(document))
        return path

    def certificate(self, name: str) -> dict[str, str]:
        """Give the fields of a user who has a certificate with this common name."""
        made = self.authority.issue_cert(f"{name}.example", common_name=name)
        return {
            "client-certificate-data": encoded(made.cert_chain_pems[0].bytes()),
            "client-key-data": encoded(made.private_key_pem.bytes()),
        }

    def plugin(self, script: str) -> dict[str, Any]:
        """Give the fields of a user whose plugin is this script; `answer(status)` ends it."""
        path = self.folder / "plugin.py"
        path.write_text(_PLUGIN + script)
        return {
            "exec": {
                "apiVersion": CREDENTIALS,
                "command": sys.executable,
                "args": [str(path)],
                "env": [{"name": "FOLDER", "value": str(self.folder)}],
                "interactiveMode": "Never",
            }
        }


_PLUGIN = f"""\
import json, os, pathlib, sys
folder = pathlib.Path(os.environ["FOLDER"])
def answer(status):
    credential = {{"apiVersion": {json.dumps(CREDENTIALS)}, "kind": "ExecCredential"}}
    print(json.dumps({{**credential, "status": status}}))
"""


@contextmanager
def login(folder: Path, *, admin: bool = False, name: str = "127.0.0.1") -> Iterator[Login]:
    """Serve an API server whose certificate has this name."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_OPTIONAL
    with FakeAPIServer(tls=context, admin=admin) as server:
        yield Login(server, authority, folder)


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")
