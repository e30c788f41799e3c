"""The bytes of payloads that API keys with a limit send per day (UTC), counted in the ledger.

A server process reserves blocks of bytes in the ledger and uses them up by itself, so that most
payloads cost no transaction. The ledger counts whole blocks: the part that a process has not used
when it ends stays counted, and the limit of a key is never exceeded.
"""

import logging
import threading
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import JobLedgerUnavailableError, LimitError, OverloadedError
from headrace.jobs.access import ApiKey
from headrace.jobs.ledger import DAY_MS, JobLedger, UsageReply

_log = logging.getLogger("headrace.jobs")

BLOCK_BYTES_MAX: Final = 1 << 20
BLOCKS_PER_DAY_MIN: Final = 100
"""A block is at most this part of a day's limit: a server wastes 1 % of it at most."""


class ByteUsage:
    """The bytes of all keys in one process. Thread-safe; keys without a limit cost nothing."""

    def __init__(self, ledger: JobLedger, clock: Clock | None = None) -> None:
        self._ledger = ledger
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._accounts: dict[str, _Account] = {}

    def use(self, key: ApiKey, nbytes: int) -> None:
        """Count bytes that were received from a key.

        Raises:
            LimitError: The limit of a whole day is smaller.
            OverloadedError: The bytes exceed what is left of the day's limit; none are counted.
            JobLedgerUnavailableError: The ledger does not respond.
        """
        account = self._account(key)
        if account is not None and nbytes:
            account.take(nbytes)

    def reserve(self, key: ApiKey, nbytes: int | None) -> "ByteReservation | None":
        """Count the bytes of a transfer before they arrive; None if the key has no limit.

        With `nbytes` None, the number is unknown, and bytes are counted as they arrive. Raises as `use`
        does.
        """
        account = self._account(key)
        return None if account is None else ByteReservation(account, 1 if nbytes is None else nbytes)

    def _account(self, key: ApiKey) -> "_Account | None":
        limit = key.bytes_per_day_max
        if limit is None:
            return None
        with self._lock:
            account = self._accounts.get(key.name)
            if account is None:
                account = self._accounts[key.name] = _Account(self._ledger, self._clock, key.name, limit)
            return account


class ByteReservation:
    """The counted bytes of one transfer. `close` returns those that did not arrive."""

    def __init__(self, account: "_Account", nbytes: int) -> None:
        self._account = account
        self._day = account.take(nbytes)
        self._reserved = nbytes
        self._received = 0

    def receive(self, nbytes: int) -> None:
        """Record bytes that arrived, and count those that were not reserved.

        Raises as `ByteUsage.use`, but what is left of the limit is used up then: the bytes arrived.
        """
        self._received += nbytes
        missing = self._received - self._reserved
        if missing <= 0:
            return
        self._reserved = self._received
        try:
            self._account.take(missing)
        except (OverloadedError, LimitError):
            self._account.take_rest(missing)
            raise

    def close(self, unread_bytes: int = 0) -> None:
        """End the transfer, whose last `unread_bytes` arrived and were dropped.

        It never raises: bytes that cannot be counted are left out.
        """
        with suppress(OverloadedError, LimitError, JobLedgerUnavailableError):
            if unread_bytes:
                self.receive(unread_bytes)
        # Whatever was counted in addition has arrived, so the rest is of the first day.
        unused, self._received = self._reserved - self._received, self._reserved
        if unused > 0:
            self._account.give_back(unused, self._day)


class _Account:
    """The bytes that one process has reserved for a key, and not used yet. Thread-safe."""

    def __init__(self, ledger: JobLedger, clock: Clock, name: str, limit: int) -> None:
        self._ledger = ledger
        self._clock = clock
        self._name = name
        self._limit = limit
        self._block_bytes = min(BLOCK_BYTES_MAX, limit // BLOCKS_PER_DAY_MIN)
        self._lock = threading.Lock()
        self._left = 0
        self._day = 0
        self._day_ends_s = float("-inf")

    def take(self, nbytes: int) -> int:
        """Count bytes, and return the day that they are counted on. Raises as `ByteUsage.use`."""
        if nbytes > self._limit:
            raise LimitError(
                f"{nbytes} bytes exceed the limit of {self._limit} bytes per day of API key {self._name!r}: "
                "send less, or write them to a bucket and name it as input_uri"
            )
        with self._lock:
            self._forget_earlier_day()
            while self._left < nbytes:
                self._reserve(nbytes - self._left)
            self._left -= nbytes
            return self._day

    def take_rest(self, nbytes: int) -> None:
        """Count as many of these bytes as the limit permits."""
        with self._lock:
            self._forget_earlier_day()
            reserved = min(nbytes, self._left)
            self._left -= reserved
            reply = self._ledger.use_bytes(self._name, nbytes - reserved, limit=self._limit)
            if not reply.granted and reply.left_bytes:
                self._ledger.use_bytes(self._name, reply.left_bytes, limit=self._limit)

    def give_back(self, nbytes: int, day: int) -> None:
        """Return bytes of a day to it: a block stays here for later, and the rest goes to the ledger."""
        with self._lock:
            self._forget_earlier_day()
            if day != self._day:
                return
            excess = max(0, self._left + nbytes - self._block_bytes)
            self._left += nbytes - excess
            if not excess:
                return
            try:
                self._ledger.return_bytes(self._name, excess, day=day)
            except JobLedgerUnavailableError as error:
                # It is unknown if they were returned. Counting too many keeps the limit.
                _log.warning(
                    "unused bytes of a key stay counted", extra={"key": self._name, "why": str(error)}
                )

    def _forget_earlier_day(self) -> None:
        if self._clock.now() >= self._day_ends_s:
            self._left = self._day = 0

    def _reserve(self, missing: int) -> None:
        """Reserve a block of at least `missing` bytes, or exactly these if the limit is near."""
        began_s = self._clock.now()
        nbytes = max(missing, self._block_bytes)
        reply = self._ledger.use_bytes(self._name, nbytes, limit=self._limit)
        if not reply.granted and nbytes > missing:
            nbytes = missing
            reply = self._ledger.use_bytes(self._name, nbytes, limit=self._limit)
        if not reply.granted:
            raise self._refusal(missing, reply)
        if reply.day != self._day:
            self._left, self._day = 0, reply.day
        self._left += nbytes
        self._day_ends_s = began_s + reply.day_ends_in_ms / 1000

    def _refusal(self, nbytes: int, reply: UsageReply) -> OverloadedError:
        next_day = datetime.fromtimestamp((reply.day + 1) * DAY_MS / 1000, UTC)
        return OverloadedError(
            f"{nbytes} more bytes exceed the limit of {self._limit} bytes per day of API key "
            f"{self._name!r}: send them after {next_day:%Y-%m-%d %H:%M} UTC",
            retry_after_s=reply.day_ends_in_ms / 1000,
        )
