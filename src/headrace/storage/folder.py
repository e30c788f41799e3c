"""Operations on folders: all objects below one URI."""

from headrace.storage.contract import Store
from headrace.storage.local import LocalStore


def remove_folder(store: Store, folder: str) -> None:
    """Delete every object below `folder`, then the empty folders (see `prune_folder`)."""
    for info in store.list(folder):
        store.delete(info.uri)
    prune_folder(store, folder)


def prune_folder(store: Store, folder: str) -> None:
    """Remove `folder` and its subfolders where they are empty.

    Does nothing for stores without folders.
    """
    if isinstance(store, LocalStore):
        store.prune(folder)
