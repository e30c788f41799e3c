"""A network namespace for a test's processes, whose one link can be cut. Needs root."""

import itertools
import os
import shutil
import subprocess
from typing import Self

import pytest

_numbers = itertools.count(1)


class Namespace:
    """A network namespace with one link: `inside` and `outside` are the IPv4 addresses of its ends.

    Unlike a proxy that forwards nothing, a link that is cut does not even accept connections.
    """

    def __init__(self) -> None:
        number = next(_numbers)
        # Names of interfaces take 15 characters; process ids at most 7 digits.
        self.name = f"hr{os.getpid()}-{number}"
        self._wire = f"{self.name}o"
        net = (os.getpid() * 8 + number) % (1 << 14)
        first = f"10.203.{net >> 6}.{(net & 63) << 2}".rpartition(".")
        self.outside = f"{first[0]}.{int(first[2]) + 1}"
        self.inside = f"{first[0]}.{int(first[2]) + 2}"

    def __enter__(self) -> Self:
        skip_unless_permitted()
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["ip", "link", "del", self._wire], check=False, capture_output=True)
        subprocess.run(["ip", "netns", "del", self.name], check=False, capture_output=True)

    def command(self, *command: str) -> list[str]:
        """Return the command that runs `command` in the namespace."""
        return ["ip", "netns", "exec", self.name, *command]

    def cut(self) -> None:
        """Set the link down: packets are dropped without an error."""
        _ip("link", "set", self._wire, "down")

    def heal(self) -> None:
        """Set the link up: connections continue as soon as their ends retransmit."""
        _ip("link", "set", self._wire, "up")

    def _make(self) -> None:
        _ip("netns", "add", self.name)
        _ip("link", "add", self._wire, "type", "veth", "peer", "name", "wire", "netns", self.name)
        _ip("addr", "add", f"{self.outside}/30", "dev", self._wire)
        _ip("link", "set", self._wire, "up")
        for inside in (
            ("addr", "add", f"{self.inside}/30", "dev", "wire"),
            ("link", "set", "wire", "up"),
            ("link", "set", "lo", "up"),
        ):
            _ip("-n", self.name, *inside)


def skip_unless_permitted() -> None:
    """Skip the test with a reason if namespaces cannot be made."""
    if shutil.which("ip") is None:
        pytest.skip("needs the command ip (Debian: iproute2)")
    tried = f"hr{os.getpid()}-try"
    made = subprocess.run(["ip", "netns", "add", tried], check=False, capture_output=True, text=True)
    if made.returncode != 0:
        pytest.skip(f"network namespaces are not permitted here: {made.stderr.strip()}")
    _ip("netns", "del", tried)


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"
