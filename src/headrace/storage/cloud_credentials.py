"""Checks for Google and Azure credentials, without network access.

The client library reads the environment itself. Without credentials it requests a metadata address;
that request hangs on machines without such an address.
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
_DMI_FOLDER = Path("/sys/devices/virtual/dmi/id")


def require_credentials(
    uri: str, scheme: str, environ: Mapping[str, str], *, dmi_folder: Path = _DMI_FOLDER
) -> None:
    """Raise AccessDeniedError if ``gs`` or ``az`` has no credentials to sign with.

    The message lists the sources searched.
    """
    prefix, variables = ("GOOGLE", _GOOGLE_VARIABLES) if scheme == "gs" else ("AZURE", _AZURE_VARIABLES)
    if truthy(environ.get(f"{prefix}_SKIP_SIGNATURE")) or any(environ.get(v) for v in variables):
        return
    if _runs_on_provider(scheme, dmi_folder):
        return
    login = Path(environ.get("HOME") or "~").expanduser() / _GOOGLE_LOGIN
    if scheme == "gs" and login.exists():
        return
    searched = ", ".join(variables) + (f" and {login}" if scheme == "gs" else "")
    raise AccessDeniedError(
        uri,
        f"no credentials found; searched {searched}. For a public bucket set {prefix}_SKIP_SIGNATURE=true",
    )


def uses_plain_http(environ: Mapping[str, str]) -> bool:
    """Return True if the environment names an emulator without TLS."""
    endpoints = ("GOOGLE_BASE_URL", "AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")
    return truthy(environ.get("AZURE_STORAGE_USE_EMULATOR")) or any(
        environ.get(e, "").startswith("http://") for e in endpoints
    )


def _runs_on_provider(scheme: str, dmi_folder: Path) -> bool:
    """Return True if this machine belongs to the provider and so has a metadata address."""
    name, vendor = ("product_name", "Google") if scheme == "gs" else ("sys_vendor", "Microsoft")
    try:
        return vendor in (dmi_folder / name).read_text("utf-8", "replace")
    except OSError:
        return False
