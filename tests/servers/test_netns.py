"""The network link that can be cut."""

import socket
import subprocess
import sys

from servers.netns import Namespace

WAIT_S = 10.0
ECHO = """
import socket, sys
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=30)
connection.sendall(b"hello")
while data := connection.recv(100):
    connection.sendall(data)
"""


def test_cut_link_carries_nothing_and_healed_link_delivers_it():
    with Namespace() as inside, socket.create_server((inside.outside, 0)) as server:
        server.settimeout(WAIT_S)
        port = str(server.getsockname()[1])
        client = subprocess.Popen(inside.command(sys.executable, "-c", ECHO, inside.outside, port))
        try:
            connection, (address, _) = server.accept()
            with connection:
                connection.settimeout(WAIT_S)
                assert address == inside.inside
                assert connection.recv(100) == b"hello"
                inside.cut()
                connection.sendall(b"delayed")
                connection.settimeout(0.3)
                try:
                    received = connection.recv(100)
                except TimeoutError:
                    received = None
                assert received is None
                inside.heal()
                connection.settimeout(WAIT_S)
                assert connection.recv(100) == b"delayed"
        finally:
            client.kill()
            client.wait()


def test_namespace_is_removed():
    with Namespace() as inside:
        names = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout
        assert inside.name in names
    names = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout
    assert inside.name not in names
