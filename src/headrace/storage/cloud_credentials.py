"""Whether there is anything to sign with at Google and Azure, found without a network.

Their client library reads the environment itself; what it does when it finds nothing is to ask a metadata address,
which hangs wherever there is none.
"""

from collections.abc import Mapping
from pathlib import Path

from headrace.core.errors import AccessDeniedError
from headrace.storage.aws_profile import truthy

_GOOGLE_VARIABLES = (
    "GOOGLE_SERVICE_ACCOUNT",
    "GOOGLE_SERVICE_ACCOUNT_PATH",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GCE_METADATA_HOST",
    "KUBERNETES_SERVICE_HOST",
)
_AZURE_VARIABLES = (
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_ACCESS_KEY",
    "AZURE_STORAGE_MASTER_KEY",
    "AZURE_STORAGE_SAS_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_STORAGE_TOKEN",
    "AZURE_STORAGE_CLIENT_ID",
    "AZURE_CLIENT_ID",
    "AZURE_CREDENTIAL_TYPE",
    "AZURE_FEDERATED_TOKEN_FILE",
    "AZURE_USE_AZURE_CLI",
    "AZURE_STORAGE_USE_EMULATOR",
    "IDENTITY_ENDPOINT",
    "MSI_ENDPOINT",
)
_GOOGLE_LOGIN = Path(".config/gcloud/application_default_credentials.json")
_MACHINE_FILES = Path("/sys/devices/virtual/dmi/id")


def require_credentials(
    uri: str, scheme: str, environ: Mapping[str, str], *, machine_files: Path = _MACHINE_FILES
) -> None:
    """Raise AccessDeniedError, saying what was looked for, when ``gs`` or ``az`` has nothing to sign with."""
    prefix, variables = ("GOOGLE", _GOOGLE_VARIABLES) if scheme == "gs" else ("AZURE", _AZURE_VARIABLES)
    if truthy(environ.get(f"{prefix}_SKIP_SIGNATURE")) or any(environ.get(v) for v in variables):
        return
    if _machine_lends(scheme, machine_files):
        return
    login = Path(environ.get("HOME") or "~").expanduser() / _GOOGLE_LOGIN
    if scheme == "gs" and login.exists():
        return
    looked_for = ", ".join(variables) + (f" and {login}" if scheme == "gs" else "")
    raise AccessDeniedError(
        uri,
        f"no credentials found; looked for {looked_for}. For a public bucket set {prefix}_SKIP_SIGNATURE=true",
    )


def meant_plain_http(environ: Mapping[str, str]) -> bool:
    """Whether an emulator without TLS is meant."""
    endpoints = ("GOOGLE_BASE_URL", "AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")
    return truthy(environ.get("AZURE_STORAGE_USE_EMULATOR")) or any(
        environ.get(e, "").startswith("http://") for e in endpoints
    )


def _machine_lends(scheme: str, machine_files: Path) -> bool:
    """Whether this machine is the service's own, so that it has a metadata address to ask."""
    name, vendor = ("product_name", "Google") if scheme == "gs" else ("sys_vendor", "Microsoft")
    try:
        return vendor in (machine_files / name).read_text("utf-8", "replace")
    except OSError:
        return False
