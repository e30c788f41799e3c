"""From a URL to a predictor of what is behind it."""

import os
from collections.abc import Mapping

from headrace.client.address import TOKEN_VARIABLE, resolve_address
from headrace.client.oip_rest import OipRest
from headrace.client.predictor import EndpointPredictor
from headrace.client.refusals import RefusalGuard
from headrace.client.torchserve_rest import TorchServeRest
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
    """A predictor that asks the model at `url`; not started.

    What may pass (429, 502, 503, 504, a lost connection, no answer in time) is asked again, with growing delays or
    when Retry-After says; rows that are refused (400, 413, 422, 500) become failures of those rows, found by bisection;
    everything else fails the request. While the endpoint does not answer at all one request at a time finds out
    whether it is back. The token in the environment's HEADRACE_ENDPOINT_TOKEN is sent as a bearer token.

    Args:
        url: ``.../v2/models/NAME[/versions/V][/infer]``, ``.../predictions/NAME[/V]``, or a server's root with `model`.
        protocol: ``oip``, ``torchserve``, or ``auto``: by the URL's path.
        model: The model's name, where the URL has none.
        in_flight_max: The most requests unanswered, and HTTP requests under way, at once.
        timeout_s: For one HTTP request, from sending it to the last byte of its answer.
        retry_s: How long a request is asked again since its first trouble; its last attempt may take `timeout_s` more.
        environ: Instead of the process's environment.
        clock: Tells retries' time, deadlines and busy time.

    Raises:
        ConfigError: The URL or a setting cannot be.
    """
    if in_flight_max < 1 or timeout_s <= 0 or retry_s < 0:
        raise ConfigError(
            f"an endpoint needs at least 1 request in flight, a timeout above 0 s and a retry time of 0 s or more, "
            f"not {in_flight_max}, {timeout_s:g} s and {retry_s:g} s"
        )
    address = resolve_address(url, protocol=protocol, model=model)
    dialect = TorchServeRest if address.protocol == "torchserve" else OipRest
    return EndpointPredictor(
        lambda: dialect(address, RefusalGuard(address.model_url)),
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
        raise ConfigError(f"{TOKEN_VARIABLE} holds characters that no HTTP header can carry")
    return {"Authorization": f"Bearer {token}"}
