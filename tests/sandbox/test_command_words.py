from __future__ import annotations

import pytest

from fake_cluster.sandbox.command_words import split, take_value


@pytest.mark.parametrize(
    ("words", "options", "rest"),
    [
        (["--juice-pool=a", "hostname", "-A"], ["--juice-pool=a"], ["hostname", "-A"]),
        (["--juice-pool", "a", "hostname"], ["--juice-pool", "a"], ["hostname"]),
        (["-n", "2", "env"], ["-n", "2"], ["env"]),
        (["-n2", "env"], ["-n2"], ["env"]),
        (["-ln", "2", "env"], ["-ln", "2"], ["env"]),
        (["--juice-p", "a", "env"], ["--juice-p", "a"], ["env"]),
        (["--requeue", "job.sh", "--wait"], ["--requeue"], ["job.sh", "--wait"]),
        (["--", "-odd"], [], ["-odd"]),
        (["-J", "x", "-"], ["-J", "x"], ["-"]),
        ([], [], []),
    ],
)
def test_options_end_at_the_first_word_that_is_none(words, options, rest):
    assert split(words) == (options, rest)


def test_components_of_a_het_job_stay_together():
    assert split(["-n1", ":", "-n", "2", "env", ":", "x"], components=True) == (
        ["-n1", ":", "-n", "2"],
        ["env", ":", "x"],
    )


def test_an_option_of_the_command_itself_is_taken_out():
    assert take_value(["-n1", "--wrap=a b", "--wrap", "c"], "wrap") == (["-n1"], "c")
    assert take_value(["-n1"], "wrap") == (["-n1"], None)
