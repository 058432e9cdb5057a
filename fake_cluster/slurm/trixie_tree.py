"""Slurm of another Debian release in a directory, runnable where it stands: no root, no chroot, nothing installed.

`python -m fake_cluster.slurm.trixie_tree DIR` downloads the Slurm packages of Debian 13 (trixie: Slurm 24.11) with all
that they depend on through the machine's own apt, from the mirror and with the keyring that its sources name, unpacks
them below DIR, and makes DIR/relocated: copies of Slurm's programs that start with the tree's own loader and find the
tree's own libraries. They see the host's files, so hooks, Python and jobs are the host's. A finished tree is left
alone. `RealSlurm(prefix=DIR)` uses it; tests look for it in $JUICE_SIM_SLURM_TREE.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from .elf import relocate
from .slurm_binaries import COMMANDS, DAEMONS, RELOCATED, SlurmNotFound, find_slurm

SUITE = "trixie"
# libslurm-dev and libsodium-dev: SPANK plugins for this Slurm are built against the tree.
PACKAGES = (
    "slurmctld",
    "slurmd",
    "slurm-client",
    "slurm-wlm-basic-plugins",
    "libslurm-dev",
    "libsodium-dev",
)
KEYRINGS = ("/usr/share/keyrings/debian-archive-keyring.gpg", "/usr/share/keyrings/debian-archive-keyring.pgp")
OTHER_PROGRAMS = ("salloc", "sacct", "sattach", "scrontab")
TREE_VARIABLE = "JUICE_SIM_SLURM_TREE"


class TreeError(Exception):
    """The tree cannot be made here; `str(error)` says why and what to do."""


def run(argv: Sequence[str | Path]) -> str:
    done = subprocess.run([str(arg) for arg in argv], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        last = "\n".join((done.stderr or done.stdout).strip().splitlines()[-5:])
        raise TreeError(f"{argv[0]} failed with code {done.returncode}:\n{last}")
    return done.stdout


def mirror() -> str:
    """The URL from which this machine's apt gets Debian's main archive. Raises TreeError."""
    if shutil.which("apt-get") is None:
        raise TreeError("no apt-get: a tree is made on Debian or Ubuntu only (elsewhere use a container or --mirror)")
    listed = run(
        ["apt-get", "indextargets", "--format", "$(ORIGIN)|$(COMPONENT)|$(REPO_URI)|$(RELEASE)", "Created-By: Packages"]
    )
    for line in listed.splitlines():
        origin, component, uri, release = line.split("|", 3)
        archive = not release.endswith(("-updates", "-security", "-backports")) and "security" not in uri
        if component == "main" and archive and (origin == "Debian" or not origin):
            return uri.rstrip("/")
    raise TreeError("no source of Debian's main archive among this machine's apt sources; name one with --mirror URL")


def download(tree: Path, source: str, keyring: Path) -> list[Path]:
    """Fetch the packages and all that they depend on, verified by apt; nothing of the machine's apt is touched."""
    base = tree / "apt"
    for name in ("state/lists/partial", "cache/archives/partial", "etc"):
        (base / name).mkdir(parents=True, exist_ok=True)
    (base / "status").touch()
    (base / "etc" / "sources.list").write_text(f"deb [signed-by={keyring}] {source} {SUITE} main\n")
    options = {
        "Dir::State": base / "state",
        "Dir::State::status": base / "status",  # nothing is installed, so everything is fetched
        "Dir::Cache": base / "cache",
        "Dir::Etc::SourceList": base / "etc" / "sources.list",
        "Dir::Etc::SourceParts": "-",
        "Dir::Etc::Preferences": "-",
        "Dir::Etc::PreferencesParts": "-",
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "",
        "APT::Get::AllowUnauthenticated": "false",
        "Acquire::Languages": "none",
        "Acquire::Retries": "3",
    }
    apt = ["apt-get", "-qq"]
    for name, value in options.items():
        apt += ["-o", f"{name}={value}"]
    run([*apt, "update"])
    run([*apt, "install", "--yes", "--download-only", *PACKAGES])
    found = sorted((base / "cache" / "archives").glob("*.deb"))
    if not found:
        raise TreeError(f"apt-get fetched no packages of {SUITE} from {source}")
    return found


def unpack(packages: Sequence[Path], tree: Path) -> None:
    for name in ("bin", "sbin", "lib", "lib64"):  # a merged /usr, as base-files would set it up
        (tree / "usr" / name).mkdir(parents=True, exist_ok=True)
        if not (tree / name).is_symlink():
            (tree / name).symlink_to(f"usr/{name}")
    for package in packages:
        run(["dpkg-deb", "--extract", package, tree])


def libraries(tree: Path) -> tuple[Path, Path, Path]:
    """(directory of shared libraries, directory of Slurm's plugins, loader) of an unpacked tree."""
    for plugins in sorted((tree / "usr" / "lib").glob("*/slurm-wlm")):
        loaders = sorted(plugins.parent.glob("ld-linux*.so.*"))
        if loaders:
            return plugins.parent, plugins, loaders[0]
    raise TreeError(f"{tree} holds no usr/lib/*/slurm-wlm with a loader beside it")


def make_relocated(tree: Path) -> Path:
    """DIR/relocated: programs, `lib` (links to every library) and `plugins`. Returns it."""
    shared, plugins, loader = libraries(tree)
    target = tree / RELOCATED
    unfinished = tree / f"{RELOCATED}.new"
    shutil.rmtree(unfinished, ignore_errors=True)
    (unfinished / "lib").mkdir(parents=True)
    for library in [*shared.glob("*.so*"), plugins / "libslurmfull.so"]:
        if library.exists():
            (unfinished / "lib" / library.name).symlink_to(os.path.relpath(library, unfinished / "lib"))
    (unfinished / "plugins").symlink_to(os.path.relpath(plugins, unfinished))
    for name in (*DAEMONS, *COMMANDS, *OTHER_PROGRAMS):
        for candidate in (tree / "usr/sbin" / f"{name}-wlm", tree / "usr/sbin" / name, tree / "usr/bin" / name):
            if candidate.is_file() and not candidate.is_symlink():
                program = unfinished / name
                program.write_bytes(relocate(candidate.read_bytes(), str(loader.absolute()), "$ORIGIN/lib"))
                program.chmod(0o755)
                break
    shutil.rmtree(target, ignore_errors=True)
    unfinished.rename(target)
    return target


def make_tree(tree: Path, source: str | None = None) -> str:
    """Make the tree, or find it made; returns the version of its Slurm. Raises TreeError."""
    tree = tree.absolute()
    try:
        # Programs know their loader by an absolute path: a tree that was moved is relocated anew.
        return find_slurm(tree).version_text
    except SlurmNotFound:
        pass
    tree.mkdir(parents=True, exist_ok=True)
    if not list((tree / "usr" / "lib").glob("*/slurm-wlm")):
        keyring = next((Path(path) for path in KEYRINGS if Path(path).exists()), None)
        if keyring is None:
            raise TreeError("no keyring of Debian's archive; apt-get install debian-archive-keyring")
        unpack(download(tree, source or mirror(), keyring), tree)
        shutil.rmtree(tree / "apt")
    make_relocated(tree)
    try:
        return find_slurm(tree).version_text
    except SlurmNotFound as error:
        raise TreeError(f"the finished tree does not work: {error}") from None


def tree_missing() -> str | None:
    """None when $JUICE_SIM_SLURM_TREE names a tree that works, else why not, with the remedy."""
    named = os.environ.get(TREE_VARIABLE)
    if not named:
        command = f"{sys.executable} -m fake_cluster.slurm.trixie_tree DIR"
        return f"no tree of another Slurm; to get it (15 s, 120 MB): {command}, then {TREE_VARIABLE}=DIR"
    try:
        find_slurm(Path(named))
    except SlurmNotFound as error:
        return f"{TREE_VARIABLE}={named}: {error}"
    return None


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m fake_cluster.slurm.trixie_tree", description=__doc__.split("\n")[0]
    )
    parser.add_argument("directory", type=Path, help=f"where the tree goes (tests look in ${TREE_VARIABLE})")
    parser.add_argument("--mirror", help="URL of a Debian archive; default: that of this machine's apt sources")
    args = parser.parse_args(argv)
    try:
        version = make_tree(args.directory, args.mirror)
    except (TreeError, OSError) as error:
        print(f"trixie_tree: {error}", file=sys.stderr)
        return 1
    print(f"Slurm {version} in {args.directory}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
