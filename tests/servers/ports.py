"""Free ports of loopback."""

import socket


def free_ports(count: int) -> list[int]:
    """Return different ports. Another process may take one before it is used."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def free_port() -> int:
    return free_ports(1)[0]
