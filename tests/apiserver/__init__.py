"""An API server in small, over real HTTP: objects, watches, patches and Events, and its failures.

It answers as kube-apiserver does where cpupool asks: lists in pages, watches from a version,
bookmarks, 410, Status bodies, validation of Events, updates of single objects from a version,
patches in their three forms. It refuses what the rights of cpupool's parts do not cover.

`paths` reads a request's path, `objects` holds what the cluster has, `patches` changes one object,
`watches` are the open ones, `executions` are the commands in containers, `cluster` is what a test
does with the objects, `http` is the wire, and `server` is what a test uses.
"""

from __future__ import annotations

from tests.apiserver.server import FakeAPIServer

__all__ = ["FakeAPIServer"]
