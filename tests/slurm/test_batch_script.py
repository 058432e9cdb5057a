"""Batch scripts and options, with the words of sbatch 22.05 for what it refuses."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from fake_cluster.slurm.batch_script import (
    expand,
    parse_array,
    parse_begin,
    parse_dependency,
    parse_licenses,
    parse_nodes,
    parse_time_limit,
    read_batch_script,
    read_srun,
    script_directives,
    split_line,
)
from fake_cluster.slurm.interface import SubmitError
from fake_cluster.slurm.sbatch_options import read_options

USER = {"user_id": 1000, "user_name": "ann", "group_id": 100, "group_name": "users"}


def read(script, options=(), environment=None, **more):
    return read_batch_script(script, options, environment=environment or {}, user=USER, cwd=Path("/w"), now=0.0, **more)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (" -n 4  --time=5", ["-n", "4", "--time=5"]),
        (' --comment="a b" -n2', ["--comment=a b", "-n2"]),
        (" --comment='a \"b\" c'", ['--comment=a "b" c']),
        (r" --job-name=a\ b", ["--job-name=a b"]),
        (r' --comment="say \"hi\""', ['--comment=say "hi"']),
        (" -n 4 # a remark", ["-n", "4"]),
        (' --comment=""', ["--comment="]),
        (" --comment=a#b", ["--comment=a"]),
        ("", []),
    ],
)
def test_words_of_a_directive(line, words):
    assert split_line(line, "x") == words


def test_quote_that_is_not_closed():
    with pytest.raises(SubmitError) as refused:
        read('#!/bin/sh\n\n#SBATCH --comment=un"clo\n')
    assert str(refused.value) == 'sbatch: fatal: sbatch: line 3: Unmatched `"` in [ --comment=un"clo]'


def test_directives_end_at_the_first_command():
    text = "#!/bin/sh\n# a remark\n\n#SBATCH -n 2\n##SBATCH -n 3\n#SBATCHx -n 4\nhostname\n#SBATCH -n 5\n"
    assert script_directives(text) == [["-n", "2"]]


def test_het_components():
    text = "#!/bin/sh\n#SBATCH -n 1\n#SBATCH hetjob\n#SBATCH -n 2\n#SBATCH packjob\n#SBATCH -n 3\n"
    specs = read(text, ["--time=5"])
    assert [spec.ntasks for spec in specs] == [1, 2, 3]
    assert {spec.time_limit for spec in specs} == {300.0}
    assert [("script" in spec.payload) for spec in specs] == [True, False, False]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "sbatch: error: Batch script is empty!"),
        ("hostname\n", "sbatch: error: This does not look like a batch script.  The first\nsbatch: error: line must"),
        ("#!/bin/sh\n\0\n", "sbatch: error: The SLURM batch script contains a NULL character"),
        ("#!/bin/sh\n#SBATCH --foo=3\n", "sbatch: unrecognized option '--foo=3'\nTry \"sbatch --help\" for more"),
    ],
)
def test_what_is_no_batch_script(text, words):
    with pytest.raises(SubmitError) as refused:
        read(text)
    assert str(refused.value).startswith(words)


def test_script_by_path(tmp_path):
    path = tmp_path / "job.sh"
    path.write_text("#!/bin/sh\n#SBATCH -n 2\n")
    (spec,) = read_batch_script(path, environment={}, user=USER, cwd=tmp_path)
    assert (spec.name, spec.ntasks) == ("job.sh", 2)
    (same,) = read_batch_script("job.sh", environment={}, user=USER, cwd=tmp_path)
    assert same.name == "job.sh"
    with pytest.raises(SubmitError, match=r"Unable to open file nothere\.sh"):
        read_batch_script("nothere.sh", environment={}, user=USER, cwd=tmp_path)


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (["--ntasks=4"], [("ntasks", "4")]),
        (["--ntasks", "4"], [("ntasks", "4")]),
        (["-n4", "-N", "2"], [("ntasks", "4"), ("nodes", "2")]),
        (["--juice-p=test"], [("juice-pool", "test")]),
        (["--juice-g", "2"], [("juice-gpu-count", "2")]),
        (["--juice-vram=8GiB"], [("juice-vram", "8GiB")]),
        (["--req"], [("requeue", "")]),
        (["--no-r"], [("no-requeue", "")]),
        (["-Qvn2"], [("quiet", ""), ("verbose", ""), ("ntasks", "2")]),
        (["--mem=4G", "-p", "gpu"], [("mem", "4G"), ("partition", "gpu")]),
    ],
)
def test_options_as_getopt_reads_them(options, found):
    assert read_options(options) == found


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--foo"], "sbatch: unrecognized option '--foo'"),
        (["--no"], "sbatch: option '--no' is ambiguous; possibilities: '--no-kill' '--no-requeue' '--nodefile'"),
        (
            ["--juice"],
            "sbatch: option '--juice' is ambiguous; possibilities: '--juice-pool' '--juice-gpu-count' '--juice-vram'",
        ),
        (["--time"], "sbatch: option '--time' requires an argument"),
        (["--requeue=1"], "sbatch: option '--requeue' doesn't allow an argument"),
        (["-Z"], "sbatch: invalid option -- 'Z'"),
        (["-n"], "sbatch: option requires an argument -- 'n'"),
    ],
)
def test_options_that_are_refused(options, words):
    with pytest.raises(SubmitError) as refused:
        read_options(options)
    assert str(refused.value).startswith(words)
    assert str(refused.value).endswith('Try "sbatch --help" for more information')


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--ntasks=x", 'sbatch: error: Invalid numeric value "x" for --ntasks.'),
        ("--ntasks=0", 'sbatch: error: Invalid numeric value "0" for --ntasks.'),
        ("--cpus-per-task=4x", 'sbatch: error: Invalid numeric value "4x" for --cpus-per-task.'),
        ("--nodes=x", 'sbatch: error: "x" is not a valid node count'),
        ("--nodes=4-2", 'sbatch: error: "4-2" is not a valid node count'),
        ("--time=abc", "sbatch: error: Invalid --time specification"),
        ("--array=5-1", "sbatch: error: Batch job submission failed: Invalid job array specification"),
        ("--array=1%0", "sbatch: error: Batch job submission failed: Invalid job array specification"),
        ("--licenses=a:b", "sbatch: error: Batch job submission failed: Invalid license specification"),
        ("--begin=xx", "Invalid time specification (pos=0): xx\nsbatch: error: Invalid --begin specification"),
        ("--dependency=afterok:abc", "sbatch: error: Batch job submission failed: Job dependency problem"),
    ],
)
def test_values_that_are_refused(option, words):
    with pytest.raises(SubmitError) as refused:
        read("#!/bin/sh\n", [option])
    assert str(refused.value) == words


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1", 60),
        ("0:30", 60),
        ("90", 5400),
        ("1:30", 120),
        ("1:0:0", 3600),
        ("1-0", 86400),
        ("1-2:3", 93780),
        ("2-0:0:1", 172860),
        ("UNLIMITED", None),
        ("0", None),
        ("-1", None),
    ],
)
def test_time_limits_are_whole_minutes(text, seconds):
    assert parse_time_limit(text) == seconds


def test_arrays():
    assert parse_array("0-3") == ((0, 1, 2, 3), 0)
    assert parse_array("1,3,5-9:2%4") == ((1, 3, 5, 7, 9), 4)


def test_licenses_nodes_and_dependencies():
    assert parse_licenses("a,b:2,c=3") == {"a": 1, "b": 2, "c": 3}
    assert (parse_nodes("2"), parse_nodes("2-4")) == (2, 2)
    assert parse_dependency("afterok:1:2,afterany:3") == (("afterok", 1), ("afterok", 2), ("afterany", 3))


def test_begin_times():
    noon = datetime(2030, 1, 2, 12, 0).timestamp()
    assert parse_begin("now", noon) == noon
    assert parse_begin("now+60", noon) == noon + 60
    assert parse_begin("now+2hours", noon) == noon + 7200
    assert parse_begin("13:30", noon) == noon + 5400
    assert parse_begin("11:00", noon) == noon + 23 * 3600
    assert parse_begin("2030-01-03T00:00:01", noon) == noon + 12 * 3600 + 1


def test_command_line_goes_before_the_script_and_the_last_one_wins():
    script = "#!/bin/sh\n#SBATCH -n 2 --requeue --job-name=a\n"
    (spec,) = read(script, ["--no-requeue", "--job-name=b", "--job-name=c"])
    assert (spec.ntasks, spec.requeue, spec.name) == (2, False, "c")


@pytest.mark.parametrize(
    ("export", "expected"),
    [
        (None, {"A": "1", "B": "2", "PATH": "/p"}),
        ("ALL", {"A": "1", "B": "2", "PATH": "/p"}),
        ("NONE", {"PATH": "/p"}),
        ("A,C=3", {"A": "1", "C": "3", "PATH": "/p"}),
        ("ALL,C=3", {"A": "1", "B": "2", "C": "3", "PATH": "/p"}),
    ],
)
def test_export(export, expected):
    options = [] if export is None else [f"--export={export}"]
    (spec,) = read("#!/bin/sh\n", options, {"A": "1", "B": "2", "PATH": "/p"})
    assert spec.payload["environment"] == expected


def test_output_files():
    (spec,) = read("#!/bin/sh\n#SBATCH --output=o/%x.%j\n")
    assert (spec.stdout, spec.stderr) == ("/w/o/%x.%j", "/w/o/%x.%j")
    (spec,) = read("#!/bin/sh\n#SBATCH -a 1-2 -e /tmp/e -D sub\n")
    assert (spec.stdout, spec.stderr, spec.work_dir) == ("/w/sub/slurm-%A_%a.out", "/tmp/e", "/w/sub")


def test_patterns_of_output_files():
    names = {"job_id": 12, "array_job_id": 10, "task": 3, "name": "run", "node": "node1", "user": "ann"}
    assert expand("%j %A %a %x %N %u %% %4a %04j %q", **names) == "12 10 3 run node1 ann % 0003 0012 %q"


def test_srun_components_and_errors():
    specs = read_srun(["echo", "x"], ["-n1", ":", "-n", "2"], environment={}, user=USER, cwd=Path("/w"))
    assert [(spec.ntasks, spec.batch, spec.name) for spec in specs] == [(1, False, "echo"), (2, False, "echo")]
    with pytest.raises(SubmitError, match="srun: unrecognized option '--foo'"):
        read_srun(["echo"], ["--foo"], environment={}, user=USER, cwd=Path("/w"))
    with pytest.raises(SubmitError, match="No command given"):
        read_srun([], environment={}, user=USER, cwd=Path("/w"))
