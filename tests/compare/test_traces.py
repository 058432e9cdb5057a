# ruff: noqa: E501 (rows of sacct are long)
"""Readers of recorded workloads: every row becomes a job, is left out for a reason, or is reported with its line."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from fake_cluster.bad_input import BadInput
from fake_cluster.traces import TraceJob, detect_format, load_mapping, load_trace, read_trace

GIB = 1 << 30
OPENB = """\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
t0,12000,16384,1,1000,,LS,Running,100,300,100
t1,6000,12288,1,460,T4|A100,LS,Succeeded,40,90,50
t2,8000,30517,0,0,,BE,Running,200,260,210
t3,64000,262144,8,1000,,BE,Failed,210,215,212
t4,1000,1024,1,1000,,BE,Pending,220,230,
t5,1000,1024,2,500,,BE,Running,220,230,221
t6,x,1024,1,1000,,BE,Running,220,230,221
t7,1000,1024,1
t8,1000,1024,1,1000,,BE,Running,220,100,221
"""
SWF = """\
; Version: 2.2
; UnixStartTime: 0

1 10 5 3600 16 -1 -1 16 7200 -1 1 7 1 -1 2 3 -1 -1
2 20 -1 -1 -1 -1 -1 4 -1 -1 5 8 1 -1 2 3 -1 -1
3 30 0 60 -1 -1 -1 4 -1 -1 0 8 1 -1 1 1 -1 -1
4 40 0 60 4 -1 -1 4 -1 -1 2 8 1 -1 1 1 -1 -1
5 50 0 60 4
6 -1 0 60 4 -1 -1 4 -1 -1 1 8 1 -1 1 1 -1 -1
7 60 0 nan 4 -1 -1 4 -1 -1 1 8 1 -1 1 1 -1 -1
"""
SACCT = """\
JobID|User|Account|Partition|QOS|JobName|Submit|Start|End|Elapsed|State|ReqTRES|AllocTRES|AllocCPUS
100|ann|bio|gpu|normal|train|2026-01-01T00:00:10|2026-01-01T00:01:00|2026-01-01T01:01:00|01:00:00|COMPLETED|cpu=8,gres/gpu=2|billing=8,cpu=8,gres/gpu:a100=2,gres/gpu=2|8
100.batch|||||batch|2026-01-01T00:01:00|2026-01-01T00:01:00|2026-01-01T01:01:00|01:00:00|COMPLETED||cpu=8|8
101_4|bob|chem|gpu|normal|a|2026-01-01T00:00:00|2026-01-01T00:00:00|2026-01-02T00:00:05|1-00:00:05|CANCELLED by 1000|cpu=4,gres/gpu=1|cpu=4,gres/gpu=1|4
102+1|bob|chem|cpu,gpu|normal|h|2026-01-01T00:02:00|2026-01-01T00:02:00|2026-01-01T00:02:30|00:30|FAILED|cpu=64|cpu=64|64
103|bob|chem|gpu|normal|w|2026-01-01T00:03:00|Unknown|Unknown|00:00:00|PENDING|cpu=4,gres/gpu=1||0
104|bob|chem|gpu|normal|r|2026-01-01T00:03:00|2026-01-01T00:03:00|Unknown|00:10:00|RUNNING|cpu=4,gres/gpu=1|cpu=4,gres/gpu=1|4
105|bob|chem|gpu|normal|x|2026-13-01T00:03:00|2026-01-01T00:03:00|Unknown|00:10:00|COMPLETED|cpu=4|cpu=4|4
106|bob|chem|gpu|normal|a|b|2026-01-01T00:03:00|2026-01-01T00:03:00|Unknown|00:10:00|COMPLETED|cpu=4|cpu=4|4
"""


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_openb_rows_become_jobs_sorted_by_submission_from_zero(tmp_path: Path) -> None:
    trace = load_trace(written(tmp_path, "pods.csv", OPENB))
    assert trace.format == "openb"
    assert [(job.name, job.submit_s, job.run_s, job.gpus, job.pool) for job in trace.jobs] == [
        ("t1", 0.0, 40.0, 1, "openb"),
        ("t0", 60.0, 200.0, 1, "openb"),
        ("t2", 160.0, 50.0, 0, ""),
        ("t3", 170.0, 3.0, 8, "openb"),
    ]
    slice_job, whole_job = trace.jobs[:2]
    assert slice_job.vram == (15109 << 20) * 460 // 1000, "a share of the smallest model that the task accepts"
    assert slice_job.models == ("T4", "A100") and slice_job.line == 3
    assert whole_job.vram is None and whole_job.cpus == 12.0


def test_openb_rows_that_are_no_jobs_are_counted_with_line_and_reason(tmp_path: Path) -> None:
    path = written(tmp_path, "pods.csv", OPENB)
    tally = load_trace(path).tally
    assert (tally.rows, tally.jobs, tally.bad_count) == (9, 4, 4)
    assert tally.left_out == {"never started": 1}
    assert [(row.line, row.column) for row in tally.bad] == [
        (7, "gpu_milli"),
        (8, "cpu_milli"),
        (9, "row"),
        (10, "deletion_time"),
    ]
    text = "\n".join(tally.lines())
    assert f"{path}:8: cpu_milli: not a whole number; got 'x'" in text and "never started" in text


def test_swf_needs_a_mapping_that_says_what_would_use_juice(tmp_path: Path) -> None:
    path = written(tmp_path, "log.swf", SWF)
    with pytest.raises(BadInput, match="mapping file is needed"):
        load_trace(path)
    mapping = written(
        tmp_path,
        "map.yaml",
        "rules:\n"
        "  - {match: {queue: '2'}, pool: big, cpus_per_gpu: 5}\n"
        "  - {match: {state: failed}, pool: small, vram: 4GiB}\n",
    )
    trace = load_trace(path, mapping=mapping)
    assert trace.jobs == (
        TraceJob(0.0, 3600.0, 16.0, 4, None, "big", "7", 4, "1"),
        TraceJob(20.0, 60.0, 4.0, 1, 4 * GIB, "small", "8", 6, "3"),
    )
    assert trace.tally.left_out == {"never ran": 1, "partial execution of a job that has a line of its own": 1}
    assert [(row.line, row.column) for row in trace.tally.bad] == [(8, "row"), (9, "submit"), (10, "run")]
    assert trace.tally.rows == 7


def test_sacct_jobs_with_gpus_go_to_the_pool_of_their_partition(tmp_path: Path) -> None:
    trace = load_trace(written(tmp_path, "history.txt", SACCT))
    assert [(job.name, job.submit_s, job.run_s, job.gpus, job.pool, job.user, job.models) for job in trace.jobs] == [
        ("a", 0.0, 86405.0, 1, "gpu", "bob", ()),
        ("train", 10.0, 3600.0, 2, "gpu", "ann", ("a100",)),
        ("h", 120.0, 30.0, 0, "", "bob", ()),
    ]
    assert trace.tally.left_out == {
        "job step": 1,
        "never ran": 1,
        "still running at the time of the export": 1,
    }
    assert [(row.line, row.column) for row in trace.tally.bad] == [(8, "Submit"), (9, "row")]


def test_sacct_rules_match_in_order_and_count_what_none_matches(tmp_path: Path) -> None:
    mapping = written(
        tmp_path,
        "map.yaml",
        "rules:\n"
        "  - {match: {gpu_model: 'A*', gpus: '>=2'}, pool: large}\n"
        "  - {match: {account: [bio, 'CHE*'], name: '!h'}, pool: small, gpus: 1, vram: 2.5}\n",
    )
    trace = load_trace(written(tmp_path, "history.txt", SACCT), mapping=mapping)
    assert [(job.name, job.pool, job.gpus, job.vram) for job in trace.jobs] == [
        ("a", "small", 1, 5 * GIB // 2),
        ("train", "large", 2, None),
    ]
    assert trace.tally.left_out["no rule of the mapping matches"] == 1
    keep = written(tmp_path, "keep.yaml", "unmatched: cpu\nrules:\n  - {match: {user: ann}, use: skip}\n")
    trace = load_trace(written(tmp_path, "history.txt", SACCT), mapping=keep)
    assert [(job.name, job.gpus) for job in trace.jobs] == [("a", 0), ("h", 0)]
    assert trace.tally.left_out["a rule of the mapping skips it"] == 1


def test_a_rule_that_gives_a_job_no_gpus_reports_the_row(tmp_path: Path) -> None:
    mapping = written(tmp_path, "map.yaml", "rules: [{pool: p}]\n")
    tally = load_trace(written(tmp_path, "history.txt", SACCT), mapping=mapping).tally
    assert (5, "gpus") in [(row.line, row.column) for row in tally.bad]
    slices = written(tmp_path, "slices.yaml", "rules: [{pool: p, vram: 1}]\n")
    tally = load_trace(written(tmp_path, "history.txt", SACCT), mapping=slices).tally
    assert [row.reason for row in tally.bad if row.line == 2] == ["a slice (vram) is of exactly one GPU"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("rules: []\n", "map.yaml:1: rules: needs 1 to"),
        ("rules:\n  - {match: {particion: x}, pool: p}\n", "did you mean 'partition'"),
        ("rules:\n  - pool: p\n    vram: 16Gi\n", "map.yaml:3: rules[0].vram"),
        (
            "rules:\n  - pool: p\n    vram: 16\n    gpus: 2\n",
            "map.yaml:3: rules[0].vram: a slice is of exactly one GPU",
        ),
        ("rules:\n  - gpus: 2\n", "no pool"),
        ("rules:\n  - {use: cpu, pool: p}\n", "rules[0].use"),
        ("rules:\n  - {pool: p, gpus: 1, cpus_per_gpu: 2}\n", "one of the two"),
        ("rules:\n  - {match: {gpus: many}, pool: p}\n", "not a number or range"),
    ],
)
def test_mapping_errors_name_file_line_and_key(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(BadInput) as caught:
        load_mapping(written(tmp_path, "map.yaml", text))
    assert told in str(caught.value) and "\n" not in str(caught.value)


def test_formats_are_told_apart_by_their_first_lines(tmp_path: Path) -> None:
    for name, text in (("openb", OPENB), ("swf", SWF), ("sacct", SACCT)):
        assert detect_format(written(tmp_path, name, text)) == name
        assert detect_format(written(tmp_path, name, "\n" + text)) == name
    assert detect_format(written(tmp_path, "bare", SWF.split("\n\n")[1])) == "swf"
    for text in ("", "hello\n", "a,b\n1,2\n"):
        with pytest.raises(BadInput, match="not a trace of a known format"):
            detect_format(written(tmp_path, "other", text))


def test_compressed_files_are_read_and_damaged_ones_refused(tmp_path: Path) -> None:
    packed = tmp_path / "pods.csv.gz"
    packed.write_bytes(gzip.compress(OPENB.encode()))
    assert len(load_trace(packed).jobs) == 4
    packed.write_bytes(gzip.compress(OPENB.encode())[:-20])
    with pytest.raises(BadInput, match="cannot be read"):
        load_trace(packed)
    with pytest.raises(BadInput, match="No such file"):
        load_trace(tmp_path / "missing.csv")


def test_a_wrong_header_names_what_is_missing(tmp_path: Path) -> None:
    path = written(tmp_path, "pods.csv", "name,num_gpu\nt,1\n")
    with pytest.raises(BadInput, match="no column cpu_milli"):
        load_trace(path)
    path = written(tmp_path, "history.txt", "JobID|Submit\n1|2026-01-01T00:00:00\n")
    with pytest.raises(BadInput, match="no column Elapsed"):
        load_trace(path)
    with pytest.raises(BadInput, match="unknown trace format"):
        read_trace(path, format="csv")


def test_iterating_again_reads_the_file_anew_and_counts_from_zero(tmp_path: Path) -> None:
    reader = read_trace(written(tmp_path, "pods.csv", OPENB))
    assert [job.name for job in reader] == ["t0", "t1", "t2", "t3"], "in the order of the file"
    assert len(list(reader)) == 4
    assert (reader.tally.rows, reader.tally.jobs) == (9, 4)


def test_all_bad_rows_are_counted_even_when_only_some_are_kept(tmp_path: Path) -> None:
    header = OPENB.splitlines()[0]
    path = written(tmp_path, "pods.csv", header + "\n" + "t,-1,1,1,1000,,a,b,1,2,1\n" * 1500)
    tally = load_trace(path).tally
    assert tally.bad_count == 1500 and len(tally.bad) == 1000
    assert tally.lines()[-1].strip() == "and 1490 more"
