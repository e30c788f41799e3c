"""The models of tests/servers/models_for_clients.py, served in the test process for commands."""

import dataclasses
import socket
from contextlib import contextmanager

from app.served import ALL_PORTS, WAIT_S, served
from client.server_support import write_models
from integration.command import headrace

PROTOCOLS = ("rest", "grpc")


@contextmanager
def models_in_process(folder, **options):
    """Serve the models folder over REST and gRPC, with more server `options`."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        closed.settimeout(WAIT_S)
        models = write_models(folder / "models", closed.getsockname()[1])
        with served([str(models)], dataclasses.replace(ALL_PORTS, metrics_port=None, **options)) as server:
            yield server


def run_command(server, protocol, *arguments, **environ):
    """Run ``headrace`` with these arguments against the server."""
    return headrace(*arguments, "--url", server.addresses[protocol], environ=environ)
