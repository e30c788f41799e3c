"""A network of its own for processes of a test, with one wire to this machine that can be pulled out. Needs root."""

import itertools
import os
import shutil
import subprocess
from typing import Self

import pytest

_numbers = itertools.count(1)


class Namespace:
    """A network namespace with one wire: `inside` is its end in there, `outside` the one here, both IPv4 addresses.

    Unlike a proxy's hole, a wire that is pulled out answers nothing at all, not even that a connection is made.
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
        """The command, as it runs in there."""
        return ["ip", "netns", "exec", self.name, *command]

    def cut(self) -> None:
        """Pull the wire out: packets go nowhere, and nobody is told."""
        _ip("link", "set", self._wire, "down")

    def heal(self) -> None:
        """Put it back: connections go on as soon as their ends try again."""
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
    """Skip the test, and say why, where namespaces cannot be made."""
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
