"""The parts that `Client` and `AsyncClient` share beside the client core."""

import os
import secrets
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson

from headrace.core.errors import ConfigError
from headrace.jobs.client.core import ApiExchange, ClientCore
from headrace.jobs.client.transport import ClientSettings


class ClientBase:
    """The address, the key and the settings of a client."""

    def __init__(self, base: Any, api_key: str, settings: ClientSettings) -> None:
        self.base = base
        self.settings = settings
        self.core = ClientCore(str(base), api_key, settings.retry_s)

    def _about_queue(self, method: str, name: str, what: str = "") -> ApiExchange[dict[str, Any]]:
        return self.core.document(method, f"/v1/queues/{quote(name, safe='')}{what}")

    def _bounding(self, name: str, pending_max: int | None) -> ApiExchange[dict[str, Any]]:
        content = orjson.dumps({"pending_max": pending_max})
        return self.core.document("PATCH", f"/v1/queues/{quote(name, safe='')}", content)


class ResultFile:
    """A file that is written under a temporary name and renamed once it is complete.

    Raises ConfigError if the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
        self._nbytes = 0
        with self._errors():
            self._file = self._partial.open("wb")

    def write(self, piece: bytes) -> None:
        """Append a chunk."""
        with self._errors():
            self._nbytes += self._file.write(piece)

    def finish(self) -> int:
        """Rename the file to its name. Return its size in bytes."""
        with self._errors():
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._partial.replace(self._path)
        return self._nbytes

    def close(self) -> None:
        """Delete an unfinished file."""
        self._file.close()
        self._partial.unlink(missing_ok=True)

    @contextmanager
    def _errors(self) -> Generator[None]:
        try:
            yield
        except OSError as error:
            raise ConfigError(f"{self._path} cannot be written: {error.strerror or error}") from error
