"""What the SPANK plugin does on the submit side: checks --juice-* and says what the hooks get.

The same rules and words as `spank-plugin/options.c`; a test runs both on one table where a compiler is at hand. Each
error is one line, `{o}` is `--juice-pool` or, for a default, `JUICE_POOL in the environment`; values are quoted:

    {o}: "{value}" {what is wrong}; accepted: {forms}
    {o}: given as "{a}" and as "{b}"; accepted: one value
    --juice-vram: "{value}" needs a pool; add --juice-pool=NAME
    --juice-vram-strict needs a size; add --juice-vram=SIZE
    {o}: "{value}" with {o}={count}: a slice of VRAM is for one GPU only; leave one out

Defaults come from the environment of the submitting shell (an empty variable is an unset one); without a pool the
others mean nothing there. An option in an `#SBATCH` line and on the command line is given twice: two different values
are an error, not an override, since the plugin cannot tell where an option comes from.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from fake_cluster.slurm.interface import SubmitError
from juice_sim.core.units import ACCEPTED as VRAM_ACCEPTED
from juice_sim.core.units import VramError, parse_vram

MAX_POOL = 255  # characters
MAX_GPUS = 64
MAX_LABELS = 1024
MAX_VRAM_TEXT = 64
_SHOWN = 60

_NAME = r"[A-Za-z0-9_](?:[-A-Za-z0-9_./:]*[A-Za-z0-9_])?"
_BLANK = r"[ \t]*"
_SET = rf"{_BLANK}\({_BLANK}{_NAME}{_BLANK}(?:,{_BLANK}{_NAME}{_BLANK})*\)"
_TERM = rf"(?:!{_BLANK}{_NAME}|{_NAME}{_BLANK}(?:==|!=|=){_BLANK}(?:{_NAME})?|{_NAME}[ \t]+(?:notin|in){_SET}|{_NAME})"
_SELECTOR = re.compile(rf"{_BLANK}{_TERM}{_BLANK}(?:,{_BLANK}{_TERM}{_BLANK})*")
_PAIRS = re.compile(rf"{_NAME}=(?:{_NAME})?(?:,{_NAME}=(?:{_NAME})?)*")

_YES = ("1", "yes", "true", "on")
_NO = ("0", "no", "false", "off")


class _Wrong(Exception):
    pass


def _pool(text: str) -> str:
    if not text.strip(" "):
        raise _Wrong("is empty")
    if any(_is_control(c) for c in text):
        raise _Wrong("is not printable text")
    if len(text) > MAX_POOL:
        raise _Wrong("is too long")
    return text


def _count(text: str) -> str:
    if not text:
        raise _Wrong("is empty")
    if not (text.isascii() and text.isdigit()):
        raise _Wrong("is not a whole number")
    number = int(text.lstrip("0")[:5] or "0")
    if number == 0:
        raise _Wrong("is not a number of GPUs")
    if number > MAX_GPUS:
        raise _Wrong("is more than one session can have")
    return str(number)


def _vram(text: str) -> str:
    try:
        return str(parse_vram(text))
    except VramError as error:
        raise _Wrong(error.reason) from None


def _strict(text: str) -> str:
    if text.lower() in _YES:
        return "1"
    if text.lower() in _NO:
        return "0"
    raise _Wrong("is neither yes nor no")


def _labels(form: re.Pattern[str], what: str) -> Callable[[str], str]:
    def check(text: str) -> str:
        if not text:
            raise _Wrong("is empty")
        if len(text.encode("utf-8", "surrogateescape")) > MAX_LABELS or not form.fullmatch(text):
            raise _Wrong(f"is not {what}")
        return text

    return check


class _Option(NamedTuple):
    variable: str
    check: Callable[[str], str]
    accepted: str
    flag: bool = False


# In the order of the plugin's own table.
OPTIONS = {
    "juice-pool": _Option(
        "JUICE_POOL",
        _pool,
        "the name or id of a pool, 1 to 255 characters of UTF-8, none of them a control character",
    ),
    "juice-gpu-count": _Option("JUICE_GPU_COUNT", _count, f"a whole number from 1 to {MAX_GPUS}"),
    "juice-vram": _Option("JUICE_VRAM", _vram, VRAM_ACCEPTED),
    "juice-vram-strict": _Option("JUICE_VRAM_STRICT", _strict, "1, yes, true, on, 0, no, false or off", flag=True),
    "juice-match-labels": _Option(
        "JUICE_MATCH_LABELS",
        _labels(_SELECTOR, "a label selector"),
        "k=v, k!=v, k in (a,b), k notin (a,b), k or !k, separated by commas",
    ),
    "juice-tolerates": _Option("JUICE_TOLERATES", _labels(_PAIRS, "a list of taints"), "k=v, separated by commas"),
}


def _is_control(c: str) -> bool:
    return unicodedata.category(c) in ("Cc", "Cs") or c in "\u2028\u2029"


def quoted(text: str) -> str:
    """A value as error messages show it: in quotes, control characters escaped, cut when it is long."""
    shown, size = "", 0
    for c in text:
        raw = c.encode("utf-8", "surrogateescape")
        if size + len(raw) > _SHOWN:
            return f'"{shown}"... ({len(text.encode("utf-8", "surrogateescape"))} bytes)'
        size += len(raw)
        if _is_control(c):
            shown += "".join(f"\\x{byte:02x}" for byte in raw)
        else:
            shown += "\\" + c if c in '"\\' else c
    return f'"{shown}"'


class JuiceOptions:
    """The plugin's options of one job (component): `give` what the user wrote, then `settle`.

    `command` is who speaks in the errors: sbatch, srun or salloc.
    """

    def __init__(self, command: str = "sbatch") -> None:
        self._command = command
        self._given: dict[str, str] = {}
        self._values: dict[str, str] = {}
        self._preset: set[str] = set()

    def give(self, options: Iterable[tuple[str, str]]) -> None:
        """Options in the order in which the command comes upon them: `#SBATCH` lines, then the command line."""
        for option, text in options:
            try:
                self._take(option, "1" if OPTIONS[option].flag else text, preset=False)
            except SubmitError as error:
                raise SubmitError(
                    f"{self._command}: error: juice: {error}\n"
                    f"{self._command}: error: Invalid --{option} argument: {text}"
                ) from None

    def settle(self, environment: Mapping[str, str]) -> dict[str, str]:
        """What goes to the hooks by `spank_job_control_setenv` (JUICE_POOL, JUICE_GPU_COUNT, JUICE_VRAM in bytes, ...);
        empty: not a Juice job. `environment` is the submitting shell's."""
        try:
            self._settle(environment)
        except SubmitError as error:
            end = "." if self._command == "srun" else ""
            raise SubmitError(
                f"{self._command}: error: juice: {error}\n"
                f"{self._command}: error: spank: required plugin juice.so: init_post_opt() failed with rc=-1\n"
                f"{self._command}: error: Plugin stack post-option processing failed{end}"
            ) from None
        return {OPTIONS[option].variable: self._values[option] for option in OPTIONS if option in self._values}

    def _label(self, option: str) -> str:
        return f"{OPTIONS[option].variable} in the environment" if option in self._preset else f"--{option}"

    def _take(self, option: str, text: str, preset: bool) -> None:
        if preset:
            self._preset.add(option)
        try:
            value = OPTIONS[option].check(text)
        except _Wrong as wrong:
            raise SubmitError(
                f"{self._label(option)}: {quoted(text)} {wrong}; accepted: {OPTIONS[option].accepted}"
            ) from None
        if self._values.setdefault(option, value) != value:
            first = quoted(self._given[option])
            raise SubmitError(f"{self._label(option)}: given as {first} and as {quoted(text)}; accepted: one value")
        self._given.setdefault(option, text)

    def _take_preset(self, option: str, environment: Mapping[str, str]) -> None:
        text = environment.get(OPTIONS[option].variable)
        if option not in self._values and text:
            self._take(option, text, preset=True)

    def _settle(self, environment: Mapping[str, str]) -> None:
        self._take_preset("juice-pool", environment)
        if "juice-pool" not in self._values:
            for option in OPTIONS:
                if option in self._values:
                    value = "" if OPTIONS[option].flag else f": {quoted(self._given[option])}"
                    raise SubmitError(f"--{option}{value} needs a pool; add --juice-pool=NAME")
            return
        for option in OPTIONS:
            self._take_preset(option, environment)
        if "juice-gpu-count" not in self._values:
            self._take("juice-gpu-count", "1", preset=True)
        count = self._values["juice-gpu-count"]
        if "juice-vram" in self._values and count != "1":
            raise SubmitError(
                f"{self._label('juice-vram')}: {quoted(self._given['juice-vram'])} with "
                f"{self._label('juice-gpu-count')}={count}: a slice of VRAM is for one GPU only; leave one out"
            )
        if self._values.get("juice-vram-strict") == "0":
            del self._values["juice-vram-strict"]
        if "juice-vram-strict" in self._values and "juice-vram" not in self._values:
            if "juice-vram-strict" not in self._preset:
                raise SubmitError("--juice-vram-strict needs a size; add --juice-vram=SIZE")
            del self._values["juice-vram-strict"]
