"""A real RabbitMQ on loopback, a node of its own beside any that runs here already.

It comes from the system's package `rabbitmq-server`. As root it runs as the package's own user, which Erlang insists on.
"""

import os
import pwd
import shutil
import signal
import subprocess
import time
from pathlib import Path

from servers.ports import free_ports

READY_S = 90.0
_USER = "rabbitmq"
_HOMES = ("/usr/lib/rabbitmq/bin", "/usr/sbin", "/usr/local/sbin", "/opt/rabbitmq/sbin")


def missing() -> str:
    """Why there can be no server here; "" when there can."""
    if not _script("rabbitmq-server"):
        return "no rabbitmq-server: install the system's package of that name"
    if os.geteuid() == 0 and not (_exists(_USER) and shutil.which("runuser")):
        return f"as root it takes a user {_USER!r} and runuser, which the system's package brings"
    return ""


class RabbitServer:
    """One node. `folder` must be reachable for the user that it runs as."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, self._distribution_port = free_ports(2)
        self._process: subprocess.Popen[bytes] | None = None
        self._rest = folder / "node"

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    def start(self) -> None:
        """Start, with what it had; returns when it has accepted a client."""
        assert self._process is None, "the node runs already"
        self._make_folders()
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._as_user(), _script("rabbitmq-server")],
                cwd=self._rest,
                env=self._environ(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        until = time.monotonic() + READY_S
        while time.monotonic() < until and self._process.poll() is None:
            if self._answers():
                return
            time.sleep(0.1)
        self.stop()
        raise RuntimeError(f"RabbitMQ does not start:\n{(self.folder / 'log').read_text()[-4000:]}")

    def stop(self) -> None:
        """Kill it. Twice does nothing."""
        self._signal(signal.SIGKILL)

    def end(self) -> None:
        """Have it stop by itself, with all it has on disk: a queue that was just made is lost to a kill."""
        self._signal(signal.SIGTERM)

    def _signal(self, number: int) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        # The node is a grandchild, and in this group, which is its own.
        os.killpg(process.pid, number)
        process.wait(READY_S)

    def forget(self) -> None:
        """While it is stopped: lose all that it has, queues included."""
        assert self._process is None, "stop the node first"
        shutil.rmtree(self._rest)

    def _make_folders(self) -> None:
        for name in ("mnesia", "logs", "home"):
            (self._rest / name).mkdir(parents=True, exist_ok=True)
        (self._rest / "enabled_plugins").write_text("[].\n")
        (self._rest / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = 127.0.0.1:{self.port}\ndisk_free_limit.absolute = 1MB\n"
        )
        if os.geteuid() == 0:
            for path in (self._rest, *self._rest.rglob("*")):
                shutil.chown(path, _USER)

    def _as_user(self) -> list[str]:
        return ["runuser", "-u", _USER, "--"] if os.geteuid() == 0 else []

    def _environ(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            # Erlang keeps its cookie there, so that this node knows no other.
            "HOME": str(self._rest / "home"),
            "RABBITMQ_NODENAME": f"headrace-{self.port}@localhost",
            "RABBITMQ_MNESIA_BASE": str(self._rest / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self._rest / "logs"),
            "RABBITMQ_CONFIG_FILE": str(self._rest / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self._rest / "enabled_plugins"),
            "RABBITMQ_DIST_PORT": str(self._distribution_port),
            "RABBITMQ_NODE_PORT": str(self.port),
            # No scheduler spins while there is nothing to do.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+sbwt none +sbwtdcpu none +sbwtdio none +S 2:2",
        }

    def _answers(self) -> bool:
        import pika

        parameters = pika.URLParameters(self.url)
        parameters.socket_timeout = 2
        try:
            pika.BlockingConnection(parameters).close()
        except (pika.exceptions.AMQPError, OSError):
            return False
        return True


def _script(name: str) -> str:
    """The package's own scripts come first: those in the path drop to a user, and read settings of the system."""
    found = (Path(home) / name for home in _HOMES)
    return next((str(path) for path in found if path.exists()), shutil.which(name) or "")


def _exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True
