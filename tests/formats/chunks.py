"""Bytes in chunks, cut as a test wants them."""

import itertools


def cut(data, edges):
    """Chunks between these edges, in whatever order they are given."""
    edges = [0, *sorted(edges), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


def reused(data, size):
    """Chunks as views of one buffer that is overwritten each time."""
    buffer = bytearray(size)
    for at in range(0, len(data), size):
        part = data[at : at + size]
        buffer[: len(part)] = part
        yield memoryview(buffer)[: len(part)]
        buffer[:] = b"\xaa" * size
