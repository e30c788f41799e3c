"""The contract of a checkpoint store: the last finished step of each sequence, kept where the next process finds it."""

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

KEEP_MS: Final = 7 * 24 * 3_600_000.0
"""How long a store keeps what nobody saves, unless told otherwise: no sequence may be idle for longer."""


class Checkpoint(NamedTuple):
    """What is kept of one sequence: its state after so many steps."""

    id: str
    steps: int
    """1 or more, below 2**63. It need not be the next number: a store only asks whether it is the same.

    That is all by which a store tells an earlier sequence of this id from a later one. Where two processes may hold one each,
    both must not come through the same numbers.
    """
    state: bytes
    """As `headrace.checkpoints.codec` writes it; the store does not look inside."""
    before: int
    """The `steps` of the checkpoint that this one follows; 0: it is the first of a sequence that begins, or begins anew."""


class CheckpointStore(Protocol):
    """Checkpoints of the sequences of one model, by their ids. Blocking; any thread, several processes at once.

    A store has one time, by which it knows how long ago something was saved, also by other processes. It may drop by itself
    what was saved longer ago than it is to keep things (`KEEP_MS`).

    Every method raises UnavailableError when the store does not answer in time, or not as it should, and after `close`. What
    was being saved or deleted then may have been, or may not; to save the very same again is right in both cases.
    """

    def save(self, checkpoints: Sequence[Checkpoint]) -> list[bool]:
        """Keep these, each whole or not at all, and say which were kept. An id may come twice; they are taken in order.

        A checkpoint is kept when

        - its `before` is 0, whatever is there; or
        - there is one of its id, whose `steps` are its `before`; or
        - what is there is this very checkpoint, of the same steps and state: then it only counts as saved now.

        Else it is not kept, and what is there stays: another process has gone on with the sequence, or has ended it, or
        the store has lost it. Of several who save at once with the same `before`, one is kept.

        What was kept is durable when this returns: it outlives this process, and, as far as the store itself does, the machine.
        """
        ...

    def load(self, ids: Sequence[str], *, idle_ms_max: float) -> list[tuple[int, bytes] | None]:
        """The steps and the state of each, in the order of `ids`; None where there is nothing that old at most.

        `idle_ms_max` may be infinite.
        """
        ...

    def delete(self, ids: Sequence[str], steps: Sequence[int] | None = None) -> None:
        """These have ended; what is not there is no error.

        With `steps`, one for each id, a checkpoint stays that is of other steps: its sequence has gone on elsewhere, so
        that who thinks it has been idle is wrong.
        """
        ...

    def purge(self, *, idle_ms_max: float, count_max: int) -> int:
        """Drop at most `count_max` of this model's checkpoints that were saved more than `idle_ms_max` ago, the oldest first.

        How many were dropped; `count_max` says that there may be more. For whoever has time: `load` does not find them anyway.
        """
        ...

    def close(self) -> None:
        """Let go of connections and files; what was saved stays, if the store outlives its process. Does nothing the second time."""
        ...
