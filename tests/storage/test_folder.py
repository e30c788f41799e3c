"""Folder operations on a memory store and on a disk."""

import pytest

from headrace.storage.local import LocalStore, prune_folder, remove_folder
from headrace.storage.resolve import MemoryStore


@pytest.fixture(params=["memory", "disk"])
def store_and_base(request, tmp_path):
    if request.param == "memory":
        return MemoryStore(), "memory://box/"
    return LocalStore(), f"{tmp_path}/"


def test_remove_folder_deletes_only_objects_below_it(store_and_base):
    store, base = store_and_base
    for name in ("job-1/a", "job-1/deeper/b", "job-10/c"):
        store.put(base + name, b"x")
    remove_folder(store, f"{base}job-1/")
    assert [info.uri for info in store.list(base)] == [f"{base}job-10/c"]


def test_removing_a_missing_folder_does_nothing(store_and_base):
    store, base = store_and_base
    remove_folder(store, f"{base}nothing/")
    assert list(store.list(f"{base}nothing/")) == []


def test_remove_folder_leaves_no_empty_folders_on_disk(tmp_path):
    store = LocalStore()
    store.put(f"{tmp_path}/job/deeper/a", b"x")
    remove_folder(store, f"{tmp_path}/job/")
    assert list(tmp_path.iterdir()) == []


def test_prune_folder_keeps_a_folder_with_files(tmp_path):
    store = LocalStore()
    store.put(f"{tmp_path}/job/a", b"x")
    prune_folder(store, f"{tmp_path}/job/")
    assert (tmp_path / "job" / "a").read_bytes() == b"x"
