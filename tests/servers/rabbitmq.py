"""A real RabbitMQ node on loopback, beside any node that runs already.

The system's package `rabbitmq-server` brings it. As root it runs as the package's user, which
Erlang requires.
"""

import os
import pwd
import shutil
import signal
from pathlib import Path

from servers.ports import free_ports
from servers.process import ServerProcess

READY_S = 90.0
_USER = "rabbitmq"
_HOMES = ("/usr/lib/rabbitmq/bin", "/usr/sbin", "/usr/local/sbin", "/opt/rabbitmq/sbin")


def missing() -> str:
    """Return the reason why there can be no server here, or ""."""
    if not _script("rabbitmq-server"):
        return "no rabbitmq-server: install the system's package of that name"
    if os.geteuid() == 0 and not (_exists(_USER) and shutil.which("runuser")):
        return f"as root it takes a user {_USER!r} and runuser, which the system's package brings"
    return ""


class RabbitServer(ServerProcess):
    """One node. The user that it runs as must be able to enter `folder`."""

    named = "RabbitMQ"
    ready_s = READY_S
    look_s = 0.1

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.port, self._distribution_port = free_ports(2)
        self._rest = folder / "node"

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    def _command(self):
        return [*self._as_user(), _script("rabbitmq-server")]

    def _cwd(self) -> Path:
        return self._rest

    def _process_environ(self):
        return self._environ()

    def start(self) -> None:
        """Start with the earlier data and wait until a client can connect."""
        self._make_folders()
        super().start()

    def end(self) -> None:
        """Stop the node cleanly with all data on disk: a kill loses a queue that was just made."""
        self._end(signal.SIGTERM)

    def forget(self) -> None:
        """Remove all data, queues included. The node must be stopped."""
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
            # Erlang keeps its cookie there: the node cannot join others.
            "HOME": str(self._rest / "home"),
            "RABBITMQ_NODENAME": f"headrace-{self.port}@localhost",
            "RABBITMQ_MNESIA_BASE": str(self._rest / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self._rest / "logs"),
            "RABBITMQ_CONFIG_FILE": str(self._rest / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self._rest / "enabled_plugins"),
            "RABBITMQ_DIST_PORT": str(self._distribution_port),
            "RABBITMQ_NODE_PORT": str(self.port),
            # Idle schedulers must not spin.
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
    """Return the path of a script, or "".

    The package's own scripts come first: those in the path change the user and read the system's
    settings.
    """
    found = (Path(home) / name for home in _HOMES)
    return next((str(path) for path in found if path.exists()), shutil.which(name) or "")


def _exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True
