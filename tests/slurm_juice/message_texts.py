"""Every error text of hooks and plugin, read from their sources: what docs/troubleshooting.md must explain."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
HOOK = ROOT / "hooks" / "juice_hook.py"
WRAPPER = ROOT / "hooks" / "juice-prolog.sh"
PLUGIN = ROOT / "spank-plugin"

RAISED = {"Denied", "TryLater", "SiteFault", "SessionFileError", "ValueError", "refused", "line"}
RETURNING = {"file_problem", "read_token", "read_key", "state_problem"}
C_CALLS = r"\b(slurm_error|failed|fail|complain_of|complain|refuse|snprintf)\s*\("
PLACEHOLDER = re.compile(r"%(?:[-+ #0]*(?:\d+|\*)?(?:\.(?:\d+|\*))?(?:z|l|ll)?[sdiuofxcr]|%)|\0")


def words_of(text: str) -> int:
    return len(re.findall(r"[A-Za-z]{2,}", PLACEHOLDER.sub(" ", text)))


def fragments(message: str) -> list[str]:
    """The fixed parts of a format, blanks made one."""
    parts = [" ".join(part.split()) for part in PLACEHOLDER.split(message)]
    return [part.strip(" ,;:()\"'") for part in parts if re.search(r"[A-Za-z]{3}", part)]


def _strings(node: ast.AST) -> Iterator[str]:
    for child in ast.walk(node):
        if isinstance(child, ast.Constant) and isinstance(child.value, str) and words_of(child.value) >= 2:
            yield child.value


def _called(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")


@functools.cache
def hook_messages() -> set[str]:
    """The error texts of juice_hook.py: what it raises, logs as an error, or says of a broken installation."""
    found: set[str] = set()
    tree = ast.parse(HOOK.read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = _called(node)
            is_error = bool(node.args) and isinstance(node.args[0], ast.Constant) and node.args[0].value is True
            of_problems = name == "append" and ast.unparse(node.func) == "self.problems.append"
            if name in RAISED or of_problems or (name in ("Log", "log") and is_error):
                for argument in node.args:
                    found.update(_strings(argument))
            for keyword in node.keywords if name == "Reply" else ():
                if keyword.arg == "error":
                    found.update(_strings(keyword.value))
        elif isinstance(node, ast.FunctionDef) and node.name in RETURNING:
            for inner in ast.walk(node):
                if isinstance(inner, ast.Return) and inner.value is not None:
                    found.update(_strings(inner.value))
    return found


def wrapper_messages() -> set[str]:
    """What juice-prolog.sh itself says before Python is started."""
    return set(re.findall(r'juice_fail "[^"]*" "([^"]*)"', WRAPPER.read_text("utf-8")))


def _literal_runs(text: str) -> Iterator[str]:
    """Adjacent string literals (with PRI macros between them, taken as placeholders) as one text each."""
    literal = r'"((?:[^"\\]|\\.)*)"'
    for run in re.finditer(rf"{literal}(?:\s*(?:{literal}|PRI\w+|FORM))*", text):
        parts = re.findall(rf"{literal}|(PRI\w+)", run[0])
        yield "".join(part if not macro else "\0" for part, macro in parts).replace("%\0", "\0").replace('\\"', '"')


@functools.cache
def plugin_messages() -> set[str]:
    """The error texts of the plugin's C sources."""
    found: set[str] = set()
    for path in sorted(PLUGIN.glob("*.c")):
        text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", path.read_text("utf-8"), flags=re.DOTALL)
        for call in re.finditer(C_CALLS, text):
            depth, end = 1, call.end()
            while depth and end < len(text):
                if text[end] == '"':
                    end = re.compile(r'"(?:[^"\\]|\\.)*"').match(text, end).end()  # type: ignore[union-attr]
                    continue
                depth += {"(": 1, ")": -1}.get(text[end], 0)
                end += 1
            found.update(run for run in _literal_runs(text[call.end() : end]))
        for returned in re.finditer(r"\breturn [^;]*;", text):
            found.update(_literal_runs(returned[0]))
    return {message for message in found if words_of(message) >= 2}


@functools.cache
def all_messages() -> dict[str, str]:
    """Message -> where it is from."""
    return {
        **dict.fromkeys(hook_messages(), "juice_hook.py"),
        **dict.fromkeys(wrapper_messages(), "juice-prolog.sh"),
        **dict.fromkeys(plugin_messages(), "spank-plugin"),
    }
