"""For which Slurm a SPANK plugin was built, and whether it fits the Slurm that is to load it.

Slurm refuses a plugin whose `plugin_version` is of another release (the first two numbers; seen on 22.05.8 and
24.11.5, which both take any patch release of their own). The number is read from the file: nothing is loaded or run.
"""

from __future__ import annotations

import glob
import os
import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

Version = tuple[int, int, int]
SYMBOL = "plugin_version"  # what the macro SPANK_PLUGIN of slurm/spank.h exports: SLURM_VERSION_NUMBER
SLURM_CONF = Path("/etc/slurm/slurm.conf")
PLUGIN_DIRECTORIES = ("/usr/lib/*/slurm-wlm", "/usr/lib64/slurm", "/usr/lib/slurm", "/usr/local/lib/slurm")

_SHT_DYNSYM = 11
_SHN_UNDEF = 0


class BuildUnknown(ValueError):
    """The file does not say for which Slurm it was built; `str(error)` says why."""


def version_text(version: Version) -> str:
    """As Slurm's releases are called, e.g. `22.05.8`."""
    return "{}.{:02}.{}".format(*version)


def release(version: Version) -> str:
    """The part that must be the same: `22.05`."""
    return version_text(version).rpartition(".")[0]


def same_release(one: Version, other: Version) -> bool:
    return one[:2] == other[:2]


def built_for(plugin: Path) -> Version:
    """The Slurm against whose headers the plugin was built. Raises OSError, and BuildUnknown for what is no plugin."""
    try:
        number = _symbol_value(plugin.read_bytes(), SYMBOL)
    except (struct.error, IndexError):
        raise BuildUnknown("an ELF file that is damaged or cut off") from None
    return number >> 16 & 0xFF, number >> 8 & 0xFF, number & 0xFF


def _symbol_value(data: bytes, wanted: str) -> int:
    """The unsigned int that a dynamic symbol of a 64-bit ELF file names."""
    if data[:4] != b"\x7fELF":
        raise BuildUnknown("not an ELF file, so not a plugin")
    if data[4] != 2:
        raise BuildUnknown("not a 64-bit file")
    order = "<" if data[5] == 1 else ">"
    (table,) = struct.unpack_from(f"{order}Q", data, 40)
    entry_size, count = struct.unpack_from(f"{order}HH", data, 58)
    # name, type, flags, addr, offset, size, link, info, addralign, entsize
    sections = [struct.unpack_from(f"{order}IIQQQQIIQQ", data, table + i * entry_size) for i in range(count)]
    for _, kind, _, _, offset, size, link, _, _, step in sections:
        if kind != _SHT_DYNSYM or step == 0:
            continue
        names = sections[link][4]
        for position in range(offset, offset + size, step):
            name, _, _, section, address, _ = struct.unpack_from(f"{order}IBBHQQ", data, position)
            end = data.find(b"\0", names + name)
            if section == _SHN_UNDEF or data[names + name : end] != wanted.encode():
                continue
            holder = sections[section]
            (value,) = struct.unpack_from(f"{order}I", data, holder[4] + address - holder[3])
            return int(value)
    raise BuildUnknown(f"it exports no {wanted}, so it is not a plugin of Slurm")


@dataclass(frozen=True)
class Judgement:
    """Whether one plugin fits. `detail` and `remedy` are one line each; `remedy` is empty when `fits`."""

    plugin: Path
    fits: bool
    detail: str
    remedy: str = ""


def judge(plugin: Path, loaders: Mapping[str, Version], source: str = "spank-plugin") -> Judgement:
    """`loaders`: the programs here that load plugins (srun, slurmd, ...) with their versions; empty when there is no
    Slurm here, and then a plugin of any release passes. `source`: the folder with the plugin's Makefile."""
    rebuild = f"make -C {source} clean all install"
    try:
        version = built_for(plugin)
    except OSError as error:
        return Judgement(plugin, False, f"{plugin} cannot be read: {error.strerror}", rebuild)
    except BuildUnknown as error:
        return Judgement(plugin, False, f"{plugin} is no SPANK plugin: {error}", rebuild)
    built = f"{plugin} was built for Slurm {version_text(version)}"
    if not loaders:
        return Judgement(plugin, True, f"{built}; no srun, slurmd or slurmctld here to compare it with")
    refusing = {name: found for name, found in loaders.items() if not same_release(version, found)}
    if not refusing:
        return Judgement(plugin, True, f"{built} and fits {_listed(loaders)}")
    target = release(next(iter(refusing.values())))
    remedy = (
        f"{rebuild}, with the headers of Slurm {target} (make -C {source} slurm-version says which are found), then "
        "restart slurmd; until then comment the line out in plugstack.conf"
    )
    return Judgement(
        plugin,
        False,
        f"{built} and does not fit {_listed(refusing)}: Slurm refuses it (Incompatible Slurm plugin), and where "
        "plugstack.conf says `required`, srun, sbatch and salloc fail and slurmd does not start",
        remedy,
    )


def _listed(versions: Mapping[str, Version]) -> str:
    return ", ".join(f"{name} {version_text(version)}" for name, version in versions.items())


def version_of(text: str) -> Version | None:
    """The version in what `srun -V` prints, e.g. `slurm-wlm 22.05.8`."""
    found = re.search(r"(\d+)\.(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2]), int(found[3])) if found else None


def configured_plugins(slurm_conf: Path | None = None) -> list[Path]:
    """The plugins that juice lines of plugstack.conf name, with its includes. `slurm_conf`: $SLURM_CONF or
    /etc/slurm/slurm.conf unless given; PlugStackConfig and PluginDir in it count. Empty without a plugstack.conf."""
    conf = slurm_conf or Path(os.environ.get("SLURM_CONF") or SLURM_CONF)
    stack = Path(_setting(conf, "PlugStackConfig") or conf.with_name("plugstack.conf"))
    directories = (_setting(conf, "PluginDir") or ":".join(PLUGIN_DIRECTORIES)).split(":")
    found: list[Path] = []
    for name in _named(stack, set()):
        plugin = Path(name) if name.startswith("/") else _look_for(name, directories)
        if plugin not in found:
            found.append(plugin)
    return found


def _lines(path: Path) -> list[str]:
    try:
        text = path.read_text("utf-8", "replace")
    except OSError:
        return []  # no Slurm is configured here, or not for our eyes
    return [line.partition("#")[0].strip() for line in text.splitlines()]


def _setting(conf: Path, name: str) -> str | None:
    """A setting of slurm.conf itself; that of a file which it includes is not seen."""
    for line in _lines(conf):
        key, _, value = line.partition("=")
        if key.strip().lower() == name.lower():
            return value.strip()
    return None


def _named(stack: Path, seen: set[Path]) -> Iterable[str]:
    if stack in seen:
        return
    seen.add(stack)
    for words in map(str.split, _lines(stack)):
        if len(words) < 2:
            continue
        if words[0] == "include":
            # A relative pattern is meant from the including file's directory.
            for included in sorted(glob.glob(str(stack.parent / words[1]))):
                yield from _named(Path(included), seen)
        elif words[0] in ("required", "optional") and "juice" in os.path.basename(words[1]):
            yield words[1]


def _look_for(name: str, directories: Iterable[str]) -> Path:
    candidates = [Path(entry) / name for pattern in directories for entry in sorted(glob.glob(pattern))]
    return next((path for path in candidates if path.exists()), candidates[0] if candidates else Path(name))
