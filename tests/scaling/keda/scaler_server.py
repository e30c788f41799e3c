"""An external scaler on a real gRPC listener, over the pools of a ledger in memory."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc

from headrace.jobs.pools import Pool, ScalingDecision
from headrace.server.grpc_aio import GrpcAioServer, GrpcAioSettings
from headrace.server.listener import GrpcMethods
from headrace.server.scaling.keda import ExternalScaler
from headrace.testing import ManualWallClock, MemoryJobLedger
from scaling.pool_bench import unshared

LEASE_MS = 60_000
POLL_S = 0.01


@asynccontextmanager
async def listening(methods: GrpcMethods) -> AsyncIterator[Any]:
    """Yield a channel to a server of these methods on a free port."""
    server = GrpcAioServer(methods, GrpcAioSettings(port=0))
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            yield channel
    finally:
        await server.stop()


class PoolReadings:
    """The readings of an external scaler. A test can wait until they have happened."""

    def __init__(self, read: Callable[[], Sequence[Pool]]) -> None:
        self._read = read
        self._loop = asyncio.get_running_loop()
        self._done = asyncio.Condition()
        self.count = 0

    def __call__(self) -> Sequence[Pool]:
        try:
            return self._read()
        finally:
            asyncio.run_coroutine_threadsafe(self._count(), self._loop)

    async def _count(self) -> None:
        async with self._done:
            self.count += 1
            self._done.notify_all()

    async def wait_for_look(self) -> None:
        """Wait until a reading has ended that began after this call."""
        # The first one may have begun before.
        last = self.count + 2
        async with self._done:
            await self._done.wait_for(lambda: self.count >= last)


class DecidedPools:
    """Pools with a controller whose decisions a test makes, and an external scaler over them."""

    def __init__(self) -> None:
        self.wall = ManualWallClock()
        self.ledger = MemoryJobLedger(self.wall)
        self.ledger.start()
        self.readings = PoolReadings(self.ledger.pools)
        self.service = ExternalScaler(unshared(self.readings), poll_s=POLL_S)

    def decide(self, wanted: int, pool: str = "default") -> None:
        assert self.ledger.control_pool(pool, "c-1", LEASE_MS)
        assert self.ledger.record_decision(ScalingDecision(pool, "c-1", 0, wanted, "a test"))

    def end_lease(self) -> None:
        """Let the leases of all controllers end."""
        self.wall.advance(LEASE_MS)
