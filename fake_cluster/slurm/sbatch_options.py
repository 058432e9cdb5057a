"""The options of sbatch and srun that the simulated Slurm honours, read as getopt_long reads them.

Long options may be abbreviated while that is unambiguous; `--name=value` and `--name value` are the same; short ones
may be joined with their value (`-n4`). Errors have the words of 22.05.
"""

from __future__ import annotations

from collections.abc import Sequence

from fake_cluster.slurm.interface import SubmitError

_VALUE, _FLAG, _OPTIONAL = "value", "flag", "optional"

# Honoured: they change what happens here.
HONOURED = {
    "job-name": _VALUE,
    "array": _VALUE,
    "requeue": _FLAG,
    "no-requeue": _FLAG,
    "ntasks": _VALUE,
    "cpus-per-task": _VALUE,
    "nodes": _VALUE,
    "time": _VALUE,
    "licenses": _VALUE,
    "output": _VALUE,
    "error": _VALUE,
    "input": _VALUE,
    "export": _VALUE,
    "comment": _VALUE,
    "begin": _VALUE,
    "dependency": _VALUE,
    "chdir": _VALUE,
    "account": _VALUE,
    "juice-pool": _VALUE,
    "juice-gpu-count": _VALUE,
    "juice-vram": _VALUE,
    "juice-vram-strict": _FLAG,
    "juice-match-labels": _VALUE,
    "juice-tolerates": _VALUE,
}

# Known to Slurm, accepted and without effect here; listed so that abbreviations are as (un)ambiguous as there.
WITHOUT_EFFECT = {
    "partition": _VALUE,
    "qos": _VALUE,
    "mem": _VALUE,
    "mem-per-cpu": _VALUE,
    "ntasks-per-node": _VALUE,
    "constraint": _VALUE,
    "nodelist": _VALUE,
    "nodefile": _VALUE,
    "no-kill": _OPTIONAL,
    "exclude": _VALUE,
    "exclusive": _OPTIONAL,
    "oversubscribe": _FLAG,
    "gres": _VALUE,
    "gpus": _VALUE,
    "mail-type": _VALUE,
    "mail-user": _VALUE,
    "nice": _OPTIONAL,
    "open-mode": _VALUE,
    "parsable": _FLAG,
    "priority": _VALUE,
    "propagate": _OPTIONAL,
    "quiet": _FLAG,
    "reservation": _VALUE,
    "signal": _VALUE,
    "time-min": _VALUE,
    "tmp": _VALUE,
    "verbose": _FLAG,
    "wait": _FLAG,
    "wckey": _VALUE,
    "label": _FLAG,
    "unbuffered": _FLAG,
    "immediate": _OPTIONAL,
    "kill-on-bad-exit": _OPTIONAL,
    "mpi": _VALUE,
}

SHORT = {
    "J": "job-name",
    "a": "array",
    "n": "ntasks",
    "c": "cpus-per-task",
    "N": "nodes",
    "t": "time",
    "L": "licenses",
    "o": "output",
    "e": "error",
    "i": "input",
    "b": "begin",
    "d": "dependency",
    "D": "chdir",
    "A": "account",
    "p": "partition",
    "q": "qos",
    "C": "constraint",
    "w": "nodelist",
    "x": "exclude",
    "Q": "quiet",
    "v": "verbose",
    "W": "wait",
    "l": "label",
    "u": "unbuffered",
    "s": "oversubscribe",
    "H": "hold",
}

_ALL = HONOURED | WITHOUT_EFFECT


def read_options(words: Sequence[str], command: str = "sbatch") -> list[tuple[str, str]]:
    """(long name, value) for each option, in order; flags have the value "". SubmitError with the command's words."""

    def refuse(text: str) -> SubmitError:
        return SubmitError(f'{command}: {text}\nTry "{command} --help" for more information')

    found: list[tuple[str, str]] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word.startswith("--") and len(word) > 2:
            given, equals, value = word[2:].partition("=")
            names = [given] if given in _ALL else [name for name in _ALL if name.startswith(given)]
            if not names:
                raise refuse(f"unrecognized option '{word}'")
            if len(names) > 1:
                # getopt lists Slurm's own options first, then the plugins' in their order.
                own = sorted(name for name in names if not name.startswith("juice-"))
                plugins = [name for name in names if name.startswith("juice-")]
                possible = " ".join(f"'--{name}'" for name in own + plugins)
                raise refuse(f"option '{word}' is ambiguous; possibilities: {possible}")
            name = names[0]
            kind = _ALL[name]
            if kind == _FLAG and equals:
                raise refuse(f"option '--{name}' doesn't allow an argument")
            if kind == _VALUE and not equals:
                if not rest:
                    raise refuse(f"option '--{name}' requires an argument")
                value = rest.pop(0)
            found.append((name, value))
        elif word.startswith("-") and len(word) > 1:
            letters = word[1:]
            while letters:
                letter, letters = letters[0], letters[1:]
                name = SHORT.get(letter, "")
                if name not in _ALL:
                    raise refuse(f"invalid option -- '{letter}'")
                if _ALL[name] == _VALUE:
                    if not letters and not rest:
                        raise refuse(f"option requires an argument -- '{letter}'")
                    found.append((name, letters or rest.pop(0)))
                    letters = ""
                else:
                    found.append((name, ""))
        else:
            raise SubmitError(f"{command}: error: {word!r} is not an option; options begin with - or --")
    return found
