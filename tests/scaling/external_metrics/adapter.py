"""The external metrics API for tests: pools in a ledger, served on loopback."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import trustme

from headrace.jobs.pools import Pool, ScalingDecision
from headrace.server.application import Guard
from headrace.server.listen import HttpListener, ListenerThread
from headrace.server.listener import TlsFiles
from headrace.server.scaling.external_metrics import external_metrics_app
from headrace.testing import ManualWallClock, MemoryJobLedger

WAIT_S = 30.0
LEASE_MS = 30_000
GROUP = "/apis/external.metrics.k8s.io"
VERSION = f"{GROUP}/v1beta1"
METRIC = f"{VERSION}/namespaces/default/headrace_pool_workers_wanted"


class PoolLedger:
    """A ledger in memory, whose pools a test controls by hand. Its clock begins at 08:00:00."""

    def __init__(self) -> None:
        self.clock = ManualWallClock()
        self.memory = MemoryJobLedger(self.clock)
        self.memory.start()

    def decide(self, pool: str, *wanted: int) -> None:
        """Control a pool, and record decisions for these numbers of workers."""
        assert self.memory.control_pool(pool, "c-1", LEASE_MS)
        for number in wanted:
            assert self.memory.record_decision(ScalingDecision(pool, "c-1", number + 1, number, "jobs"))

    def release(self, pool: str) -> None:
        """Let the controller of a pool end."""
        self.memory.release_pool(pool, "c-1")


@contextmanager
def served_metrics(
    read_pools: Callable[[], Awaitable[Sequence[Pool]]],
    tls: TlsFiles | None = None,
    guard: Guard | None = None,
) -> Iterator[str]:
    """Serve the API. Yield its address."""
    listener = ListenerThread(HttpListener(external_metrics_app(read_pools, guard), "127.0.0.1", 0, tls))
    listener.start()
    try:
        yield listener.address
    finally:
        listener.stop(drain=False)


@dataclass(frozen=True)
class Certificates:
    """PEM files of a server and of an API server, whose certificates have different authorities."""

    tls: TlsFiles
    ca: Path
    client: Path
    client_key: Path
    other: Path
    """A certificate of the server's authority for a client."""
    other_key: Path


def write_certificates(folder: Path) -> Certificates:
    """Create all certificates."""
    ca, front_proxy_ca = trustme.CA(), trustme.CA()
    issued = {
        "server": ca.issue_cert("127.0.0.1"),
        "client": front_proxy_ca.issue_cert("front-proxy-client"),
        "other": ca.issue_cert("other"),
    }
    for name, made in issued.items():
        made.private_key_pem.write_to_path(str(folder / f"{name}.key"))
        made.cert_chain_pems[0].write_to_path(str(folder / f"{name}.pem"))
    ca.cert_pem.write_to_path(str(folder / "ca.pem"))
    front_proxy_ca.cert_pem.write_to_path(str(folder / "front-proxy-ca.pem"))
    return Certificates(
        TlsFiles(folder / "server.pem", folder / "server.key", folder / "front-proxy-ca.pem"),
        folder / "ca.pem",
        folder / "client.pem",
        folder / "client.key",
        folder / "other.pem",
        folder / "other.key",
    )
