"""A release of the chart on real nodes: installed, upgraded, removed, looked into."""

from __future__ import annotations

import json
import os
import subprocess
import time
from typing import Any

from tests.support import chart, rights
from tests.support.kube import Json

from shardwright_sandbox import audit
from shardwright_sandbox.cluster import Sandbox
from shardwright_sandbox.rest import rest_of

NAME = "shardwright"
_GONE_SECONDS = 120.0
_FORBIDDEN = 403


class Release:
    """The release `shardwright` in a namespace; `values` go with every install."""

    def __init__(self, sandbox: Sandbox, namespace: str, values: Json) -> None:
        assert sandbox.layout is not None
        self.namespace = namespace
        self._audit_log = sandbox.layout.audit_log
        self._begun = audit.position(self._audit_log)
        self._values = values
        self._rest = rest_of(sandbox.api)
        self._environment = {**os.environ, "KUBECONFIG": str(sandbox.kubeconfig)}

    def install(self, *options: str, **values: object) -> None:
        """Install or upgrade, and wait until the operator's pod is ready."""
        given = {**self._values, **values}
        command = ("upgrade", "--install", NAME, chart.CHART, "--wait", "--timeout=300s")
        self._run(
            *(chart.helm_program(), *command, "--values=-", *options), stdin=json.dumps(given)
        )

    def uninstall(self) -> None:
        """Remove it, and wait until its pod is gone."""
        # Helm takes the rights away while the pod ends: what is refused then, the return of the
        # Lease, tells nothing of them
        self.check_rights()
        self._run(chart.helm_program(), "uninstall", NAME)
        deadline = time.monotonic() + _GONE_SECONDS
        while left := self.pods():
            assert time.monotonic() < deadline, f"{left[0]['metadata']['name']} does not end"
            time.sleep(0.1)
        self._begun = audit.position(self._audit_log)

    def check_rights(self) -> None:
        """Check what the operator asked for: nothing was refused, all is on the chart's list."""
        user = f"system:serviceaccount:{self.namespace}:{NAME}"
        entries = audit.entries(self._audit_log, offset=self._begun)
        asked = [one for one in entries if one["user"]["username"] == user]
        assert asked
        assert [one for one in asked if one["responseStatus"].get("code") == _FORBIDDEN] == []
        assert rights.beyond(asked, user) == set()

    def pods(self) -> list[Json]:
        """The operator's pods."""
        path = f"/api/v1/namespaces/{self.namespace}/pods"
        found: list[Json] = self.get(path)["items"]
        return found

    def pod(self) -> Json:
        """The operator's only pod."""
        (found,) = self.pods()
        return found

    def image_id(self) -> str:
        """What the node calls the image that the operator runs in."""
        return str(self.pod()["status"]["containerStatuses"][0]["imageID"])

    def python(self, script: str) -> str:
        """Run a script in the operator's container; what it printed. There is no shell."""
        pod = self.pod()["metadata"]["name"]
        return self._run(chart.kubectl_program(), "exec", pod, "--", "python3", "-c", script)

    def get(self, path: str) -> dict[str, Any]:
        """GET of an API path."""
        return self._rest.get(path)

    def _run(self, program: object, *arguments: object, stdin: str | None = None) -> str:
        words = [str(word) for word in (program, f"--namespace={self.namespace}", *arguments)]
        done = subprocess.run(
            words,
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            env=self._environment,
            timeout=360,
        )
        assert done.returncode == 0, f"{' '.join(words[1:])}\n{done.stdout}{done.stderr}"
        return done.stdout
