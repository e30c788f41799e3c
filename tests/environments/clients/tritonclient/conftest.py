"""tritonclient's four clients, behind one face: those of asyncio are run to their end, call by call."""

import asyncio
import inspect

import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio

MODULES = {
    "http": tritonclient.http,
    "http.aio": tritonclient.http.aio,
    "grpc": tritonclient.grpc,
    "grpc.aio": tritonclient.grpc.aio,
}


def pytest_configure(config):
    # The client of asyncio over HTTP leaves its connections to the garbage collector when it is told of an error.
    config.addinivalue_line("filterwarnings", "ignore:Unclosed connection:ResourceWarning")


class Door:
    """One of the clients; every method of it can be called as if it were not of asyncio."""

    def __init__(self, kind, address):
        self.kind = kind
        self.module = MODULES[kind]
        self.is_http = kind.startswith("http")
        self._runner = asyncio.Runner() if kind.endswith("aio") else None
        self.client = self._call(self.module.InferenceServerClient, address)

    def __getattr__(self, name):
        method = getattr(self.client, name)
        return lambda *args, **kwargs: self._call(method, *args, **kwargs)

    def told(self, name, *args, **kwargs):
        """What a method tells, as plain JSON values whatever the protocol."""
        if not self.is_http:
            kwargs["as_json"] = True
        return getattr(self, name)(*args, **kwargs)

    def _call(self, method, *args, **kwargs):
        if self._runner is None:
            return method(*args, **kwargs)

        async def call():
            found = method(*args, **kwargs)
            return await found if inspect.isawaitable(found) else found

        return self._runner.run(call())

    def input(self, name, values, datatype, **kwargs):
        """One input; `kwargs` are those of set_data_from_numpy."""
        made = self.module.InferInput(name, list(values.shape), datatype)
        made.set_data_from_numpy(values, **kwargs)
        return made

    def output(self, name, **kwargs):
        return self.module.InferRequestedOutput(name, **kwargs)

    def close(self):
        self._call(self.client.close)
        if self._runner is not None:
            self._runner.close()


@pytest.fixture(params=MODULES)
def door(request, doors):
    made = Door(request.param, doors["rest" if request.param.startswith("http") else "grpc"])
    yield made
    made.close()
