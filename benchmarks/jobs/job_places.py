"""Where the jobs that are measured are kept: a ledger of either kind, its store on the same disk, and the servers behind."""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from inputs import FOLDER

from headrace.jobs.ledger import JobLedger
from headrace.jobs.ledgers.open import open_ledger
from servers.postgres import PostgresServer

SQLITE = "SQLite"
POSTGRES = "PostgreSQL"
LEDGERS = (SQLITE, POSTGRES)


@dataclass(frozen=True)
class Place:
    """A ledger without jobs, and a folder for their payloads and results; both are on a disk, and commits wait for it."""

    kind: str
    ledger_url: str
    store: Path

    @contextmanager
    def ledger(self) -> Iterator[JobLedger]:
        """The ledger, started."""
        ledger = open_ledger(self.ledger_url)
        ledger.start()
        try:
            yield ledger
        finally:
            ledger.stop()


NewPlace = Callable[[str], Place]


@contextmanager
def places(kinds: Sequence[str] = LEDGERS) -> Iterator[NewPlace]:
    """Makes places of a kind (SQLITE, POSTGRES), each a new one; they and their servers go at the end."""
    FOLDER.mkdir(exist_ok=True)
    with ExitStack() as left:
        # Not the system's folder for temporary files, which may be in memory.
        base = Path(tempfile.mkdtemp(prefix="jobs-", dir=FOLDER.resolve()))
        left.callback(shutil.rmtree, base, ignore_errors=True)
        server: PostgresServer | None = None
        if POSTGRES in kinds:
            server = PostgresServer()
            left.callback(server.close)
            server.start()
        count = 0

        def new(kind: str) -> Place:
            nonlocal count
            count += 1
            folder = base / str(count)
            store = folder / "objects"
            store.mkdir(parents=True)
            if kind == SQLITE:
                return Place(kind, f"sqlite:///{folder / 'jobs.db'}", store)
            assert server is not None, "it was asked for"
            return Place(kind, server.url(server.create_database()), store)

        yield new
