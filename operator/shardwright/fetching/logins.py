"""Names and passwords of registries, from the places where clients look for them."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from shardwright.fetching.failures import permanent
from shardwright.runner.contract import REASON_ACCESS_DENIED

USERNAME, PASSWORD = "OCI_USERNAME", "OCI_PASSWORD"
# The content of a Docker config.json: as others pass it on by variable, and as it stands in a
# Secret of the type kubernetes.io/dockerconfigjson.
CONFIGS = ("DOCKER_AUTH_CONFIG", ".dockerconfigjson")
_DOCKER_HUB = "https://index.docker.io/v1/"


@dataclass(frozen=True, slots=True)
class Login:
    """A name and a password, and where they were found."""

    username: str
    password: str = field(repr=False)
    origin: str

    @property
    def basic(self) -> str:
        """The value of an Authorization header."""
        pair = f"{self.username}:{self.password}".encode()
        return f"Basic {base64.b64encode(pair).decode()}"


def login_for(registry: str, env: Mapping[str, str]) -> Login | None:
    """The login for a registry; None when there is none, and the artifact may be public.

    Raises:
        FetchError: A variable is there and cannot be read.
    """
    if env.get(USERNAME) and env.get(PASSWORD):
        return Login(env[USERNAME], env[PASSWORD], f"{USERNAME} and {PASSWORD}")
    for variable in CONFIGS:
        if text := env.get(variable):
            try:
                return _from_config(text, registry, variable)
            except (ValueError, AttributeError, RecursionError, binascii.Error) as error:
                # Without the error's own words: they quote what could not be read.
                raise permanent(
                    REASON_ACCESS_DENIED,
                    f"{variable} in model.secretRef's Secret is no Docker config.json "
                    f"({type(error).__name__}); make it with `kubectl create secret "
                    "docker-registry`",
                ) from None
    return None


def _from_config(text: str, registry: str, variable: str) -> Login | None:
    """The entry of a registry: under its name, as an address, or as Docker's own hub is called."""
    auths = json.loads(text).get("auths", {})
    names = {registry, f"https://{registry}", f"http://{registry}"}
    names |= {f"{name}/v1/" for name in names} | {f"{name}/v2/" for name in names}
    if registry in ("docker.io", "index.docker.io"):
        names.add(_DOCKER_HUB)
    for name, entry in auths.items():
        if name.rstrip("/") not in names and name not in names:
            continue
        if entry.get("username") and entry.get("password"):
            return Login(str(entry["username"]), str(entry["password"]), variable)
        pair = base64.b64decode(entry.get("auth", ""), validate=True).decode()
        username, colon, password = pair.partition(":")
        if colon:
            return Login(username, password, variable)
    return None
