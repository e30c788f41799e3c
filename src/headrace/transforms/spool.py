"""One output's bytes: in memory while they are few, in a draft once they are many or must outlive the process."""

from typing import Final

from headrace.storage.contract import Store
from headrace.storage.draft import Draft, Kept, KeptRange, open_draft
from headrace.storage.publisher import Publisher

HELD_BYTES_MAX: Final = 4 << 20
"""What is held of one output before it goes to a draft."""


class Spool:
    """Bytes of one output. One thread at a time.

    Args:
        store: Of the destination.
        draft_uri: What its draft is called, if it needs one; nobody else uses the name.
        kept: What an earlier process kept of it.
        draft: One that it goes on in, behind what is in it: another output, which this one follows.
    """

    def __init__(
        self, store: Store, draft_uri: str, *, kept: KeptRange | None = None, draft: Draft | None = None
    ) -> None:
        self._store = store
        self._draft_uri = draft_uri
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._draft = draft
        self._start = draft.nbytes if draft else 0
        if kept is not None:
            self._draft = open_draft(store, draft_uri, kept)

    @property
    def nbytes(self) -> int:
        """How much was written."""
        return self._held_bytes + (self._draft.nbytes - self._start if self._draft else 0)

    def write(self, data: bytes) -> None:
        """Append."""
        if not data:
            return
        if self._draft is not None and not self._held:
            self._draft.write(data)  # at once, while it is in the processor's cache
            return
        self._held.append(data)
        self._held_bytes += len(data)
        if self._held_bytes > HELD_BYTES_MAX:
            self._spill()

    def _spill(self) -> Draft:
        if self._draft is None:
            self._draft = open_draft(self._store, self._draft_uri)
        for data in self._held:
            self._draft.write(data)
        self._held, self._held_bytes = [], 0
        return self._draft

    def keep(self) -> KeptRange | None:
        """Make all of it outlive the process; None when there is nothing."""
        if not self.nbytes:
            return None
        kept = self._spill().keep()
        return KeptRange(kept, self._start, kept.nbytes)

    def release(self) -> Draft | None:
        """The draft, for an output that follows this one; close it then, not this. None where there is none."""
        draft, self._draft = self._draft, None
        return draft

    def publish(self, uri: str, publisher: Publisher) -> Kept | None:
        """Make it the object `uri`: at once where it is large, with `publisher`'s other ones where it is small.

        What was kept of it stays, and is returned.
        """
        if self._draft is not None:
            return self._spill().publish(uri)
        publisher.put(uri, b"".join(self._held))
        self._held, self._held_bytes = [], 0
        return None

    def close(self) -> None:
        """Let go of it; what was kept stays. Closing twice does nothing."""
        if self._draft is not None:
            self._draft.close()
