"""From a URI to the store that holds it. The caller owns the `Stores`; there is none in any module."""

import os
import threading
from collections.abc import Mapping
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
    """All stores of one owner: clients are made when first asked for and kept; ``memory://`` objects live here.

    Args:
        environ: Where endpoints and credentials come from; the process's environment when None. Variables that only
            the client library knows (all of GOOGLE_* and AZURE_*) it reads from the process's own.
        clock: What retries wait on.
        retry_s: How long a verb goes on failing, without any progress, before it raises UnavailableError.
        timeout_s: How long a silent server is waited for before the attempt counts as failed.
        seed: For the jitter between retries; None draws one.

    Safe from any thread.
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
        policy = RetryPolicy(retry_s=retry_s)
        self._retrier = Retrier(clock or SystemClock(), policy, seed=seed, wake=self._closed)
        self._stores: dict[str, Store] = {}
        self._lock = threading.Lock()

    def for_uri(self, uri: str) -> Store:
        """The store for a URI or plain path; the same one for the same scheme.

        Raises ConfigError for a scheme or address that cannot be. Credentials are looked for at a bucket's first verb.
        """
        scheme = parse(uri).scheme
        scheme = "http" if scheme in HTTP_SCHEMES else scheme
        with self._lock:
            store = self._stores.get(scheme)
            if store is None:
                store = self._stores[scheme] = self._make(scheme)
            return store

    def close(self) -> None:
        """End all waiting for retries: what still fails raises UnavailableError at once. Twice does nothing."""
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
        # The client library takes longer to import than all else here, and local runs never need it.
        from headrace.storage.cloud import Bucket, CloudSettings  # noqa: PLC0415
        from headrace.storage.objects import CloudStore  # noqa: PLC0415

        settings = CloudSettings(self._environ, self.timeout_s, self.retry_s)
        return CloudStore(scheme, lambda kind, name: Bucket(kind, name, settings), self._retrier)
