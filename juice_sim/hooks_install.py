"""Install the four hook files into a folder, as an admin would: copied, with a juice-config.sh that fits."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from .resources import hooks_dir

SETTINGS = frozenset(
    {
        "JUICE_ALLOW_HTTP",
        "JUICE_CA_FILE",
        "JUICE_CLUSTER",
        "JUICE_CONTROLLER",
        "JUICE_KEY_FILE",
        "JUICE_LOG",
        "JUICE_POOLS",
        "JUICE_PYTHON",
        "JUICE_STATE_DIR",
        "JUICE_TOKEN",
        "JUICE_TOKEN_FILE",
        "JUICE_WAIT",
    }
)
"""All names that juice-config.sh may set; see docs/contracts.md, section 2."""


def install_hooks(
    target: Path,
    *,
    controller_url: str,
    token: str | None,
    state_dir: Path,
    key_file: Path | None = None,
    **settings: object,
) -> Path:
    """Copy the hooks to `target` and return it; `target / "juice-prolog.sh"` is what slurmctld is to run.

    `token` goes into a file `token` of mode 0400 beside the hooks (None: no token). `state_dir` is made if missing,
    mode 0755. `key_file` None makes a key `session.key` beside the hooks; a path that does not exist is made, one that
    exists is used. Further settings are those of docs/contracts.md section 2 in lower case without `JUICE_`: `wait=5`,
    `pools="test=<uuid>"`, `ca_file=...`, `python=...`; None leaves the default. ValueError for a setting that does not
    exist. May be called again to change the settings: files are replaced, the key stays.
    """
    target.mkdir(parents=True, exist_ok=True)
    for name in ("juice-prolog.sh", "juice-epilog.sh", "juice_hook.py"):
        shutil.copyfile(hooks_dir() / name, target / name)
        (target / name).chmod(0o755)
    state_dir.mkdir(parents=True, exist_ok=True)
    state_dir.chmod(0o755)
    if key_file is None:
        key_file = target / "session.key"
    if not key_file.exists():
        write_private(key_file, os.urandom(32), 0o400)
    values: dict[str, object] = {
        "JUICE_CONTROLLER": controller_url,
        "JUICE_STATE_DIR": state_dir,
        "JUICE_KEY_FILE": key_file,
    }
    if token is not None:
        write_private(target / "token", token.encode() + b"\n", 0o400)
        values["JUICE_TOKEN_FILE"] = target / "token"
    for name, value in settings.items():
        if f"JUICE_{name.upper()}" not in SETTINGS:
            raise ValueError(f"setting {name!r} is unknown; accepted: {', '.join(sorted(SETTINGS))}, in lower case")
        values[f"JUICE_{name.upper()}"] = value
    lines = [f"{name}={shell_quoted(str(value))}\n" for name, value in values.items() if value is not None]
    write_private(target / "juice-config.sh", "".join(lines).encode(), 0o640)
    return target


def shell_quoted(text: str) -> str:
    """`text` as one word of a POSIX shell."""
    return "'" + text.replace("'", "'\\''") + "'"


def write_private(path: Path, data: bytes, mode: int) -> None:
    """Write a file that has its mode from its creation on, whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(handle, data)
        os.fchmod(handle, mode)
    finally:
        os.close(handle)
    os.replace(temporary, path)
