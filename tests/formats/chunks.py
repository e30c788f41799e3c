"""Helpers that cut bytes into chunks."""

import itertools


def cut(data, edges):
    """Return the chunks between these edges, given in any order."""
    edges = [0, *sorted(edges), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


def reuse_buffer(data, size):
    """Yield chunks as views of one buffer that is overwritten each time."""
    buffer = bytearray(size)
    for at in range(0, len(data), size):
        part = data[at : at + size]
        buffer[: len(part)] = part
        yield memoryview(buffer)[: len(part)]
        buffer[:] = b"\xaa" * size
