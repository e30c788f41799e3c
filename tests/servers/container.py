"""The command of a container as a process of this machine."""

import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlsplit

from integration.jobs_process import CommandProcess

PROBE_S = 60.0
_HEADRACE = (sys.executable, "-m", "headrace")
_PYTHON = "/opt/headrace/bin/python"


class ContainerProcess(CommandProcess):
    """The command of a container that runs in `folder`, without the container.

    `replaced` has texts of the container's arguments and environment, and those of this machine in their
    places: addresses of other containers, paths of mounted folders. `listeners` has the ports on which the
    command listens, by the names that it prints; it listens on free ports here. `program` is the entrypoint
    of the image.
    """

    def __init__(
        self,
        folder: Path,
        arguments: Iterable[str],
        environ: Mapping[str, str],
        replaced: Mapping[str, str],
        *,
        listeners: Mapping[str, str] = MappingProxyType({}),
        program: Sequence[str] = _HEADRACE,
    ) -> None:
        self._replaced = {_PYTHON: sys.executable, **replaced}
        self._listeners = listeners
        texts = self._replaced | dict.fromkeys(listeners.values(), "0")
        environ = {name: replace_texts(value, texts) for name, value in environ.items()}
        super().__init__(
            folder, *(replace_texts(each, texts) for each in arguments), environ=environ, program=program
        )

    def port(self, listener: str) -> str:
        """Return the port of a listener on this machine. The process must be ready."""
        return str(urlsplit(self.urls[listener]).port)

    def probe(self, command: Iterable[str]) -> bool:
        """Run a command beside the process, such as its health check. Return True for exit status 0."""
        texts = self._replaced | {inside: self.port(name) for name, inside in self._listeners.items()}
        words = [replace_texts(each, texts) for each in command]
        return subprocess.run(words, capture_output=True, check=False, timeout=PROBE_S).returncode == 0


def replace_texts(text: str, replaced: Mapping[str, str]) -> str:
    """Return `text` with all of `replaced` at once, so that no replacement is itself replaced.

    A text that begins or ends with a letter or digit is replaced only as a whole word or number. The
    longest of several texts counts.
    """
    if not replaced:
        return text
    longest_first = sorted(replaced, key=len, reverse=True)
    pattern = "|".join(_at_boundaries(each) for each in longest_first)
    return re.sub(pattern, lambda found: replaced[found[0]], text)


def _at_boundaries(text: str) -> str:
    before = r"(?<!\w)" if text[0].isalnum() else ""
    after = r"(?!\w)" if text[-1].isalnum() else ""
    return before + re.escape(text) + after
