"""Choose the records of a sample by a hash of the seed and of each record's place in the source.

The choice depends on nothing else: workers, chunks, byte ranges and resumptions do not change it.
"""

from hashlib import blake2b
from math import ceil
from typing import Final

import numpy as np
from numpy.typing import NDArray

from headrace.core.block import Block, FailureKind, Position

_MULTIPLIERS: Final = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
"""The multipliers of SplitMix64, whose output passes tests of randomness for consecutive inputs."""
_RECORD_MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)


class RecordSampler:
    """A chooser of the records of one object.

    Args:
        share: The probability of each record, above 0 and at most 1.
        seed: The number that selects one of many samples.
        by_byte: Hash the byte of a record without its number. Ranges of an object number their records
            from their own start, but know the byte.
    """

    def __init__(self, share: float, seed: int, *, by_byte: bool) -> None:
        self._bound = np.uint64(min(ceil(share * 2**64), 2**64) - 1)
        self._seed = seed
        self._by_byte = by_byte
        self._member: tuple[tuple[str, str | None, int], np.uint64] | None = None
        """The last member, and its part of the hash."""

    def sample(self, block: Block) -> Block:
        """Return the chosen records and failures of a block, at their positions.

        A failure of an object or member is not a record, and always chosen.
        """
        places = block.places_of(np.arange(len(block)))
        rows = np.flatnonzero(self._chosen(block.first, places.records, places.bytes))
        failures = block.failures
        if failures:
            at = [failure.position for failure in failures]
            records, offsets = (np.array(n, np.int64) for n in ([p.record for p in at], [p.byte for p in at]))
            chosen = self._chosen(block.first, records, offsets).tolist()
            failures = tuple(
                failure
                for failure, is_chosen in zip(failures, chosen, strict=True)
                if is_chosen or failure.kind is FailureKind.OBJECT
            )
        if len(rows) == len(block) and len(failures) == len(block.failures):
            return block
        return block.take(rows, failures)

    def _chosen(
        self, first: Position, records: NDArray[np.int64], offsets: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Return True for each chosen place in the member of `first`."""
        mixed = offsets.astype(np.uint64)
        if not self._by_byte:
            mixed ^= records.astype(np.uint64) * _RECORD_MULTIPLIER
        mixed += self._member_hash(first)
        for shift, multiplier in zip((30, 27), _MULTIPLIERS, strict=True):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * multiplier
        return (mixed ^ (mixed >> np.uint64(31))) <= self._bound

    def _member_hash(self, first: Position) -> np.uint64:
        member = first.object, first.member, first.member_byte
        if self._member is None or self._member[0] != member:
            text = repr((self._seed, *member)).encode()
            digest = blake2b(text, digest_size=8).digest()
            self._member = member, np.uint64(int.from_bytes(digest, "little"))
        return self._member[1]
