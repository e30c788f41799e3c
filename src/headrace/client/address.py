"""Derive the address of a model from a URL that the user gives. Pure.

The input is a URL, and optionally a protocol and the name of a model. The result is an
`EndpointAddress`, or a ConfigError that shows a correct URL.
"""

import re
from dataclasses import dataclass
from typing import Literal
from urllib.parse import SplitResult, quote, unquote, urlsplit

from headrace.core.errors import ConfigError

ProtocolName = Literal["oip", "torchserve"]

TOKEN_VARIABLE = "HEADRACE_ENDPOINT_TOKEN"  # noqa: S105 - a name, not a token

_SAFE = "/%:@!$&'()*+,;=~-._"
"""The characters of a path that stay; all others are percent-encoded."""
_OIP = re.compile(r"(?P<root>.*)/v2/models/(?P<model>[^/]+)(/versions/(?P<version>[^/]+))?(/infer)?")
_OIP_ROOT = re.compile(r"(?P<root>.*?)(/v2(/models)?)?")
_TORCHSERVE = re.compile(r"(?P<root>.*)/predictions/(?P<model>[^/]+)(/(?P<version>[^/]+))?")
_TORCHSERVE_ROOT = re.compile(r"(?P<root>.*?)(/predictions)?")
_FORMS = {
    "oip": (_OIP, _OIP_ROOT, "http://host:8080/v2/models/NAME[/versions/VERSION]"),
    "torchserve": (_TORCHSERVE, _TORCHSERVE_ROOT, "http://host:8080/predictions/NAME[/VERSION]"),
}


@dataclass(frozen=True, slots=True)
class EndpointAddress:
    """The address of a model behind HTTP.

    `root` has no trailing slash. `model` and `version` are not percent-encoded.
    """

    protocol: ProtocolName
    root: str
    model: str
    version: str | None = None

    @property
    def model_url(self) -> str:
        """The URL that identifies the model. Where the protocol has metadata, GET returns them."""
        name = quote(self.model, safe="")
        version = "" if self.version is None else quote(self.version, safe="")
        if self.protocol == "torchserve":
            return f"{self.root}/predictions/{name}" + (version and f"/{version}")
        return f"{self.root}/v2/models/{name}" + (version and f"/versions/{version}")

    @property
    def predict_url(self) -> str:
        """The URL that requests are posted to."""
        return self.model_url if self.protocol == "torchserve" else f"{self.model_url}/infer"


def resolve_address(url: str, *, protocol: str = "auto", model: str | None = None) -> EndpointAddress:
    """Return the address for `url`. `model` is required if the URL names none.

    With ``auto`` a path with ``/predictions`` means TorchServe; any other path means the Open
    Inference Protocol.

    Raises ConfigError if the URL is invalid, names no model or two, or contains credentials or a
    query. The URL appears in the ledger, logs and errors, where secrets must not be.
    """
    parts = _split_url(url)
    chosen = _choose_protocol(protocol, parts.path)
    of_model, of_root, example = _FORMS[chosen]
    path = quote(parts.path.rstrip("/"), safe=_SAFE)
    host = f"{parts.scheme}://{parts.netloc}"
    found = of_model.fullmatch(path)
    if found is not None:
        name, version = unquote(found["model"]), found["version"]
        if model not in (None, name):
            raise ConfigError(
                f"{url} names the model {name!r}, but --endpoint-model names {model!r}: omit one of them"
            )
        return EndpointAddress(chosen, host + found["root"], name, version and unquote(version))
    root = of_root.fullmatch(path)
    if root is None or any(part in root["root"] + "/" for part in ("/v2/", "/predictions/")):
        raise ConfigError(f"{url} is not the URL of a model: write {example}")
    if not model:
        raise ConfigError(f"{url} names no model: write {example}, or name the model with --endpoint-model")
    return EndpointAddress(chosen, host + root["root"], model)


def _split_url(url: str) -> SplitResult:
    try:
        parts = urlsplit(url.strip())
        _ = parts.port
    except ValueError as error:
        raise ConfigError(f"{url!r} is not a URL: {error}") from None
    if parts.username is not None or parts.password is not None:
        raise ConfigError(
            f"the endpoint's URL (host {parts.hostname}) contains credentials, which would appear in the "
            "ledger and logs: set HEADRACE_ENDPOINT_TOKEN instead"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(
            f"{url!r} is not the URL of an endpoint: write http://host:port/v2/models/NAME, or https://"
        )
    if parts.query or parts.fragment:
        raise ConfigError(
            f"the endpoint's URL (host {parts.hostname}) has a query or a fragment, which is not supported: "
            "remove it, and set HEADRACE_ENDPOINT_TOKEN for credentials"
        )
    return parts


def _choose_protocol(protocol: str, path: str) -> ProtocolName:
    if protocol == "auto":
        return "torchserve" if "/predictions" in path and "/v2/" not in path else "oip"
    if protocol == "oip" or protocol == "torchserve":  # noqa: PLR1714 - narrows the type
        return protocol
    raise ConfigError(f"unknown endpoint protocol {protocol!r}: choose auto, oip or torchserve")
