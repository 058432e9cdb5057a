"""What the SPANK plugin does on the submit side: checks --juice-* and says what the hooks get.

The C plugin and this module reject the same values with the same words. Each error is one line; srun and sbatch put
`error: ` and their own name in front. `{o}` is the option as the user knows it, `{v}` its value:

    juice: {o}: empty value; give {what}
    juice: --juice-pool: {v}: a pool name has at most 255 bytes
    juice: --juice-pool: a pool name has printable characters only
    juice: --juice-gpu-count: {v}: give a whole number from 1 to 1024
    juice: --juice-vram: <what the parser of VRAM quantities says>
    juice: {o} given twice with different values: {v} and {w}
    juice: {o} needs --juice-pool
    juice: --juice-vram is for single-GPU sessions; leave it out or use --juice-gpu-count=1

`{what}` is `the name of a pool`, `a number of GPUs` or `a size such as 16 or 8GiB`. Long values are cut to 40 bytes and
`...`. Defaults come from the environment of the submitting shell, JUICE_POOL, JUICE_GPU_COUNT and JUICE_VRAM; the
command line overrides `#SBATCH` lines, which override these. Without a pool the environment's other two mean nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fake_cluster.slurm.interface import SubmitError
from juice_sim.core.units import VramError, parse_vram

PLUGIN = "juice"
MAX_POOL_BYTES = 255
MAX_GPUS = 1024

# Option -> (variable, what to give)
OPTIONS = {
    "juice-pool": ("JUICE_POOL", "the name of a pool"),
    "juice-gpu-count": ("JUICE_GPU_COUNT", "a number of GPUs"),
    "juice-vram": ("JUICE_VRAM", "a size such as 16 or 8GiB"),
}


def _shown(value: str) -> str:
    raw = value.encode("utf-8", "surrogateescape")
    return value if len(raw) <= 40 else raw[:40].decode("utf-8", "ignore") + "..."


def _check(option: str, value: str) -> str:
    """The value as the hooks get it."""
    if not value.strip():
        raise SubmitError(f"juice: --{option}: empty value; give {OPTIONS[option][1]}")
    if option == "juice-pool":
        if len(value.encode("utf-8", "surrogateescape")) > MAX_POOL_BYTES:
            raise SubmitError(f"juice: --juice-pool: {_shown(value)}: a pool name has at most {MAX_POOL_BYTES} bytes")
        if not value.isprintable():
            raise SubmitError("juice: --juice-pool: a pool name has printable characters only")
        return value
    if option == "juice-gpu-count":
        if not (value.isascii() and value.isdigit() and len(value) <= 4 and 1 <= int(value) <= MAX_GPUS):
            raise SubmitError(f"juice: --juice-gpu-count: {_shown(value)}: give a whole number from 1 to {MAX_GPUS}")
        return str(int(value))
    try:
        return str(parse_vram(value))
    except VramError as refused:
        raise SubmitError(f"juice: --juice-vram: {refused}") from None


class JuiceOptions:
    """The plugin's options of one job (component). Give it the weakest source first: `defaults`, then each `source`."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._given: set[str] = set()

    def defaults(self, environment: Mapping[str, str]) -> None:
        """JUICE_POOL, JUICE_GPU_COUNT, JUICE_VRAM of the submitting shell; empty ones count as unset."""
        for option, (variable, _) in OPTIONS.items():
            if environment.get(variable):
                self._values[option] = environment[variable]

    def source(self, given: Iterable[tuple[str, str]]) -> None:
        """Options of one source (`#SBATCH` lines, or the command line), which overrides those before it.

        The same value twice is fine (Slurm itself calls plugins twice); two different ones are an error.
        """
        seen: dict[str, str] = {}
        for option, value in given:
            checked = _check(option, value)
            if seen.setdefault(option, checked) != checked:
                raise SubmitError(
                    f"juice: --{option} given twice with different values: {_shown(seen[option])} and {_shown(checked)}"
                )
            self._values[option] = value
            self._given.add(option)

    def environment(self) -> dict[str, str]:
        """JUICE_POOL, JUICE_GPU_COUNT and JUICE_VRAM (bytes) for `spank_job_control_setenv`; empty: not a Juice job."""
        pool = self._values.get("juice-pool")
        if pool is None:
            for option in ("juice-gpu-count", "juice-vram"):
                if option in self._given:
                    raise SubmitError(f"juice: --{option} needs --juice-pool")
            return {}
        checked = {option: _check(option, value) for option, value in self._values.items()}
        if "juice-vram" in checked and int(checked.get("juice-gpu-count", "1")) > 1:
            raise SubmitError("juice: --juice-vram is for single-GPU sessions; leave it out or use --juice-gpu-count=1")
        result = {"JUICE_POOL": checked["juice-pool"], "JUICE_GPU_COUNT": checked.get("juice-gpu-count", "1")}
        if "juice-vram" in checked:
            result["JUICE_VRAM"] = checked["juice-vram"]
        return result

    def raw(self) -> dict[str, str]:
        """The raw options as slurmctld passes them on: `{"juice_juice_pool": "test"}`; only what was really given."""
        return {
            f"{PLUGIN}_{option.replace('-', '_')}": self._values[option] for option in OPTIONS if option in self._given
        }
