"""Who is logged in where, and which session is the active one: two small files that nobody else can read.

The folder is `$JUICE_CONFIG_DIR`, else `$XDG_CONFIG_HOME/juice`, else `~/.config/juice`. The token is written there
and sent to the controller that it was given for; it is never printed, nor passed to another program.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..client import Client

TOKEN_VARIABLES = ("JUICE_TOKEN", "JUICE_TOKEN_FILE")


class Failure(Exception):
    """The command has failed; one line for the user. `code` is the exit code: 1, or 2 for bad input."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Account:
    """A controller's URL, and the token for it (None: none)."""

    controller: str
    token: str | None

    def client(self) -> Client:
        """A client of the controller. Failure when the URL is none."""
        from ..client import ApiError, Client

        try:
            return Client(self.controller, self.token, tries=3)
        except ApiError as error:
            raise Failure(str(error), 2) from None


def config_dir() -> Path:
    """The folder of this user's settings; not made here."""
    own = os.environ.get("JUICE_CONFIG_DIR")
    if own:
        return Path(own)
    base = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".config") / "juice"


def read_file(name: str) -> dict[str, Any]:
    """What a file of the folder holds; {} when it is not there. Failure when it is not ours or not JSON."""
    path = config_dir() / name
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if mode & 0o077:
                raise Failure(f"{path} can be read by others; run: chmod 600 {path}")
            value = json.loads(file.read(1 << 20))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}") from None
    except ValueError:
        raise Failure(f"{path} is not JSON; remove it and log in again") from None
    return value if isinstance(value, dict) else {}


def write_file(name: str, value: dict[str, Any]) -> None:
    """Replace a file of the folder in one step, mode 0600. Failure."""
    directory = config_dir()
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        number, part = tempfile.mkstemp(prefix=f".{name}.", dir=directory)  # mode 0600 from the first byte on
        with os.fdopen(number, "w", encoding="utf-8") as file:
            json.dump(value, file)
        os.replace(part, directory / name)
    except OSError as error:
        raise Failure(f"{directory / name} cannot be written: {error.strerror}") from None


def remove_file(name: str) -> None:
    """Remove a file of the folder; one that is not there is no error."""
    try:
        (config_dir() / name).unlink(missing_ok=True)
    except OSError as error:
        raise Failure(f"{config_dir() / name} cannot be removed: {error.strerror}") from None


def find_account(controller: str | None) -> Account:
    """The controller to talk to: `--controller`, `JUICE_CONTROLLER`, else the one of the login; and its token.

    `JUICE_TOKEN_FILE` and `JUICE_TOKEN` come before the login's token, which is only for the login's controller.
    """
    login = read_file("login.json")
    url = controller or os.environ.get("JUICE_CONTROLLER") or str(login.get("controller", ""))
    if not url:
        raise Failure(
            "no controller: run `juice login CONTROLLER -t TOKEN`, or set JUICE_CONTROLLER, or give --controller URL", 2
        )
    url = url.rstrip("/")
    token = _token_of_environment()
    if token is None and login.get("controller") == url:
        token = login.get("token") or None
    return Account(url, token)


def _token_of_environment() -> str | None:
    path = os.environ.get("JUICE_TOKEN_FILE")
    if path:
        from ..cli.agent import read_token

        try:
            return read_token(Path(path))
        except ValueError as error:
            raise Failure(f"JUICE_TOKEN_FILE: {error}", 2) from None
    return os.environ.get("JUICE_TOKEN") or None


def active_session(account: Account) -> str:
    """Id of the session that this user has requested and not released; "" when there is none any more."""
    from ..client import ApiError

    known = read_file("session.json")
    session_id = str(known.get("id", ""))
    if not session_id or known.get("controller") != account.controller:
        return ""
    with account.client() as client:
        try:
            state = client.session(session_id).state
        except ApiError as error:
            if error.status != 404:
                raise
            state = "closed"
    if state in ("closed", "canceling"):
        remove_file("session.json")
        return ""
    return session_id
