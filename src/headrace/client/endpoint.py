"""Create the predictor of the model at a URL."""

import os
from collections.abc import Mapping

from headrace.client.address import TOKEN_VARIABLE, resolve_address
from headrace.client.predictor import EndpointPredictor
from headrace.client.rest_protocols import OipRestProtocol, TorchServeProtocol
from headrace.client.rows import RefusalGuard
from headrace.core.clock import Clock
from headrace.core.errors import ConfigError


def endpoint_predictor(
    url: str,
    *,
    protocol: str = "auto",
    model: str | None = None,
    in_flight_max: int = 16,
    timeout_s: float = 60.0,
    retry_s: float = 120.0,
    environ: Mapping[str, str] | None = None,
    clock: Clock | None = None,
) -> EndpointPredictor:
    """Return a predictor that calls the model at `url`. It is not started.

    Transient failures (429, 502, 503, 504, a lost connection, a timeout) are retried, with growing
    delays or as Retry-After says. Refused rows (400, 413, 422, 500) become failures of those rows,
    found by bisection. Every other refusal fails the request. While the endpoint does not respond
    at all, one request at a time probes it. The token in the environment variable
    HEADRACE_ENDPOINT_TOKEN is sent as a bearer token.

    Args:
        url: ``.../v2/models/NAME[/versions/V][/infer]``, ``.../predictions/NAME[/V]``, or the root
            of a server with `model`.
        protocol: ``oip``, ``torchserve``, or ``auto`` for a choice by the path of the URL.
        model: The name of the model, if the URL has none.
        in_flight_max: The limit of unfinished requests, and of concurrent HTTP requests.
        timeout_s: Seconds for one HTTP request, from sending it to the last byte of the response.
        retry_s: Seconds for which a request is retried after its first failure. The last attempt
            may take `timeout_s` more.
        environ: The environment; None: that of the process.
        clock: The clock of retries, deadlines and busy time.

    Raises:
        ConfigError: The URL or a setting is invalid.
    """
    if in_flight_max < 1 or timeout_s <= 0 or retry_s < 0:
        raise ConfigError(
            "an endpoint needs at least 1 request in flight, a timeout above 0 s and a retry time of 0 s or "
            f"more, not {in_flight_max}, {timeout_s:g} s and {retry_s:g} s"
        )
    address = resolve_address(url, protocol=protocol, model=model)
    protocol_type = TorchServeProtocol if address.protocol == "torchserve" else OipRestProtocol
    return EndpointPredictor(
        lambda: protocol_type(address, RefusalGuard(address.model_url)),
        url=address.model_url,
        model=address.model,
        in_flight_max=in_flight_max,
        timeout_s=timeout_s,
        retry_s=retry_s,
        headers=_credentials(os.environ if environ is None else environ),
        clock=clock,
    )


def _credentials(environ: Mapping[str, str]) -> dict[str, str]:
    token = environ.get(TOKEN_VARIABLE, "").strip()
    if not token:
        return {}
    if not (token.isascii() and token.isprintable()):
        raise ConfigError(
            f"{TOKEN_VARIABLE} contains characters that an HTTP header cannot carry: correct the token"
        )
    return {"Authorization": f"Bearer {token}"}
