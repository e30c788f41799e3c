"""The settings of listeners. Importing them needs no package of a listener."""

from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Annotated, Final

from headrace.core.settings import Setting, check

BODY_S_MAX: Final = 300.0
"""The default maximum seconds for a request body to arrive."""


@dataclass(frozen=True, slots=True)
class RestLimits:
    """The limits of requests, and the compression of responses."""

    body_bytes_max: Annotated[int, Setting("Size limit of a decompressed request body.", least=0)] = 64 << 20
    body_s_max: Annotated[
        float,
        Setting("Seconds within which a request body must arrive.", above=0, most=inf, python_only=True),
    ] = BODY_S_MAX
    gzip_bytes_min: Annotated[
        int | None,
        Setting(
            "Size from which responses are gzipped, for clients that accept gzip.",
            least=0,
            python_only=True,
            default="never",
        ),
    ] = 64 << 10

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class DrainSettings:
    """The steps and times of a graceful stop.

    On the first SIGTERM or SIGINT the server reports that it is not ready. It serves for `notice_s`
    more seconds, so that load balancers can stop sending requests. Then it closes its listeners and
    finishes running requests within `grace_s` seconds. The requests that are left get an error, within
    `headrace.server.serving.ERRORS_S` more seconds. A second signal stops it at once.
    """

    notice_s: Annotated[
        float,
        Setting(
            "Seconds after SIGTERM in which requests are accepted with readiness 'not ready'.",
            name="drain_notice_s",
            least=0,
            most=inf,
        ),
    ] = 0.0
    grace_s: Annotated[
        float,
        Setting(
            "Seconds after that in which running requests may finish.",
            name="drain_grace_s",
            least=0,
            most=inf,
        ),
    ] = 30.0

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The PEM files of a server. With `client_ca`, clients need a certificate signed by it."""

    certificate: Annotated[Path, Setting("PEM file of the server certificate.", name="tls_certificate")]
    key: Annotated[Path, Setting("PEM file of the server key.", name="tls_key")]
    client_ca: Annotated[
        Path | None,
        Setting("PEM file of the CA that must sign client certificates (mTLS).", name="tls_client_ca"),
    ] = None
