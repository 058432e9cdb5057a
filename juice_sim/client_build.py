"""Builds the stand-in for Juice's client library (`juice_sim/client_library`) with the machine's C compiler.

Takes about a second, so the result is kept: in the user's cache folder, under a name made of the sources and the
compiler, and used again by every later call.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

LIBRARY = "libjuicejuda.so"
FILES = (LIBRARY, "libcuda.so.1", "libcuda.so", "nvidia-smi")
"""What lies in the folder afterwards, besides `juice`."""

BUILD_TIMEOUT_S = 120

# Found wherever it is called from, also when this package is a checkout that is not installed.
_PROGRAM = (
    f"import sys; sys.path.insert(0, {str(Path(__file__).resolve().parents[1])!r}); "
    "from juice_sim.cli_juice.main import main; sys.exit(main())"
)
_LAUNCHER = """#!/bin/sh
JUICE_CLIENT_DIR=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
export JUICE_CLIENT_DIR
exec {python} -c {program} "$@"
"""


class ClientBuildError(Exception):
    """The library cannot be built; one line that says why and what helps."""


def source_dir() -> Path:
    """The folder with the C sources and their Makefile."""
    return Path(__file__).resolve().parent / "client_library"


def compiler() -> list[str]:
    """The command of the C compiler: `CC`, cc, gcc or clang. Raises ClientBuildError when there is none."""
    wanted = os.environ.get("CC", "").split()
    for command in ([wanted] if wanted else []) + [["cc"], ["gcc"], ["clang"]]:
        if shutil.which(command[0]) is not None:
            return command
    raise ClientBuildError(
        "no C compiler: cc, gcc and clang are not on PATH; the client library is built on the spot; "
        "install one (Debian: apt install gcc libc6-dev make; RHEL: dnf install gcc make), or set CC"
    )


def cached_client() -> Path:
    """The library where it is kept, built now when it was not yet. Raises ClientBuildError."""
    return _built() / LIBRARY


def install_client(directory: Path) -> Path:
    """A folder as plugstack.conf wants it: the library with what belongs to it, and the command `juice`, whose path is
    returned. Raises ClientBuildError."""
    build_client(directory)
    command = directory / "juice"
    part = directory / f".juice.{os.getpid()}"
    try:
        part.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m juice_sim.cli_juice.main "$@"\n')
        part.chmod(0o755)
        part.replace(command)
    except OSError as error:
        raise ClientBuildError(f"cannot write to {command}: {error.strerror}") from None
    return command


def has_client(directory: Path) -> bool:
    """Whether the library lies in the folder, and is this one: a link of that name to something else is none."""
    return (directory / LIBRARY).is_file() and (directory / "libcuda.so.1").exists()


def build_client(target: Path) -> Path:
    """Build into `target` (made when missing), or copy what an earlier call has built; the library's path.

    Beside the library lie links to it under CUDA's names and `nvidia-smi`. Files that are there already are replaced
    in one step each, so that programs that use them are not disturbed. Raises ClientBuildError.
    """
    built = _built()
    try:
        target.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            _replace(built / name, target / name)
    except OSError as error:
        raise ClientBuildError(f"cannot write to {error.filename or target}: {error.strerror}") from None
    return target / LIBRARY


def _replace(source: Path, target: Path) -> None:
    part = target.with_name(f".{target.name}.{os.getpid()}")
    part.unlink(missing_ok=True)
    if source.is_symlink():
        part.symlink_to(os.readlink(source))
    else:
        shutil.copyfile(source, part)
        part.chmod(0o755)
    part.replace(target)


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "juice-sim" / "client"


def _built() -> Path:
    """A folder with the library, made now or before."""
    command = compiler()
    digest = hashlib.sha256()
    for path in sorted(source_dir().iterdir()):
        if path.suffix in (".c", ".h", ".map") or path.name == "Makefile":
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    digest.update(" ".join([*command, os.uname().machine, os.environ.get("CFLAGS", "")]).encode())
    try:
        cache = _cache()
        cache.mkdir(parents=True, exist_ok=True)
        if os.stat(cache).st_uid != os.getuid():
            raise PermissionError(1, "belongs to another user", str(cache))
        found = cache / digest.hexdigest()[:32]
        if all((found / name).exists() for name in FILES):
            return found
        made = Path(tempfile.mkdtemp(prefix=".building-", dir=cache))
    except OSError as error:
        raise ClientBuildError(
            f"the cache folder {error.filename} cannot be used: {error.strerror}; set XDG_CACHE_HOME to another"
        ) from None
    try:
        _make(command, made)
        made.chmod(0o755)
        try:
            made.rename(found)
        except OSError:
            if not (found / LIBRARY).exists():  # else somebody has built the same meanwhile
                raise
    except OSError as error:
        raise ClientBuildError(f"the client library cannot be kept in {found}: {error.strerror}") from None
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return found


def _make(command: list[str], directory: Path) -> None:
    make = shutil.which("make") or shutil.which("gmake")
    if make is None:
        raise ClientBuildError("make is not on PATH; install it (Debian: apt install make; RHEL: dnf install make)")
    environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL")}
    try:
        result = subprocess.run(
            [make, "-s", "-C", str(source_dir()), f"BUILD={directory}", f"CC={' '.join(command)}"],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=BUILD_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise ClientBuildError(f"the client library was not built within {BUILD_TIMEOUT_S} s") from None
    if result.returncode != 0:
        said = [line for line in result.stderr.splitlines() if "error" in line.lower()] or result.stderr.splitlines()
        reason = said[0].strip() if said else "no reason given"
        raise ClientBuildError(
            f"the client library cannot be built with {' '.join(command)}: {reason}; "
            "a C compiler with the C library's headers is needed (Debian: apt install gcc libc6-dev make)"
        )
    shutil.rmtree(directory / "objects", ignore_errors=True)
