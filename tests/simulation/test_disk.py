"""What a power loss may and may not do to files."""

from __future__ import annotations

import random

import pytest

from fake_cluster.simulation.disk import Disk


def write(disk, path, data, *, sync=True, publish=True, sync_folder=True):
    """Write a file as the hooks do, up to some step."""
    temporary = path + ".tmp"
    inode = disk.create(temporary, 0.0, 0.0)
    disk.write(temporary, inode, data, 0.0)
    if sync:
        disk.sync(inode)
    if publish:
        disk.rename(temporary, path, 0.0)
    if sync_folder:
        disk.sync_folder("journal")


@pytest.mark.parametrize("seed", range(50))
def test_what_was_synced_survives(seed):
    disk = Disk()
    write(disk, "journal/1.json", b"old")
    write(disk, "journal/1.json", b"new")
    assert disk.power_loss(random.Random(seed)) == []
    assert disk.files.keys() == {"journal/1.json"}
    assert disk.read("journal/1.json") == b"new"


def outcomes(**steps):
    seen = set()
    for seed in range(300):
        disk = Disk()
        write(disk, "journal/1.json", b"old content")
        write(disk, "journal/1.json", b"new content", **steps)
        disk.power_loss(random.Random(seed))
        seen.add(disk.read("journal/1.json"))
    return seen


def test_a_replaced_file_is_the_old_or_the_new_one_when_its_content_was_synced():
    assert outcomes(sync_folder=False) == {b"old content", b"new content"}


def test_an_unsynced_file_may_be_torn_even_though_its_name_was_synced():
    seen = outcomes(sync=False)
    assert {b"", b"new content"} < seen
    assert any((data and not data.strip(b"\0")) or data.endswith(b"\0") for data in seen)


def test_a_removal_that_was_not_synced_may_be_undone():
    seen = set()
    for seed in range(50):
        disk = Disk()
        write(disk, "journal/1.json", b"entry")
        disk.remove("journal/1.json")
        assert disk.read("journal/1.json") is None
        disk.power_loss(random.Random(seed))
        seen.add(disk.read("journal/1.json"))
    assert seen == {None, b"entry"}


def test_a_full_disk_takes_no_new_data():
    disk = Disk()
    disk.full = True
    with pytest.raises(OSError, match="No space left"):
        disk.create("journal/1.json", 0.0, 0.0)
