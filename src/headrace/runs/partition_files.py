"""Publish the files of an output with partitions: each as a whole, under a name that the ledger has."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import Final

from headrace.formats.partition import split_frames
from headrace.runs.ledger import Ledger
from headrace.storage.draft import DraftPublisher

_PASS_BYTES: Final = 64 << 20
"""The limit of bytes in memory of the files that are written in one pass over an output."""
_SMALL_BYTES: Final = 2 << 20
"""The size of a file up to which it is written at once. Larger files are written in pieces."""


def publish_partitions(
    ledger: Ledger,
    publisher: DraftPublisher,
    number: int,
    *,
    name: str,
    sizes: Mapping[str, int],
    read: Callable[[], Iterable[bytes]],
) -> None:
    """Publish the partitions of an output. They are durable after `publisher` is flushed.

    Files of an earlier attempt of the same output are replaced or deleted.

    Args:
        ledger: The ledger of the destination.
        publisher: The writer of small files.
        number: The number of the output: of its object, part or task.
        name: The name of the files in their folders.
        sizes: The size of each partition by its folder.
        read: A function that returns the frames of the output. It is called once for each pass.
    """
    ledger.claim_files(number, [folder + name for folder in sizes])
    for some in _passes(sizes):
        _publish_some(ledger, publisher, name, some, read())


def _passes(sizes: Mapping[str, int]) -> Iterator[Mapping[str, int]]:
    """Yield the partitions in groups, each with files that one pass over the output writes."""
    some: dict[str, int] = {}
    held = 0
    for folder, nbytes in sorted(sizes.items()):
        held_by_file = min(nbytes, _SMALL_BYTES)
        if some and held + held_by_file > _PASS_BYTES:
            yield some
            some, held = {}, 0
        some[folder] = nbytes
        held += held_by_file
    if some:
        yield some


def _publish_some(
    ledger: Ledger, publisher: DraftPublisher, name: str, sizes: Mapping[str, int], chunks: Iterable[bytes]
) -> None:
    small: dict[str, list[bytes]] = {folder: [] for folder, size in sizes.items() if size <= _SMALL_BYTES}
    with ExitStack() as stack:
        large = {
            folder: stack.enter_context(ledger.store.writer(ledger.destination + folder + name))
            for folder in sizes
            if folder not in small
        }
        for folder, data in split_frames(chunks):
            if folder in large:
                large[folder].write(data)
            elif folder in small:
                small[folder].append(data)
    for folder, pieces in small.items():
        publisher.put(ledger.destination + folder + name, b"".join(pieces))
