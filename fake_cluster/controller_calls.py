"""What a run asks of the controller for itself: pools, tokens, faults. Repeated until it is answered, for the
controller may be down and its replies may be spoiled by the run's own faults."""

from __future__ import annotations

import http.client
import json
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

REQUEST_TIMEOUT_S = 5.0


class ControllerSaidNo(Exception):
    """The controller refused a request of the run itself (4xx); `str(error)` is one line."""


class ControllerCalls:
    """Requests as `token` (None: no Authorization header). Each is repeated for `patience_s` seconds."""

    def __init__(self, url: str, token: str | None, patience_s: float = 30.0) -> None:
        self._url = urlsplit(url)
        self.token = token
        self._patience_s = patience_s

    def _once(self, method: str, path: str, body: bytes | None, key: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(
            self._url.hostname or "127.0.0.1", self._url.port or 80, timeout=REQUEST_TIMEOUT_S
        )
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        if key:
            headers["Idempotency-Key"] = key
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def call(self, method: str, path: str, body: object = None) -> Any:
        """The JSON of the answer. Raises ControllerSaidNo, TimeoutError."""
        encoded = None if body is None else json.dumps(body).encode()
        key = str(uuid.uuid4()) if method == "POST" else ""  # a repeated POST must not make a second token
        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                status, answer = self._once(method, path, encoded, key)
                problem = f"{status} {answer[:300].decode('utf-8', 'replace')}"
                if status == 200:
                    return json.loads(answer) if answer else None
                if 400 <= status < 500 and status != 429:
                    raise ControllerSaidNo(f"{method} {path}: {problem}")
            except (OSError, http.client.HTTPException, ValueError) as error:
                problem = f"{type(error).__name__}: {error}"
            if time.monotonic() > deadline:
                raise TimeoutError(f"{method} {path} was not answered within {self._patience_s:g} s: {problem}")
            time.sleep(0.1)

    def is_ready(self) -> bool:
        """Whether the controller answers at all."""
        try:
            status, _ = self._once("GET", "/v1/status", None, "")
        except (OSError, http.client.HTTPException):
            return False
        return status == 200

    def create_pool(self, name: str) -> str:
        """Make a pool, or find it; its id."""
        try:
            return str(self.call("PUT", "/v1/pool", {"name": name})["id"])
        except ControllerSaidNo:
            # A repeated PUT whose first answer was lost: names are unique here.
            for pool in self.call("GET", "/v1/pools"):
                if pool["name"] == name:
                    return str(pool["id"])
            raise

    def create_token(
        self, description: str, permissions: Sequence[Mapping[str, str]], *, lifetime_s: float, user_id: str = ""
    ) -> tuple[str, str, str]:
        """(id, secret, user id) of a new token."""
        body = {
            "description": description,
            "expireDays": lifetime_s / 86400.0,
            "permissions": list(permissions),
            "userId": user_id,
        }
        made = self.call("POST", "/v1/m2m", body)
        return str(made["id"]), str(made["token"]), str(made["userId"])

    def set_faults(self, rules: Sequence[Mapping[str, object]]) -> None:
        """Put exactly these rules in force."""
        self.call("PUT", "/v1/faults", list(rules))

    def faults(self) -> list[dict[str, Any]]:
        """The rules in force with how often each has fired."""
        return list(self.call("GET", "/v1/faults"))
