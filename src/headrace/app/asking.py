"""A model server elsewhere, by its URL: which protocol it is asked by, and with which key."""

import os
from collections.abc import Mapping
from typing import Final
from urllib.parse import SplitResult, urlsplit

from headrace.client.server import ModelServer
from headrace.core.errors import ConfigError

__all__ = ["API_KEY_VARIABLE", "DEFAULT_URL", "open_model_server"]

API_KEY_VARIABLE: Final = "HEADRACE_API_KEY"
DEFAULT_URL: Final = "http://localhost:8080"
_FORMS: Final = "http://host:8080, https://host, grpc://host:8081 or grpcs://host:443"


def open_model_server(
    url: str = DEFAULT_URL,
    *,
    api_key: str | None = None,
    timeout_s: float = 60.0,
    environ: Mapping[str, str] | None = None,
) -> ModelServer:
    """The server at `url`, to be entered; nothing is asked yet.

    Args:
        url: ``http://``, ``https://``, ``grpc://`` or ``grpcs://``; without a scheme it is ``http://``.
        api_key: Sent as a bearer token; otherwise what the environment has in HEADRACE_API_KEY.
        timeout_s: For each question; of a stream, for each wait for the next item.
        environ: Instead of the process's environment.

    Raises:
        ConfigError: The URL or the key cannot be.
        MissingExtraError: What the protocol needs is not installed.
    """
    if timeout_s <= 0:
        raise ConfigError(f"a timeout must be above 0 s, not {timeout_s:g} s")
    parts = _checked(url)
    key = _key(api_key, os.environ if environ is None else environ)
    if parts.scheme in ("grpc", "grpcs"):
        from headrace.client.oip_grpc import GrpcServer  # noqa: PLC0415 - who asks over REST need not have gRPC

        return GrpcServer(parts.netloc, tls=parts.scheme == "grpcs", api_key=key, timeout_s=timeout_s)
    from headrace.client.server_rest import RestServer  # noqa: PLC0415 - and the other way round

    path = parts.path.rstrip("/").removesuffix("/v2")
    return RestServer(f"{parts.scheme}://{parts.netloc}{path}", api_key=key, timeout_s=timeout_s)


def _checked(url: str) -> SplitResult:
    text = url.strip()
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        _ = parts.port
    except ValueError as error:
        raise ConfigError(f"{url!r} is no URL: {error}") from None
    if parts.scheme not in ("http", "https", "grpc", "grpcs") or not parts.hostname:
        raise ConfigError(f"{url!r} is no server's URL: write {_FORMS}")
    if parts.username is not None or parts.password is not None:
        raise ConfigError(f"the URL of {parts.hostname} holds credentials: set {API_KEY_VARIABLE} instead")
    if parts.query or parts.fragment or "/v2/models" in parts.path:
        raise ConfigError(f"{url!r} must be the server's root, without a model or a query: write {_FORMS}")
    if parts.scheme.startswith("grpc") and parts.port is None:
        raise ConfigError(f"{url!r} has no port: write it as {parts.scheme}://{parts.hostname}:8081")
    return parts


def _key(given: str | None, environ: Mapping[str, str]) -> str | None:
    key = (environ.get(API_KEY_VARIABLE, "") if given is None else given).strip()
    if not key:
        return None
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise ConfigError("the API key holds characters that no header can carry")
    return key
