"""Where an endpoint's model is, from the URL that a user gives; pure.

Arrives: a URL, perhaps a protocol and a model's name. Leaves: an `Address`, or a ConfigError that shows how to write it.
"""

import re
from dataclasses import dataclass
from typing import Literal
from urllib.parse import SplitResult, quote, unquote, urlsplit

from headrace.core.errors import ConfigError

Protocol = Literal["oip", "torchserve"]

TOKEN_VARIABLE = "HEADRACE_ENDPOINT_TOKEN"  # noqa: S105 - where the token of any endpoint is, not what it is

_SAFE = "/%:@!$&'()*+,;=~-._"
"""What a path may hold as it is; everything else is quoted."""
_OIP = re.compile(r"(?P<root>.*)/v2/models/(?P<model>[^/]+)(/versions/(?P<version>[^/]+))?(/infer)?")
_OIP_ROOT = re.compile(r"(?P<root>.*?)(/v2(/models)?)?")
_TORCHSERVE = re.compile(r"(?P<root>.*)/predictions/(?P<model>[^/]+)(/(?P<version>[^/]+))?")
_TORCHSERVE_ROOT = re.compile(r"(?P<root>.*?)(/predictions)?")
_FORMS = {
    "oip": (_OIP, _OIP_ROOT, "http://host:8080/v2/models/NAME[/versions/VERSION]"),
    "torchserve": (_TORCHSERVE, _TORCHSERVE_ROOT, "http://host:8080/predictions/NAME[/VERSION]"),
}


@dataclass(frozen=True, slots=True)
class Address:
    """A model behind HTTP. `root` has no slash at its end; `model` and `version` are not quoted."""

    protocol: Protocol
    root: str
    model: str
    version: str | None = None

    @property
    def model_url(self) -> str:
        """What identifies the model, and answers with its metadata where there is such a thing."""
        name = quote(self.model, safe="")
        version = "" if self.version is None else quote(self.version, safe="")
        if self.protocol == "torchserve":
            return f"{self.root}/predictions/{name}" + (version and f"/{version}")
        return f"{self.root}/v2/models/{name}" + (version and f"/versions/{version}")

    @property
    def predict_url(self) -> str:
        """Where requests are posted."""
        return self.model_url if self.protocol == "torchserve" else f"{self.model_url}/infer"


def resolve_address(url: str, *, protocol: str = "auto", model: str | None = None) -> Address:
    """The address that `url` means; `model` is needed where the URL names none.

    With ``auto`` a path with ``/predictions`` is TorchServe's, everything else is the Open Inference Protocol's.

    Raises ConfigError for what is no such URL, names no model or two, or holds credentials or a query: the URL goes
    into the ledger, logs and errors, where secrets do not belong.
    """
    parts = _checked(url)
    chosen = _protocol(protocol, parts.path)
    of_model, of_root, example = _FORMS[chosen]
    path = quote(parts.path.rstrip("/"), safe=_SAFE)
    host = f"{parts.scheme}://{parts.netloc}"
    found = of_model.fullmatch(path)
    if found is not None:
        name, version = unquote(found["model"]), found["version"]
        if model not in (None, name):
            raise ConfigError(
                f"{url} names the model {name!r}, but --endpoint-model says {model!r}: leave out one"
            )
        return Address(chosen, host + found["root"], name, version and unquote(version))
    root = of_root.fullmatch(path)
    if root is None or any(part in root["root"] + "/" for part in ("/v2/", "/predictions/")):
        raise ConfigError(f"{url} is no model's URL: write it as {example}")
    if not model:
        raise ConfigError(f"{url} names no model: write {example}, or give its name with --endpoint-model")
    return Address(chosen, host + root["root"], model)


def _checked(url: str) -> SplitResult:
    try:
        parts = urlsplit(url.strip())
        _ = parts.port
    except ValueError as error:
        raise ConfigError(f"{url!r} is no URL: {error}") from None
    if parts.username is not None or parts.password is not None:
        raise ConfigError(
            f"the endpoint's URL (host {parts.hostname}) holds credentials, which would end up in ledger and logs: "
            "set HEADRACE_ENDPOINT_TOKEN instead"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"{url!r} is no endpoint: write http://host:port/v2/models/NAME, or https://")
    if parts.query or parts.fragment:
        raise ConfigError(
            f"the endpoint's URL (host {parts.hostname}) has a query or a fragment, which cannot be kept: "
            "write it without, and set HEADRACE_ENDPOINT_TOKEN for credentials"
        )
    return parts


def _protocol(protocol: str, path: str) -> Protocol:
    if protocol == "auto":
        return "torchserve" if "/predictions" in path and "/v2/" not in path else "oip"
    if protocol == "oip" or protocol == "torchserve":  # noqa: PLR1714 - so that it narrows the type
        return protocol
    raise ConfigError(f"an endpoint cannot be asked by {protocol!r}: choose auto, oip or torchserve")
