"""Python client of the REST API: typed answers, one error class, retries that cannot do a thing twice.

GET, PUT and DELETE are safe to repeat here, and every POST carries an Idempotency-Key, so a lost reply is simply asked
for again. Proxy variables of the environment are not looked at.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

import msgspec
import requests

from . import wire_types as w

T = TypeVar("T")

RETRIED = frozenset({429, 502, 503, 504})


class ApiError(Exception):
    """A request that failed. `status` is the HTTP status, None when no answer came; `code` and `field` as the
    controller gave them; `str(error)` is one line."""

    def __init__(self, message: str, *, status: int | None = None, code: str = "", field: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.field = field


class Client:
    """One controller, seen by one caller. Not for several threads at once. Times in seconds.

    `tries` bounds how often a request is sent; between two tries there is a pause that grows from `pause_s` and is
    spread, or what `Retry-After` asks for (`longest_pause_s` at most).
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeout_s: float = 30.0,
        tries: int = 5,
        pause_s: float = 0.1,
        longest_pause_s: float = 5.0,
        ca_file: str | None = None,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ApiError(f"controller {url!r}: accepted: a URL that starts with http:// or https://")
        self.url = url.rstrip("/")
        self._timeout_s = timeout_s
        self._tries = max(1, tries)
        self._pause_s = pause_s
        self._longest_pause_s = longest_pause_s
        self._http = requests.Session()
        self._http.trust_env = False
        if ca_file:
            self._http.verify = ca_file
        if token:
            self._http.headers["Authorization"] = f"Bearer {token}"

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- one request --------------------------------------------------------------------------------------------------

    def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
    ) -> requests.Response:
        """Send until there is an answer that is final. Raises ApiError for all but 2xx."""
        sent = dict(headers or {})
        data = None
        if body is not None:
            data = msgspec.json.encode(body)
            sent["Content-Type"] = "application/json"
        failure = ApiError("not sent")
        for attempt in range(self._tries):
            try:
                response = self._http.request(
                    method,
                    self.url + path,
                    data=data,
                    headers=sent,
                    params=query,
                    timeout=timeout_s or self._timeout_s,
                    allow_redirects=False,
                )
            except requests.RequestException as error:
                failure = ApiError(f"{method} {path}: no answer from {self.url} ({_reason(error)}); is it running?")
                pause = self._pause_s * 2**attempt * random.uniform(0.5, 1.5)
            else:
                if 200 <= response.status_code < 300:  # `ok` would take a redirect for a success
                    return response
                failure = _error_of(method, path, response)
                if response.status_code not in RETRIED:
                    raise failure
                pause = _retry_after(response) or self._pause_s * 2**attempt * random.uniform(0.5, 1.5)
            if attempt + 1 < self._tries:
                time.sleep(min(pause, self._longest_pause_s))
        raise failure

    def _get(self, path: str, kind: type[T], **query: Any) -> T:
        response = self.send("GET", path, query={k: v for k, v in query.items() if v is not None})
        return _decoded(response, kind)

    def _post(self, path: str, body: Any, key: str, headers: Mapping[str, str] | None = None) -> requests.Response:
        return self.send("POST", path, body, headers={"Idempotency-Key": key or str(uuid.uuid4()), **(headers or {})})

    # -- pools and permissions ----------------------------------------------------------------------------------------

    def create_pool(self, name: str) -> w.Pool:
        """A new pool. ApiError 409 when the name is taken."""
        return _decoded(self.send("PUT", "/v1/pool", {"name": name}), w.Pool)

    def pools(self) -> list[w.Pool]:
        """The pools that the caller may see."""
        return self._get("/v1/pools", list[w.Pool])

    def pool(self, pool_id: str) -> w.Pool:
        """One pool."""
        return self._get(f"/v1/pool/{pool_id}", w.Pool)

    def delete_pool(self, pool_id: str) -> None:
        """Delete an empty pool."""
        self.send("DELETE", f"/v1/pool/{pool_id}")

    def find_or_create_pool(self, name_or_id: str) -> tuple[str, str, bool]:
        """(id, name, whether it was made now). Against a controller that cannot list pools, only an id will do."""
        try:
            known = self.pools()
        except ApiError as error:
            if error.status not in (404, 405, 500):
                raise
            known = []
            if _is_uuid(name_or_id):
                return name_or_id, "", False
        for pool in known:
            if name_or_id in (pool.id, pool.name):
                return pool.id, pool.name, False
        if _is_uuid(name_or_id):
            raise ApiError(f"pool {name_or_id} is unknown; accepted: the name or id of a pool", status=404)
        try:
            made = self.create_pool(name_or_id)
        except ApiError as error:
            if error.status != 409:
                raise
            for pool in self.pools():  # somebody else has just made it
                if pool.name == name_or_id:
                    return pool.id, pool.name, False
            raise
        return made.id, made.name, True

    def grant(self, permission: w.PermissionName, user_id: str, pool_id: str) -> None:
        """Give a user a permission in a pool."""
        body = w.PermissionChange(permission=permission, user_id=user_id, pool_id=pool_id)
        self.send("PUT", "/v1/user/permissions", body)

    def revoke(self, permission: w.PermissionName, user_id: str, pool_id: str) -> None:
        """Take a permission away."""
        body = w.PermissionChange(permission=permission, user_id=user_id, pool_id=pool_id)
        self.send("DELETE", "/v1/user/permissions", body)

    # -- agents -------------------------------------------------------------------------------------------------------

    def agents(self, pool_id: str | None = None, *, everything: bool = False, sessions: bool = False) -> list[w.Agent]:
        """Active agents; with `everything` also disabled and missing ones, with `sessions` what runs on them."""
        flags = {"all": "1" if everything else None, "sessions": "1" if sessions else None}
        return self._get("/v1/agents", list[w.Agent], pool_id=pool_id, **flags)

    def agent(self, agent_id: str) -> w.Agent:
        """One agent with its open sessions."""
        return self._get(f"/v1/agent/{agent_id}", w.Agent)

    # -- sessions -----------------------------------------------------------------------------------------------------

    def request_session(
        self,
        pool_id: str = "",
        *,
        gpus: int = 1,
        vram: int = 0,
        key: str = "",
        strict_handling: bool = False,
        requirements: w.SessionRequirements | None = None,
    ) -> str:
        """Request `gpus` GPUs with `vram` bytes each (0: whole ones), or what `requirements` says; the session's id.

        With `strict_handling` ApiError 422 when nothing could ever serve it.
        """
        body = requirements or w.SessionRequirements(
            pool_id=pool_id, gpus=[w.GpuRequirement(vram_required=vram) for _ in range(gpus)]
        )
        headers = {"Prefer": "handling=strict"} if strict_handling else None
        return self._post("/v1/request/session", body, key, headers).text

    def session(self, session_id: str, *, wait_s: float = 0.0) -> w.Session:
        """One session; with `wait_s` the answer comes as soon as it is active (or canceling, closed)."""
        return self._get(f"/v1/session/{session_id}", w.Session, wait=wait_s or None)

    def wait_for_session(self, session_id: str, timeout_s: float = 30.0) -> w.Session:
        """The session once it is active, canceling or closed. TimeoutError with its state otherwise.

        Works with controllers that do not know `?wait=` too (then it asks each second).
        """
        end = time.monotonic() + timeout_s
        while True:
            left = end - time.monotonic()
            asked = time.monotonic()
            session = self.session(session_id, wait_s=max(0.01, min(left, 20.0)))
            if session.state not in ("", "queued", "assigned"):
                return session
            if time.monotonic() >= end:
                raise TimeoutError(f"session {session_id} is still {session.state or 'queued'} after {timeout_s:g} s")
            if time.monotonic() - asked < 0.5:
                time.sleep(min(1.0, max(0.0, end - time.monotonic())))

    def release_session(self, session_id: str) -> None:
        """Close a session; one that is gone already is no error."""
        try:
            self.send("DELETE", f"/v1/session/{session_id}")
        except ApiError as error:
            if error.status != 404:
                raise

    def sessions(
        self, *, state: str | None = None, pool_id: str | None = None, everything: bool = False
    ) -> list[w.SessionDetails]:
        """The sessions that the caller may see; open ones unless `everything`."""
        flag = "1" if everything else None
        return self._get("/v1/sessions", list[w.SessionDetails], state=state, pool_id=pool_id, all=flag)

    def story(self, session_id: str) -> list[dict[str, Any]]:
        """What happened to a session, in order."""
        return self._get(f"/v1/session/{session_id}/story", list[dict[str, Any]])

    # -- tokens, faults, the rest -------------------------------------------------------------------------------------

    def create_token(
        self,
        description: str,
        *,
        expire_days: float = 30,
        user_id: str = "",
        admin: bool = False,
        permissions: Iterable[tuple[w.PermissionName, str]] = (),
        key: str = "",
    ) -> w.NewToken:
        """A new token; `permissions` are (permission, pool id). Its secret is in this answer and nowhere else."""
        body = w.TokenRequest(
            description=description,
            expire_days=expire_days,
            user_id=user_id,
            admin=admin,
            permissions=[w.TokenPermission(permission=name, pool_id=pool_id) for name, pool_id in permissions],
        )
        return _decoded(self._post("/v1/m2m", body, key), w.NewToken)

    def tokens(self) -> list[w.Token]:
        """The tokens, without secrets."""
        return self._get("/v1/m2m", list[w.Token])

    def revoke_token(self, token_id: str) -> None:
        """Revoke a token."""
        self.send("DELETE", f"/v1/m2m/{token_id}")

    def whoami(self) -> w.WhoAmI:
        """The caller as the controller sees it."""
        return self._get("/v1/whoami", w.WhoAmI)

    def set_faults(self, *rules: w.FaultRule) -> list[w.FaultRule]:
        """Replace the injected faults."""
        return _decoded(self.send("PUT", "/v1/faults", list(rules)), list[w.FaultRule])

    def faults(self) -> list[w.FaultRule]:
        """The injected faults, with how often each has fired."""
        return self._get("/v1/faults", list[w.FaultRule])

    def clear_faults(self) -> None:
        """Remove all injected faults."""
        self.send("DELETE", "/v1/faults")

    def declare_node_types(self, node_types: Iterable[w.NodeType]) -> None:
        """Say what an autoscaler may still start."""
        self.send("PUT", "/v1/node-types", list(node_types))

    def events(self, since: int = 0, *, follow: bool = False, timeout_s: float = 60.0) -> Iterator[dict[str, Any]]:
        """The events after `since`, in order; with `follow` until the connection ends or is silent for `timeout_s`."""
        query = {"since": since, "follow": int(follow)}
        with self._http.get(
            f"{self.url}/v1/events", params=query, stream=True, timeout=timeout_s, allow_redirects=False
        ) as response:
            if not response.ok:
                raise _error_of("GET", "/v1/events", response)
            for line in response.iter_lines(chunk_size=1 if follow else 65536):
                if line:
                    yield msgspec.json.decode(line)

    def metrics(self) -> str:
        """Prometheus text."""
        return self.send("GET", "/metrics").text


def _decoded(response: requests.Response, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(response.content, type=kind)
    except msgspec.DecodeError as error:
        where = f"{response.request.method} {response.request.path_url}"
        raise ApiError(f"{where}: the answer cannot be read ({error})", status=response.status_code) from None


def _error_of(method: str, path: str, response: requests.Response) -> ApiError:
    message, code, field = response.text[:300], "", ""
    try:
        said = msgspec.json.decode(response.content)
    except msgspec.DecodeError:
        said = None
    if isinstance(said, dict):
        message, code, field = (str(said.get(name) or "") for name in ("message", "code", "field"))
    text = " ".join(f"{method} {path}: {response.status_code} {message}".split())
    return ApiError(text, status=response.status_code, code=code, field=field)


def _reason(error: requests.RequestException) -> str:
    """The innermost reason, in one line: requests wraps it several times."""
    cause: BaseException = error
    while cause.__cause__ is not None or cause.__context__ is not None:
        cause = cause.__cause__ or cause.__context__ or cause
    return " ".join(str(cause).split())[:200] or type(error).__name__


def _retry_after(response: requests.Response) -> float | None:
    text = response.headers.get("Retry-After", "")
    if text.isdigit():
        return float(text)
    try:
        return max(0.0, (parsedate_to_datetime(text) - datetime.now(timezone.utc)).total_seconds())
    except (TypeError, ValueError):
        return None


def _is_uuid(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text.lower()
    except ValueError:
        return False
