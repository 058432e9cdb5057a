"""Building the client library: where it goes, what is kept, and what is said when it cannot be built."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from juice_sim.client_build import (
    FILES,
    LIBRARY,
    ClientBuildError,
    build_client,
    cached_client,
    has_client,
    install_client,
)

pytestmark = pytest.mark.compiler


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "juice-sim" / "client"


def test_it_is_built_once_and_copied_afterwards(cache, tmp_path, monkeypatch):
    first = build_client(tmp_path / "a" / "b")
    assert first == tmp_path / "a" / "b" / LIBRARY
    assert {path.name for path in first.parent.iterdir()} == set(FILES)
    assert (first.parent / "libcuda.so.1").resolve() == first.resolve()
    (kept,) = cache.iterdir()
    before = (kept / LIBRARY).stat().st_mtime_ns
    assert build_client(tmp_path / "c").read_bytes() == first.read_bytes()
    assert cached_client() == kept / LIBRARY and (kept / LIBRARY).stat().st_mtime_ns == before
    monkeypatch.setenv("CFLAGS", "-O0")
    assert cached_client().parent != kept


def test_a_library_in_use_is_replaced_not_overwritten(tmp_path):
    library = build_client(tmp_path)
    before = library.stat().st_ino
    assert build_client(tmp_path).stat().st_ino != before
    assert {path.name for path in tmp_path.iterdir()} == set(FILES)


def test_only_this_library_counts_as_the_client(tmp_path):
    assert not has_client(tmp_path)
    (tmp_path / LIBRARY).symlink_to("/bin/sh")
    assert not has_client(tmp_path)
    build_client(tmp_path / "real")
    assert has_client(tmp_path / "real")


def test_the_command_beside_it_runs_from_anywhere(tmp_path):
    command = install_client(tmp_path / "with blank")
    done = subprocess.run([command, "--version"], cwd="/", env={}, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("juice ")


def test_without_a_compiler_the_remedy_is_told(cache, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(ClientBuildError, match=r"no C compiler.*apt install gcc"):
        build_client(tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_without_make_the_remedy_is_told(cache, tmp_path, monkeypatch):
    (tmp_path / "cc").symlink_to(shutil.which("cc"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClientBuildError, match=r"make is not on PATH.*apt install make"):
        cached_client()
    assert list(cache.iterdir()) == []


def test_a_compiler_that_fails_is_named_and_nothing_is_kept(cache, tmp_path, monkeypatch):
    broken = tmp_path / "broken-cc"
    broken.write_text("#!/bin/sh\necho 'stdio.h: fatal error: no such file' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CC", str(broken))
    with pytest.raises(ClientBuildError, match=r"broken-cc: stdio\.h: fatal error"):
        cached_client()
    assert list(cache.iterdir()) == []


def test_a_cache_that_cannot_be_used_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ClientBuildError, match=r"cannot be used.*XDG_CACHE_HOME"):
        cached_client()
