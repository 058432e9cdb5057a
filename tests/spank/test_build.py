"""Building the plugin: warnings are errors, nothing but the plugin's symbols is exported, unit tests, package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = [pytest.mark.compiler]
Make = Callable[..., subprocess.CompletedProcess[str]]


def output(*command: str | Path) -> str:
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=True).stdout


def test_exports_the_symbols_of_a_spank_plugin_and_no_others(plugin: Path) -> None:
    exported = {line.split()[-1] for line in output("nm", "-D", "--defined-only", plugin).splitlines()}
    assert exported == {
        "plugin_name",
        "plugin_type",
        "plugin_version",
        "spank_plugin_version",
        "slurm_spank_init",
        "slurm_spank_init_post_opt",
        "slurm_spank_task_init",
        "slurm_spank_task_init_privileged",
        "slurm_spank_exit",
    }


def test_is_hardened_and_needs_no_library_but_libsodium(plugin: Path) -> None:
    headers = output("readelf", "-W", "-l", "-d", plugin)
    assert "GNU_RELRO" in headers
    assert "BIND_NOW" in headers
    assert re.search(r"GNU_STACK.* RW ", headers), "the stack must not be executable"
    assert "__stack_chk_fail" in output("nm", "-D", plugin)
    needed = set(re.findall(r"\(NEEDED\).*\[(.+?)\]", headers))
    assert {name.split(".")[0] for name in needed} == {"libsodium", "libc"}


def test_unit_tests_pass_under_sanitizers(make: Make) -> None:
    done = make("check")
    assert done.returncode == 0, done.stdout + done.stderr
    summaries = re.findall(r"^([a-z ]+): (\d+) checks, 0 failures$", done.stdout, re.MULTILINE)
    assert {name for name, _ in summaries} == {"configuration", "options", "session file", "vram"}


def test_a_missing_slurm_header_is_one_clear_sentence(plugin_tree: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(plugin_tree, tmp_path / "plugin", ignore=shutil.ignore_patterns("build", "*.so"))
    bad = ["SLURM_CPPFLAGS=-nostdinc"]
    done = subprocess.run(["make", "-C", str(copied), *bad], capture_output=True, text=True)
    assert done.returncode != 0
    assert "slurm/spank.h is not found: install libslurm-dev" in done.stderr
    assert "fatal error" not in done.stderr


def test_install_honours_destdir(make: Make, tmp_path: Path) -> None:
    done = make("install", f"DESTDIR={tmp_path}", "PLUGIN_DIR=/usr/lib/slurm")
    assert done.returncode == 0, done.stderr
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {"usr/lib/slurm/juice.so", "usr/share/doc/slurm-juice/plugstack.conf.example"}


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="dpkg-deb: needs a Debian system")
def test_the_package_depends_on_the_slurm_release_that_it_was_built_for(make: Make, plugin_tree: Path) -> None:
    version = make("-s", "slurm-version").stdout.split()[-1]
    assert re.fullmatch(r"\d\d\.\d\d\.\d+", version), version
    release = version.rsplit(".", 1)[0]
    done = make("deb")
    assert done.returncode == 0, done.stderr
    (package,) = plugin_tree.glob("*.deb")
    control = output("dpkg-deb", "-f", package)
    assert f"slurm-client (>= {release})" in control
    assert f"slurmd (<< {release})" in control
    assert "libsodium23" in control
    contents = output("dpkg-deb", "-c", package)
    assert re.search(r"/slurm(-wlm)?/juice\.so$", contents, re.MULTILINE)
    assert "root/root" in contents


@pytest.mark.clang
def test_fuzzing_finds_nothing(make: Make) -> None:
    done = make("fuzz", f"FUZZ_SECONDS={os.environ.get('JUICE_SIM_FUZZ_SECONDS', '5')}")  # minutes in CI
    assert done.returncode == 0, done.stdout + done.stderr
    executed = [int(count) for count in re.findall(r"number_of_executed_units: (\d+)", done.stdout + done.stderr)]
    assert len(executed) == 2
    assert min(executed) > 1000


@pytest.mark.clang
def test_clang_tidy_is_silent(make: Make) -> None:
    done = make("tidy")
    assert done.returncode == 0, done.stdout + done.stderr
