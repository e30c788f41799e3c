"""Models with `handle`, importable by other processes."""

from headrace.core import HandleResponse, Model, RowError
from headrace.core.model import current_call


def _twice(request):
    match request.body:
        case b"status":
            return HandleResponse(b"teapot", 418, "text/plain", {"X-Kind": request.headers.get("kind", "")})
        case b"text":
            return "grüße"
        case b"fail":
            raise ValueError("broken")
        case b"stop":
            raise SystemExit(3)
        case b"number":
            return 7
        case b"parts":
            return b",".join(name.encode() + b"=" + data for name, data in request.parts.items())
        case b"chunks":
            return HandleResponse((b"c%d" % n for n in range(3)), content_type="text/x")
        case b"endless":
            return HandleResponse(endless())
        case b"broken chunks":
            return HandleResponse(broken())
        case b"deadline":
            return str(current_call().deadline_s is not None)
        case body:
            return body * 2


def endless():
    """Yield chunks for ever."""
    while True:
        yield b"x" * 1000


def broken():
    """Yield one chunk, then raise."""
    yield b"one"
    raise ValueError("no more")


class Twice(Model):
    """Doubles the body of each request; some bodies are commands. It refuses the body ``bad``."""

    batch_sizes: list = []  # noqa: RUF012 - shared with the test

    def handle(self, requests):
        """Respond to each request."""
        self.batch_sizes.append(len(requests))
        if bad := {at: "it is bad" for at, request in enumerate(requests) if request.body == b"bad"}:
            raise RowError(bad)
        return [_twice(request) for request in requests]


class TwiceAsync(Model):
    """As `Twice`, with chunks of an async generator."""

    async def handle(self, requests):
        """Respond to each request."""

        async def chunks():
            for n in range(3):
                yield b"c%d" % n

        return [
            HandleResponse(chunks(), content_type="text/x") if r.body == b"chunks" else _twice(r)
            for r in requests
        ]


class Both(Model):
    """A model with `predict` and `handle`."""

    def predict(self, x):
        """Return the inputs."""
        return x

    def handle(self, requests):
        """Return the number of requests in the call."""
        return [str(len(requests))] * len(requests)
