"""The words of sbatch and srun on a command line: options first, then a script or a program with words of its own."""

from __future__ import annotations

from collections.abc import Sequence

from ..slurm.sbatch_options import HONOURED, SHORT, WITHOUT_EFFECT

_ALL = HONOURED | WITHOUT_EFFECT


def _takes_a_word(word: str) -> bool:
    """Whether the value of this option is the next word."""
    if word.startswith("--"):
        given, equals, _ = word[2:].partition("=")
        names = [given] if given in _ALL else [name for name in _ALL if name.startswith(given)]
        # What is unknown or ambiguous is refused later, with the command's own words.
        return not equals and len(names) == 1 and _ALL[names[0]] == "value"
    for position, letter in enumerate(word[1:], 1):
        kind = _ALL.get(SHORT.get(letter, ""), "flag")
        if kind != "flag":
            return kind == "value" and position == len(word) - 1
    return False


def split(words: Sequence[str], *, components: bool = False) -> tuple[list[str], list[str]]:
    """(options, rest). With `components` (srun), a lone `:` after the options of one het component is kept in the
    options together with those of the next, as the back ends take it."""
    rest = list(words)
    options: list[str] = []
    while rest:
        word = rest[0]
        if word == "--":
            return options, rest[1:]
        if word == ":" and components:
            options.append(rest.pop(0))
        elif word.startswith("-") and word != "-":
            options.append(rest.pop(0))
            if rest and _takes_a_word(word):
                options.append(rest.pop(0))
        else:
            break
    return options, rest


def take_value(options: Sequence[str], name: str) -> tuple[list[str], str | None]:
    """(the options without `--name=VALUE` or `--name VALUE`, the last such value): for options that only the command
    itself knows."""
    left: list[str] = []
    value: str | None = None
    rest = list(options)
    while rest:
        word = rest.pop(0)
        if word == f"--{name}" and rest:
            value = rest.pop(0)
        elif word.startswith(f"--{name}="):
            value = word.partition("=")[2]
        else:
            left.append(word)
    return left, value


def has_flag(options: Sequence[str], *names: str) -> bool:
    return any(word in names for word in options)
