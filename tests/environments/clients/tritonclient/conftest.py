"""tritonclient's four clients with one synchronous interface."""

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
    # The asyncio client over HTTP does not close its connections after an error.
    config.addinivalue_line("filterwarnings", "ignore:Unclosed connection:ResourceWarning")


class AnyClient:
    """One of the four clients. Methods of asyncio clients run to their end."""

    def __init__(self, kind, address):
        self.kind = kind
        self.module = MODULES[kind]
        self.is_http = kind.startswith("http")
        self._runner = asyncio.Runner() if kind.endswith("aio") else None
        self.client = self._call(self.module.InferenceServerClient, address)

    def __getattr__(self, name):
        method = getattr(self.client, name)
        return lambda *args, **kwargs: self._call(method, *args, **kwargs)

    def as_json(self, name, *args, **kwargs):
        """Return the result of a method as plain JSON values for both protocols."""
        if not self.is_http:
            kwargs["as_json"] = True
        return getattr(self, name)(*args, **kwargs)

    def _call(self, method, *args, **kwargs):
        if self._runner is None:
            return method(*args, **kwargs)

        async def call():
            result = method(*args, **kwargs)
            return await result if inspect.isawaitable(result) else result

        return self._runner.run(call())

    def input(self, name, values, datatype, **kwargs):
        """Return an input; `kwargs` are those of set_data_from_numpy."""
        tensor = self.module.InferInput(name, list(values.shape), datatype)
        tensor.set_data_from_numpy(values, **kwargs)
        return tensor

    def output(self, name, **kwargs):
        return self.module.InferRequestedOutput(name, **kwargs)

    def close(self):
        self._call(self.client.close)
        if self._runner is not None:
            self._runner.close()


@pytest.fixture(params=MODULES)
def any_client(request, addresses):
    client = AnyClient(request.param, addresses["rest" if request.param.startswith("http") else "grpc"])
    yield client
    client.close()
