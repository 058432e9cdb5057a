"""The session file: the shared vectors, and what a reader refuses before it looks inside."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

import pytest

VECTORS = json.loads((Path(__file__).parent.parent / "vectors" / "session_file.json").read_text())


@pytest.fixture(params=["CtypesSodium", "PyNaClSodium"])
def sodium(request, hook):
    """Each of the two ways to reach libsodium."""
    hook._SODIUM[:] = [getattr(hook, request.param)()]
    yield request.param
    hook._SODIUM[:] = []


@pytest.mark.parametrize("case", VECTORS, ids=[case["name"] for case in VECTORS])
def test_vector(case, hook, sodium):
    data = base64.b64decode(case["file"]) * case["repeat"]
    reader = bytes.fromhex(case["key"]), case["cluster"], case["job_id"], case["uid"]
    if "fields" in case:
        assert hook.unseal_session(data, *reader) == case["fields"]
    else:
        with pytest.raises(hook.SessionFileError) as caught:
            hook.unseal_session(data, *reader)
        assert caught.value.kind == case["error"]


def test_the_hook_writes_what_the_vectors_hold(hook, sodium):
    case = VECTORS[0]
    data = base64.b64decode(case["file"])
    key = bytes.fromhex(case["key"])
    sealed = hook.seal_session(
        key, data[8:32], case["cluster"], case["job_id"], case["uid"], list(case["fields"].items())
    )
    assert sealed == data


def test_a_session_that_does_not_fit_is_refused(hook):
    with pytest.raises(hook.SessionFileError, match="65536"):
        hook.seal_session(bytes(32), bytes(24), "c", 1, 1, [("reason", "x" * 65536)])


def sealed_file(hook, path: Path) -> Path:
    fields = [("verdict", "denied"), ("restart_count", "0"), ("sealed_at", "1"), ("reason", "no")]
    path.write_bytes(hook.seal_session(bytes(32), bytes(24), "c", 1, 1000, fields))
    return path


def opened(hook, path: Path, **more):
    return hook.open_session(str(path), bytes(32), "c", 1, 1000, **{"owners": (os.geteuid(),), **more})


def test_a_good_file_opens(hook, tmp_path):
    assert opened(hook, sealed_file(hook, tmp_path / "1.session"))["reason"] == "no"


def test_a_missing_file_is_named(hook, tmp_path):
    with pytest.raises(hook.SessionFileError) as caught:
        opened(hook, tmp_path / "1.session")
    assert caught.value.kind == "missing"


def test_slurm_mail_22_a_symlink_at_the_path_is_not_followed(hook, tmp_path):
    sealed_file(hook, tmp_path / "elsewhere")
    (tmp_path / "1.session").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(hook.SessionFileError) as caught:
        opened(hook, tmp_path / "1.session")
    assert caught.value.kind == "link"


def test_a_fifo_does_not_block_and_a_directory_is_refused(hook, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "directory").mkdir()
    for name in ("fifo", "directory"):
        with pytest.raises(hook.SessionFileError) as caught:
            opened(hook, tmp_path / name)
        assert caught.value.kind == "type"


def test_a_file_of_another_owner_is_refused(hook, tmp_path):
    path = sealed_file(hook, tmp_path / "1.session")
    with pytest.raises(hook.SessionFileError) as caught:
        opened(hook, path, owners=(os.geteuid() + 1,))
    assert caught.value.kind == "owner"
