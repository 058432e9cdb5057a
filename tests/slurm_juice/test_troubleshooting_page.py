"""docs/troubleshooting.md has every error text of plugin and hooks, and no text that does not exist."""

from __future__ import annotations

import re

import pytest

from .message_texts import PLUGIN, ROOT, all_messages, fragments, hook_messages, plugin_messages, wrapper_messages

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")
NO_ERRORS = {
    "is fine": "what the plugin says of a file that is",
    "byte code": "the name of a line of `check`",
    "not told by this controller": "what `check` says in an OK line",
    "%s in the environment": "a part of other messages",
}


def one_blank(text: str) -> str:
    return " ".join(text.split())


def spans() -> list[str]:
    """What the page quotes as messages: code spans of the first column, and of whole lines about `show`."""
    first = [line.split(" | ")[0] for line in PAGE.splitlines() if line.startswith("| `")]
    return [span for cell in first for span in re.findall(r"`([^`]+)`", cell)]


def test_the_sources_were_read() -> None:
    """Known messages of each kind are found, so that a change of style in a source cannot make this test empty."""
    assert "no GPU became free in time: the session is still %s" in hook_messages()
    assert "the token holds blanks or control characters; is it whole, and on one line?" in hook_messages()
    assert "cannot be run; set JUICE_PYTHON in $JUICE_CONFIG" in wrapper_messages()
    assert "its session file is of start \0 of the job, and this is start \0; submit it again" in plugin_messages()
    assert "is cut off" in plugin_messages()
    assert len(hook_messages()) > 80 and len(plugin_messages()) > 50


@pytest.mark.parametrize(
    "message", sorted(message for message in all_messages() if " " in message.strip() and message not in NO_ERRORS)
)
def test_a_message_is_explained(message: str) -> None:
    page = one_blank(PAGE)
    missing = [part for part in fragments(message) if len(part) > 5 and part not in page]
    if "`" in message:  # cannot be quoted in a code span
        missing = [part for part in missing if "`" not in part]
    assert missing == []


@pytest.mark.parametrize("span", sorted(set(spans())))
def test_a_message_of_the_page_exists(span: str) -> None:
    if span == "Incompatible Slurm plugin":
        return  # Slurm's own
    known = "\n".join(one_blank(message.replace("\0", "%s").replace("%%", "%")) for message in all_messages())
    known += "\n" + "\n".join(one_blank(path.read_text("utf-8")) for path in sorted(PLUGIN.glob("*.c")))
    parts = [part.strip(" ,;:/()'") for part in re.split(r"\.{3,}", span)]
    assert [part for part in parts if re.search(r"[A-Za-z]{3}", part) and part.rstrip(".") not in known] == []
