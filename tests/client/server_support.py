"""A server with the models of tests/servers/models_for_clients.py, and calls for both protocols."""

import asyncio
import socket
from contextlib import aclosing, contextmanager
from pathlib import Path

import numpy as np

from headrace.app.models import open_model_server
from headrace.client.model_server import ModelAddress
from headrace.core.tensor import InferRequest, Tensor
from headrace.jobs.access import Scope, hash_key
from headrace.jobs.access.keys_file import key_lines
from servers.served import WAIT_S, Served, serving

MODELS = Path(__file__).parents[1] / "servers" / "models_for_clients.py"
INFER_KEY, ADMIN_KEY = "infer-key-0123456789", "admin-key-0123456789"
KEYS = "".join(
    key_lines(name, hash_key(key), scopes=[scope])
    for name, key, scope in (("web", INFER_KEY, Scope.INFER), ("ops", ADMIN_KEY, Scope.MODELS))
)
"""The file of both keys."""


def write_models(folder: Path, closed_port: int) -> Path:
    """Write a models folder. Model "words" connects to `closed_port` at the end of each stream."""
    for name in ("Sums", "Words", "Free", "Pairs", "Wide"):
        path = folder / name.lower()
        path.mkdir(parents=True)
        options = f"[options]\nclosed_port = {closed_port}\n" if name == "Words" else ""
        (path / "models.py").write_text(MODELS.read_text())
        (path / "model.toml").write_text(f'model = "models.py:{name}"\n{options}')
    return folder


@contextmanager
def served_models(folder: Path, *arguments: object):
    """Serve the models. Yield the server and a socket that accepts once for each ended stream."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        closed.settimeout(WAIT_S)
        models = write_models(folder / "models", closed.getsockname()[1])
        with serving(models, *arguments) as served:
            yield served, closed


def url_of(served: Served, protocol: str) -> str:
    return served.rest if protocol == "rest" else served.grpc


def call_server(url: str, call, **settings):
    """Return the result of the coroutine function `call`, which receives the open client."""

    async def main():
        async with open_model_server(url, **{"environ": {}, "timeout_s": 30.0, **settings}) as server:
            return await call(server)

    return asyncio.run(main())


def request_of(**tensors) -> InferRequest:
    return InferRequest(tuple(Tensor(n, np.asarray(v)) for n, v in tensors.items()), id="q")


def text_request(text: str, **parameters) -> InferRequest:
    return InferRequest((Tensor("text", np.array([text], object)),), parameters=parameters)


class WordLog(list):
    """The words received, and an event for the word `last`."""

    def __init__(self, last: str):
        self.last = last
        self.arrived = asyncio.Event()

    def append(self, word: str) -> None:
        super().append(word)
        if word == self.last:
            self.arrived.set()


async def words_of(server, text: str, words: list[str], **parameters) -> list[str]:
    address = ModelAddress("words")
    async with aclosing(server.stream(address, text_request(text, **parameters))) as responses:
        async for response in responses:
            word = response["word"][0]
            words.append(word.decode() if isinstance(word, bytes) else word)
    return words
