"""slurm.conf from settings, programs from a prefix, and programs that are moved."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fake_cluster.slurm.elf import ElfError, relocate
from fake_cluster.slurm.interface import SlurmSettings
from fake_cluster.slurm.ports import Ports
from fake_cluster.slurm.real import available
from fake_cluster.slurm.slurm_binaries import SlurmNotFound, find_slurm
from fake_cluster.slurm.slurm_conf import Layout, slurm_conf

LOADERS = ("/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1")


def conf(**settings: object) -> list[str]:
    text = slurm_conf(
        SlurmSettings(nodes=2, **settings),  # type: ignore[arg-type]
        Layout(Path("/d")),
        hostname="host",
        user="root",
        slurmd_user="root",
        ports=[1, 2, 3],
        plugin_dir=None,
    )
    return text.splitlines()


def test_settings_become_lines() -> None:
    lines = conf(
        cluster_name="c",
        cred_expire=7,
        prolog=Path("/h/prolog"),
        epilog=Path("/h/epilog"),
        prolog_epilog_timeout=9,
        licenses="juice_a:4",
        cpus_per_node=3,
    )
    for line in (
        "ClusterName=c",
        "AuthInfo=socket=/d/munge/socket,cred_expire=7",
        "PrologSlurmctld=/h/prolog",
        "EpilogSlurmctld=/h/epilog",
        "PrologEpilogTimeout=9",
        "Licenses=juice_a:4",
    ):
        assert line in lines
    assert [line.split()[:4] for line in lines if line.startswith("NodeName=")] == [
        ["NodeName=node1", "NodeHostname=localhost", "NodeAddr=127.0.0.1", "Port=2"],
        ["NodeName=node2", "NodeHostname=localhost", "NodeAddr=127.0.0.1", "Port=3"],
    ]


def test_what_is_not_set_is_not_written() -> None:
    names = {line.partition("=")[0] for line in conf()}
    assert names.isdisjoint({"PrologSlurmctld", "EpilogSlurmctld", "PrologEpilogTimeout", "Licenses", "PluginDir"})


def test_extra_lines_replace_ours_whatever_their_case() -> None:
    lines = conf(extra_conf=["killwait=9", "# KillWait=3", "", "JobRequeue=0", "PartitionName=p Nodes=ALL Default=YES"])
    assert [line for line in lines if line.lower().startswith("killwait")] == ["killwait=9"]
    assert "JobRequeue=0" in lines
    assert [line for line in lines if line.startswith("PartitionName")] == ["PartitionName=p Nodes=ALL Default=YES"]


def test_ports_are_ours_alone_and_free_again() -> None:
    one, two = Ports(20), Ports(20)
    assert len({*one.numbers, *two.numbers}) == 40
    one.release()
    two.release()


def test_a_prefix_without_slurm_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(SlurmNotFound, match=rf"no slurmctld, slurmd, .* below {tmp_path}"):
        find_slurm(tmp_path)
    reason = available(tmp_path)
    assert reason is not None and "should hold sbin/slurmctld" in reason


def test_a_program_of_a_prefix_that_does_not_run_is_explained(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for name in (
        "slurmctld",
        "slurmd",
        "slurmstepd",
        "sbatch",
        "srun",
        "scancel",
        "scontrol",
        "squeue",
        "sinfo",
        "munged",
    ):
        program = tmp_path / "bin" / name
        program.write_text("#!/bin/sh\necho no version\n")
        program.chmod(0o755)
    with pytest.raises(SlurmNotFound, match="printed 'no version"):
        find_slurm(tmp_path)
    (tmp_path / "bin" / "slurmctld").write_text("#!/bin/sh\necho slurm 23.11.4\n")
    assert find_slurm(tmp_path).version == (23, 11, 4)


@pytest.mark.slurm
def test_a_relocated_program_uses_the_given_loader_and_libraries(tmp_path: Path) -> None:
    original = find_slurm()["slurmctld"].resolve()
    loader = next((path for path in map(Path, LOADERS) if path.exists()), None)
    if loader is None:
        pytest.skip("no glibc loader at its usual place")
    own_loader = tmp_path / "loader"
    own_loader.write_bytes(loader.read_bytes())
    own_loader.chmod(0o755)
    try:
        moved_bytes = relocate(original.read_bytes(), str(own_loader), "$ORIGIN/lib")
    except ElfError as error:
        pytest.skip(f"this Slurm is not Debian's: {error}")
    moved = tmp_path / "slurmctld"
    moved.write_bytes(moved_bytes)
    moved.chmod(0o755)
    # Without its library it does not start; with it in the new place it does.
    without = subprocess.run([moved, "-V"], capture_output=True, text=True)
    assert without.returncode != 0 and "libslurmfull.so" in without.stderr
    (tmp_path / "lib").mkdir()
    found = next(Path("/usr/lib").glob("*/slurm-wlm/libslurmfull.so"))
    (tmp_path / "lib" / "libslurmfull.so").symlink_to(found)
    assert subprocess.run([moved, "-V"], capture_output=True, text=True).stdout.startswith("slurm")
    own_loader.chmod(0o644)
    with pytest.raises(PermissionError):
        subprocess.run([moved, "-V"])


@pytest.mark.parametrize("content", [b"", b"#!/bin/sh\n", b"\x7fELF\x01\x01" + b"\0" * 64])
def test_what_is_no_program_is_not_relocated(content: bytes) -> None:
    with pytest.raises(ElfError):
        relocate(content, "/ld.so", "/lib")


def test_a_program_without_a_library_path_is_not_relocated() -> None:
    program = Path(os.path.realpath("/bin/true")).read_bytes()
    with pytest.raises(ElfError, match="no DT_RUNPATH"):
        relocate(program, "/ld.so", "/lib")


def test_the_tree_is_not_made_where_there_is_no_archive(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fake_cluster.slurm.trixie_tree", str(tmp_path / "t"), "--mirror", "file:///nowhere"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 1
    assert done.stderr.startswith("trixie_tree: ")
    assert "Traceback" not in done.stderr
