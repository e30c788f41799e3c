"""The wire that can be pulled out: what is inside cannot reach what is here, and can again."""

import socket
import subprocess
import sys

from servers.netns import Namespace

WAIT_S = 10.0
ECHO = """
import socket, sys
line = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=30)
line.sendall(b"hello")
while data := line.recv(100):
    line.sendall(data)
"""


def test_a_wire_that_is_pulled_out_carries_nothing_and_what_was_sent_comes_later():
    with Namespace() as inside, socket.create_server((inside.outside, 0)) as server:
        server.settimeout(WAIT_S)
        port = str(server.getsockname()[1])
        client = subprocess.Popen(inside.command(sys.executable, "-c", ECHO, inside.outside, port))
        try:
            line, (address, _) = server.accept()
            with line:
                line.settimeout(WAIT_S)
                assert address == inside.inside
                assert line.recv(100) == b"hello"
                inside.cut()
                line.sendall(b"lost?")
                line.settimeout(0.3)
                try:
                    got = line.recv(100)
                except TimeoutError:
                    got = None
                assert got is None
                inside.heal()
                line.settimeout(WAIT_S)
                assert line.recv(100) == b"lost?"
        finally:
            client.kill()
            client.wait()


def test_nothing_is_left_of_it():
    with Namespace() as inside:
        names = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout
        assert inside.name in names
    names = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout
    assert inside.name not in names
