"""Whole folders of a store: what is below one URI."""

from headrace.storage.contract import Store
from headrace.storage.local import LocalStore


def remove_folder(store: Store, folder: str) -> None:
    """Remove every object that is below `folder`, and see `prune_folder`."""
    for info in store.list(folder):
        store.delete(info.uri)
    prune_folder(store, folder)


def prune_folder(store: Store, folder: str) -> None:
    """Remove the folder itself where nothing is left in it. Only disks have folders; see `LocalStore.prune`."""
    if isinstance(store, LocalStore):
        store.prune(folder)
