"""What everything stands on that has to do with jobs: ledger, store, chores, and telling who is to be told."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from headrace.app.notifying import open_deliverer
from headrace.config.jobs_file import JobsFile
from headrace.core.clock import SystemClock
from headrace.core.retry import RetryPolicy
from headrace.core.service import Service
from headrace.jobs.dispatcher import Dispatcher
from headrace.jobs.dispatchers.open import open_dispatcher
from headrace.jobs.ledgers.open import open_ledger
from headrace.jobs.ledgers.sql import SqlJobLedger
from headrace.jobs.maintenance.publisher import Publisher
from headrace.jobs.maintenance.reaper import Reaper
from headrace.jobs.maintenance.reconciler import Reconciler
from headrace.jobs.maintenance.sweeper import Retention, Sweeper
from headrace.jobs.maintenance.upkeep import Chore, Upkeep
from headrace.jobs.outbound.client import OutboundClient
from headrace.jobs.outbound.inputs import InputStore
from headrace.jobs.places import Places
from headrace.jobs.publication import Publication
from headrace.storage.contract import Store
from headrace.storage.resolve import Stores
from headrace.storage.retry import Retrier

DATA_FOLDER: Final = "headrace-data"
LEDGER_NAME: Final = "jobs.db"
INPUT_BYTES_MAX: Final = 16 << 30
"""The largest input that is fetched from an ``https://`` address."""
_SWEEP_S: Final = 300.0
_ORPHANS_S: Final = 3600.0
_RECONCILE_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class JobsAt:
    """Where jobs are: the ledger's URL, the store of what is theirs, and what wakes workers beside the ledger ("": nothing)."""

    ledger_url: str
    store_uri: str
    dispatcher_url: str = ""

    @classmethod
    def folder(cls, path: str | Path = DATA_FOLDER) -> "JobsAt":
        """The embedded default: a folder with an SQLite file and the objects beside it."""
        base = Path(path).absolute()
        return cls(f"sqlite:///{base / LEDGER_NAME}", f"{base / 'objects'}/")

    @property
    def own_places(self) -> tuple[str, ...]:
        """What nobody may name as an input or output, whatever else they may: everybody's payloads, results and jobs are there."""
        scheme, _, path = self.ledger_url.partition(":///")
        if scheme != "sqlite":
            return (self.store_uri,)
        file = str(Path(path).absolute())
        return (self.store_uri, *(file + ending for ending in ("", "-wal", "-shm", "-journal")))

    def make_folders(self) -> None:
        """Make the folders that local places need."""
        scheme, _, path = self.ledger_url.partition(":///")
        if scheme == "sqlite":
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        if "://" not in self.store_uri:
            Path(self.store_uri).mkdir(parents=True, exist_ok=True)


class JobStores(Stores):
    """All stores; what is read from ``http://`` and ``https://`` goes through the guarded client."""

    def __init__(self, client: OutboundClient) -> None:
        super().__init__()
        self._client = client

    def _make(self, scheme: str) -> Store:
        if scheme in {"http", "https"}:
            retrier = Retrier(SystemClock(), RetryPolicy(retry_s=self.retry_s))
            return InputStore(self._client, retrier, bytes_max=INPUT_BYTES_MAX)
        return super()._make(scheme)


@dataclass(frozen=True, slots=True)
class JobParts:
    """The parts, and their life: started in order, stopped the other way round."""

    file: JobsFile
    ledger: SqlJobLedger
    stores: Stores
    places: Places
    publication: Publication
    client: OutboundClient
    dispatcher: Dispatcher | None
    services: tuple[Service, ...]
    """What looks after the ledger."""
    _open: ExitStack = field(default_factory=ExitStack)

    def start(self) -> None:
        """Connect, and begin to look after the ledger. Raises what kept it from that, leaving nothing running."""
        with ExitStack() as stack:
            stack.callback(self.client.close)
            stack.callback(self.stores.close)
            self.ledger.start()
            stack.callback(self.ledger.stop)
            for name, said in self.file.queues.items():
                # Whoever has paused it by hand did not mean: until something is started again.
                self.ledger.set_queue(replace(self.ledger.queue(name), **said))
            for target in self.file.endpoints:
                self.ledger.outbox.register(target)
            parts = [self.dispatcher] if self.dispatcher is not None else []
            for service in (*parts, *self.services):
                service.start()
                stack.callback(service.stop)
            self._open.push(stack.pop_all())

    def stop(self, *, drain: bool = True) -> None:
        """Let go of all of it. Twice does nothing."""
        del drain  # each ends what it has begun, within its own bounds
        self._open.close()


def open_parts(
    at: JobsAt,
    file: JobsFile | None = None,
    *,
    maintain_s: float,
    hold_off_s: float,
    retention: Retention | None = None,
    deliver: bool = True,
) -> JobParts:
    """Put the parts together; nothing is connected yet. Raises ConfigError for what cannot be.

    With `deliver` those who are to be told of jobs are told by this process: only one that knows what the file says (mail server,
    networks that may be reached) can, and another would refuse for good what it cannot send.
    """
    used = file or JobsFile()
    at.make_folders()
    ledger = open_ledger(at.ledger_url)
    client = OutboundClient(used.outbound)
    stores, places = JobStores(client), Places(at.store_uri)
    publication = Publication(ledger, stores)
    dispatcher = open_dispatcher(at.dispatcher_url) if at.dispatcher_url else None
    sweeper = Sweeper(ledger, stores, places, retention or Retention())
    upkeep = Upkeep(
        _chores(ledger, publication, sweeper, dispatcher, maintain_s=maintain_s), hold_off_s=hold_off_s
    )
    services: list[Service] = [upkeep]
    if deliver:
        services.append(open_deliverer(ledger.outbox, client, stores, smtp=used.smtp))
    return JobParts(used, ledger, stores, places, publication, client, dispatcher, tuple(services))


def _chores(
    ledger: SqlJobLedger,
    publication: Publication,
    sweeper: Sweeper,
    dispatcher: Dispatcher | None,
    *,
    maintain_s: float,
) -> Sequence[Chore]:
    """What every process that has to do with jobs does beside its own work; any number may."""
    reaper, publisher = Reaper(ledger), Publisher(ledger, publication)
    chores = [
        Chore("reaper", maintain_s, reaper.tick, reaper.round_jobs),
        Chore("publisher", maintain_s, publisher.tick, publisher.round_jobs),
        Chore("sweeper", _SWEEP_S, sweeper.tick, sweeper.round_jobs),
        Chore("orphans", _ORPHANS_S, sweeper.orphans),
    ]
    if dispatcher is not None:
        reconciler = Reconciler(ledger, dispatcher.announce, patience_s=_RECONCILE_S)
        chores.append(Chore("reconciler", _RECONCILE_S, reconciler.tick))
    return chores
