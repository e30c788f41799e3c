"""The storage of measured jobs: a ledger of each kind, a store on the same disk, and their servers."""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from inputs import FOLDER

from headrace.jobs.ledger import JobLedger
from headrace.jobs.ledgers import open_ledger
from servers.postgres import PostgresServer

SQLITE = "SQLite"
POSTGRES = "PostgreSQL"
LEDGERS = (SQLITE, POSTGRES)


@dataclass(frozen=True)
class JobStorage:
    """An empty ledger, and a folder for payloads and results. Both are on a disk; commits wait for
    it.
    """

    kind: str
    ledger_url: str
    store: Path

    @contextmanager
    def ledger(self) -> Iterator[JobLedger]:
        """Yield the ledger, started."""
        ledger = open_ledger(self.ledger_url)
        ledger.start()
        try:
            yield ledger
        finally:
            ledger.stop()


NewStorage = Callable[[str], JobStorage]


@contextmanager
def open_storage(kinds: Sequence[str] = LEDGERS) -> Iterator[NewStorage]:
    """Yield a function that returns a new storage of a kind. All are deleted at the end.

    The kinds are SQLITE and POSTGRES.
    """
    FOLDER.mkdir(exist_ok=True)
    with ExitStack() as left:
        # The system's folder for temporary files may be in memory.
        base = Path(tempfile.mkdtemp(prefix="jobs-", dir=FOLDER.resolve()))
        left.callback(shutil.rmtree, base, ignore_errors=True)
        server: PostgresServer | None = None
        if POSTGRES in kinds:
            server = PostgresServer()
            left.callback(server.close)
            server.start()
        count = 0

        def new(kind: str) -> JobStorage:
            nonlocal count
            count += 1
            folder = base / str(count)
            store = folder / "objects"
            store.mkdir(parents=True)
            if kind == SQLITE:
                return JobStorage(kind, f"sqlite:///{folder / 'jobs.db'}", store)
            assert server is not None, "POSTGRES is one of kinds"
            return JobStorage(kind, server.url(server.create_database()), store)

        yield new
