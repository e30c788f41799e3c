"""Map URIs to stores. The caller owns the `Stores`; no module holds one."""

import os
import threading
from collections.abc import Mapping
from functools import cached_property
from types import TracebackType
from typing import Self

from headrace.core.clock import Clock, SystemClock
from headrace.core.retry import RetryPolicy
from headrace.storage.contract import Store
from headrace.storage.http import HttpStore
from headrace.storage.local import LocalStore
from headrace.storage.memory import MemoryStore
from headrace.storage.retry import Retrier
from headrace.storage.uri import CLOUD_SCHEMES, HTTP_SCHEMES, parse

RETRY_S = 120.0
TIMEOUT_S = 60.0


class Stores:
    """The stores of one owner, created on first use.

    They include the ``memory://`` objects. Safe from any thread.

    Args:
        environ: The source of endpoints and credentials; None: the environment of the process. The
            client library reads GOOGLE_* and AZURE_* variables from the process's environment.
        clock: The clock that retries wait on.
        retry_s: Seconds without progress after which a failing operation raises UnavailableError.
        timeout_s: Seconds without a byte after which an attempt fails.
        seed: The seed of the retry jitter; None: random.
    """

    def __init__(
        self,
        environ: Mapping[str, str] | None = None,
        *,
        clock: Clock | None = None,
        retry_s: float = RETRY_S,
        timeout_s: float = TIMEOUT_S,
        seed: int | None = None,
    ) -> None:
        self.environ = environ
        self.retry_s = retry_s
        self.timeout_s = timeout_s
        self._environ = os.environ if environ is None else environ
        self._closed = threading.Event()
        self._clock = clock or SystemClock()
        self._seed = seed
        self._stores: dict[str, Store] = {}
        self._lock = threading.Lock()

    @cached_property
    def _retrier(self) -> Retrier:
        """The retrier of all stores on the network."""
        policy = RetryPolicy(retry_s=self.retry_s)
        return Retrier(self._clock, policy, seed=self._seed, wake=self._closed)

    def for_uri(self, uri: str) -> Store:
        """Return the store of a URI or plain path. URIs of one scheme share a store.

        Raises ConfigError for an invalid scheme or address. Credentials are searched on the first
        operation on a bucket.
        """
        scheme = parse(uri).scheme
        scheme = "http" if scheme in HTTP_SCHEMES else scheme
        with self._lock:
            store = self._stores.get(scheme)
            if store is None:
                store = self._stores[scheme] = self._make(scheme)
            return store

    def close(self) -> None:
        """End all waiting for retries: operations that still fail raise UnavailableError at once.

        Closing twice does nothing.
        """
        self._closed.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _make(self, scheme: str) -> Store:
        if scheme in CLOUD_SCHEMES:
            return self._cloud(scheme)
        if scheme in HTTP_SCHEMES:
            return HttpStore(self._retrier, timeout_s=self.timeout_s)
        return MemoryStore() if scheme == "memory" else LocalStore()

    def _cloud(self, scheme: str) -> Store:
        # The client library is slow to import, and local runs never need it.
        from headrace.storage.cloud import Bucket, CloudSettings  # noqa: PLC0415
        from headrace.storage.cloud_store import CloudStore  # noqa: PLC0415

        settings = CloudSettings(self._environ, self.timeout_s, self.retry_s)
        return CloudStore(scheme, lambda kind, name: Bucket(kind, name, settings), self._retrier)
