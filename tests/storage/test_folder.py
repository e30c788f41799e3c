"""Folders of a store: all that is below goes, what is beside stays, and no empty folder is left on a disk."""

import pytest

from headrace.storage.folder import prune_folder, remove_folder
from headrace.storage.local import LocalStore
from headrace.storage.memory import MemoryStore


@pytest.fixture(params=["memory", "disk"])
def place(request, tmp_path):
    """A store, and a URI in it to put things below."""
    if request.param == "memory":
        return MemoryStore(), "memory://box/"
    return LocalStore(), f"{tmp_path}/"


def test_what_is_below_goes_and_what_is_beside_stays(place):
    store, base = place
    for name in ("job-1/a", "job-1/deeper/b", "job-10/c"):
        store.put(base + name, b"x")
    remove_folder(store, f"{base}job-1/")
    assert [info.uri for info in store.list(base)] == [f"{base}job-10/c"]


def test_a_folder_that_is_not_there_is_removed_already(place):
    store, base = place
    remove_folder(store, f"{base}nothing/")
    assert list(store.list(f"{base}nothing/")) == []


def test_a_disk_is_left_without_empty_folders(tmp_path):
    store = LocalStore()
    store.put(f"{tmp_path}/job/deeper/a", b"x")
    remove_folder(store, f"{tmp_path}/job/")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_holds_something_is_not_pruned(tmp_path):
    store = LocalStore()
    store.put(f"{tmp_path}/job/a", b"x")
    prune_folder(store, f"{tmp_path}/job/")
    assert (tmp_path / "job" / "a").read_bytes() == b"x"
