"""Buffer one output in memory; spill it to a draft if it is large or must survive the process."""

from typing import Final

from headrace.storage.contract import Store
from headrace.storage.draft import Draft, PersistedDraft, PersistedRange, open_draft
from headrace.storage.publisher import DraftPublisher

BUFFER_BYTES_MAX: Final = 4 << 20
"""The size of an output from which on it goes to a draft."""


class SpooledOutput:
    """The bytes of one output. Used by one thread at a time.

    Args:
        store: The store of the destination.
        draft_uri: The unique name of the draft, if one is needed.
        persisted: The part that an earlier process persisted.
        draft: A draft of a previous output, to append to.
    """

    def __init__(
        self,
        store: Store,
        draft_uri: str,
        *,
        persisted: PersistedRange | None = None,
        draft: Draft | None = None,
    ) -> None:
        self._store = store
        self._draft_uri = draft_uri
        self._buffer: list[bytes] = []
        self._buffer_bytes = 0
        self._draft = draft
        self._start = draft.nbytes if draft else 0
        if persisted is not None:
            self._draft = open_draft(store, draft_uri, persisted)

    @property
    def nbytes(self) -> int:
        """The number of bytes written."""
        return self._buffer_bytes + (self._draft.nbytes - self._start if self._draft else 0)

    def write(self, data: bytes) -> None:
        """Append bytes."""
        if not data:
            return
        if self._draft is not None and not self._buffer:
            self._draft.write(data)  # at once, while the bytes are in the processor's cache
            return
        self._buffer.append(data)
        self._buffer_bytes += len(data)
        if self._buffer_bytes > BUFFER_BYTES_MAX:
            self._spill()

    def _spill(self) -> Draft:
        if self._draft is None:
            self._draft = open_draft(self._store, self._draft_uri)
        for data in self._buffer:
            self._draft.write(data)
        self._buffer, self._buffer_bytes = [], 0
        return self._draft

    def persist(self) -> PersistedRange | None:
        """Persist all bytes. Return their range in the draft, or None without bytes."""
        if not self.nbytes:
            return None
        persisted = self._spill().persist()
        return PersistedRange(persisted, self._start, persisted.nbytes)

    def release(self) -> Draft | None:
        """Return the draft for the next output, which then closes it. None without a draft."""
        draft, self._draft = self._draft, None
        return draft

    def publish(self, uri: str, publisher: DraftPublisher) -> PersistedDraft | None:
        """Publish the output as object `uri`: a large one at once, a small one together with others.

        Return the persisted draft, which stays, if there is one.
        """
        if self._draft is not None:
            return self._spill().publish(uri)
        publisher.put(uri, b"".join(self._buffer))
        self._buffer, self._buffer_bytes = [], 0
        return None

    def close(self) -> None:
        """Release the draft; its persisted part stays. Further calls do nothing."""
        if self._draft is not None:
            self._draft.close()
