"""Find the credentials of cloud providers, without network access. The adapter module of boto3.

S3: credentials, region and endpoint from the AWS environment and ``~/.aws``, in the order of the AWS
tools: keys in the environment; keys in the profile; credentials that only the AWS SDK can obtain
(single sign-on, roles, a credential process); credentials of the machine (containers, instance
metadata).

Google and Azure: the client library reads the environment itself. Without credentials it requests a
metadata address; that request hangs on machines without such an address. So the sources are checked
here first.
"""

import configparser
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from headrace.core.errors import AccessDeniedError, ConfigError, MissingExtraError

EC2_VENDOR_FILE = Path("/sys/devices/virtual/dmi/id/sys_vendor")
_SDK_SETTINGS = (
    "role_arn",
    "sso_session",
    "sso_start_url",
    "credential_process",
    "credential_source",
    "web_identity_token_file",
    "login_session",
)
_MACHINE_VARIABLES = (
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_METADATA_ENDPOINT",
)
_Section = Mapping[str, str]
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


class CredentialSource(StrEnum):
    """The origin of the credentials."""

    KEYS = "keys"
    """The settings hold `access_key_id` and `secret_access_key`."""
    ANONYMOUS = "anonymous"
    """Requests are not signed."""
    SDK = "sdk"
    """Only the AWS SDK can obtain them: single sign-on, a role, a process."""
    MACHINE = "machine"
    """Those of a container, pod or instance; the client library requests them."""
    NONE = "none"
    """There are none; `searched_sources` names the sources searched."""


@dataclass(frozen=True, slots=True)
class AwsSettings:
    """The settings of a client for one bucket. `repr` omits the credentials."""

    source: CredentialSource
    access_key_id: str = ""
    secret_access_key: str = ""
    session_token: str = ""
    region: str = "us-east-1"
    endpoint: str = ""
    profile: str = "default"
    ca_bundle: str = ""
    searched_sources: str = ""

    def __repr__(self) -> str:
        return f"AwsSettings(source={self.source}, profile={self.profile!r}, endpoint={self.endpoint!r})"


def aws_settings(environ: Mapping[str, str], *, ec2_vendor_file: Path = EC2_VENDOR_FILE) -> AwsSettings:
    """Read the environment and the files that it names. Never wait for a network.

    Raises ConfigError if no file has the profile in AWS_PROFILE, or if a file cannot be parsed.
    """
    profile_name = environ.get("AWS_PROFILE") or environ.get("AWS_DEFAULT_PROFILE") or "default"
    files = _Files.read(environ)
    profile = files.profile(profile_name)
    if profile is None and profile_name != "default":
        raise ConfigError(
            f"AWS_PROFILE is {profile_name!r}, but {files.names} have no such profile: correct AWS_PROFILE"
        )
    profile = profile or {}
    region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or profile.get("region")
    source, keys = _credentials(environ, profile, files, ec2_vendor_file)
    return AwsSettings(
        source=source,
        access_key_id=keys.get("aws_access_key_id", ""),
        secret_access_key=keys.get("aws_secret_access_key", ""),
        session_token=keys.get("aws_session_token", ""),
        region=region or "us-east-1",
        endpoint=_endpoint(environ, profile, files),
        profile=profile_name,
        ca_bundle=environ.get("AWS_CA_BUNDLE") or profile.get("ca_bundle", ""),
        searched_sources="AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment, "
        f"profile {profile_name!r} in {files.names}",
    )


def sdk_session(needed_for: str, **settings: str | None) -> Any:
    """Return a boto3 session with these settings.

    Raises MissingExtraError without boto3. Exceptions of the SDK propagate.
    """
    try:
        # boto3 takes longer to import than everything else here.
        import boto3 as _boto3  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError("aws", needed_for) from error
    boto3: Any = _boto3  # boto3 ships no types
    return boto3.session.Session(**settings)


def truthy(text: str | None) -> bool:
    """Return True if the value of an environment variable is 1, true, yes or on, in any case."""
    return (text or "").strip().lower() in {"1", "true", "yes", "on"}


def _credentials(
    environ: Mapping[str, str], profile: _Section, files: "_Files", ec2_vendor_file: Path
) -> tuple[CredentialSource, _Section]:
    if truthy(environ.get("AWS_SKIP_SIGNATURE")):
        return CredentialSource.ANONYMOUS, {}
    named = {
        "aws_access_key_id": environ.get("AWS_ACCESS_KEY_ID", ""),
        "aws_secret_access_key": environ.get("AWS_SECRET_ACCESS_KEY", ""),
        "aws_session_token": environ.get("AWS_SESSION_TOKEN") or environ.get("AWS_SECURITY_TOKEN", ""),
    }
    if bool(named["aws_access_key_id"]) != bool(named["aws_secret_access_key"]):
        raise ConfigError(
            "only one of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY is set: set both or neither"
        )
    if named["aws_access_key_id"]:
        return CredentialSource.KEYS, named
    # A role is assumed with the keys beside it, so the SDK settings take precedence over the keys.
    if any(profile.get(setting) for setting in _SDK_SETTINGS):
        return CredentialSource.SDK, {}
    key_profile = (
        profile if "aws_access_key_id" in profile else files.profile(profile.get("source_profile", "")) or {}
    )
    if key_profile.get("aws_access_key_id") and key_profile.get("aws_secret_access_key"):
        return CredentialSource.KEYS, key_profile
    if any(environ.get(variable) for variable in _MACHINE_VARIABLES) or _on_ec2(environ, ec2_vendor_file):
        return CredentialSource.MACHINE, {}
    return CredentialSource.NONE, {}


def _on_ec2(environ: Mapping[str, str], vendor_file: Path) -> bool:
    """Return True if the metadata address of the instance can answer.

    Elsewhere a request to it would hang.
    """
    disabled = environ.get("AWS_EC2_METADATA_DISABLED")
    if disabled is not None:
        return not truthy(disabled)
    try:
        return "amazon" in vendor_file.read_text("utf-8", "replace").lower()
    except OSError:
        return False


def _endpoint(environ: Mapping[str, str], profile: _Section, files: "_Files") -> str:
    variables = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    for variable in variables:
        if url := environ.get(variable):
            return _require_http_url(url, variable)
    if truthy(environ.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS")):
        return ""
    services = files.services(profile.get("services", ""))
    url = _parse_nested_settings(services.get("s3", "")).get("endpoint_url") or profile.get(
        "endpoint_url", ""
    )
    return _require_http_url(url, "endpoint_url") if url else ""


def _require_http_url(url: str, setting: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"{setting} is {url!r}, not an http(s) URL: write http://HOST:PORT or https://HOST")
    return url.rstrip("/")


def _parse_nested_settings(text: str) -> dict[str, str]:
    """Return the indented settings below the name of a service."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {name.strip(): value.strip() for name, _, value in pairs}


@dataclass(frozen=True, slots=True)
class _Files:
    """The config file and the credentials file, parsed.

    Keys in the credentials file take precedence.
    """

    names: str
    config: configparser.RawConfigParser
    credentials: configparser.RawConfigParser

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> "_Files":
        home = Path(environ.get("HOME") or "~").expanduser()
        paths = [
            _path(environ.get("AWS_CONFIG_FILE"), home, "config"),
            _path(environ.get("AWS_SHARED_CREDENTIALS_FILE"), home, "credentials"),
        ]
        return cls(" and ".join(str(p) for p in paths), *(_parse_file(p) for p in paths))

    def profile(self, name: str) -> _Section | None:
        """Return the settings of a profile from both files, or None if neither file has it."""
        titles = [f"profile {name}", f'profile "{name}"', f"profile '{name}'"]
        if name == "default":
            titles.insert(0, name)
        sections = [self.config[t] for t in titles if self.config.has_section(t)]
        if self.credentials.has_section(name):
            sections.append(self.credentials[name])
        return {k: v for s in sections for k, v in s.items()} if sections else None

    def services(self, name: str) -> _Section:
        title = f"services {name}"
        return self.config[title] if self.config.has_section(title) else {}


def _path(named: str | None, home: Path, default: str) -> Path:
    if not named:
        return home / ".aws" / default
    return home / named[2:] if named.startswith("~/") else Path(named)


def _parse_file(path: Path) -> configparser.RawConfigParser:
    # [default] is a profile like any other, so the parser gets no default section.
    parser = configparser.RawConfigParser(default_section="\0", strict=False)
    try:
        parser.read_string(path.read_text("utf-8-sig"), str(path))
    except OSError:
        pass  # A missing or unreadable file counts as an empty file.
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not an AWS configuration file: it is not UTF-8 text") from None
    except configparser.Error as error:
        # The parser's own message shows the line, which may hold a secret.
        raise ConfigError(
            f"{path} is not an AWS configuration file: {_describe_parse_error(error)}"
        ) from None
    return parser


def _describe_parse_error(error: configparser.Error) -> str:
    if isinstance(error, configparser.MissingSectionHeaderError):
        return f"line {error.lineno} is in no section, such as [default]"
    if isinstance(error, configparser.ParsingError):
        return f"line {error.errors[0][0]} is not a setting of the form name = value"
    return type(error).__name__


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


def library_options(uri: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a store for libraries of tables, by their names in the environment.

    They are those that headrace's own stores use. Google and Azure have none: their libraries read the
    environment of the process. Credentials of the AWS SDK are as they are now; they expire.

    Raises AccessDeniedError if there are no credentials.
    """
    scheme = uri.partition("://")[0]
    if scheme in ("gs", "az"):
        require_credentials(uri, scheme, environ)
        return {"ALLOW_HTTP": "true"} if uses_plain_http(environ) else {}
    if scheme != "s3":
        return {}
    aws = aws_settings(environ)
    keys = (aws.access_key_id, aws.secret_access_key, aws.session_token)
    if aws.source is CredentialSource.SDK:
        keys = _sdk_keys(uri, aws.profile)
    elif aws.source is CredentialSource.NONE:
        raise AccessDeniedError(uri, f"no credentials found; searched {aws.searched_sources}")
    options = {
        "AWS_ACCESS_KEY_ID": keys[0],
        "AWS_SECRET_ACCESS_KEY": keys[1],
        "AWS_SESSION_TOKEN": keys[2],
        "AWS_REGION": aws.region,
        "AWS_ENDPOINT_URL": aws.endpoint,
        "AWS_ALLOW_HTTP": "true" if aws.endpoint.startswith("http://") else "",
        "AWS_SKIP_SIGNATURE": "true" if aws.source is CredentialSource.ANONYMOUS else "",
        # A commit is a write that fails if another writer made the same version.
        "AWS_CONDITIONAL_PUT": "etag",
    }
    return {name: value for name, value in options.items() if value}


def _sdk_keys(uri: str, profile: str) -> tuple[str, str, str]:
    """Return the access key, the secret key and the token that the AWS SDK obtains for a profile."""
    try:
        session = sdk_session(f"the AWS profile {profile!r}", profile_name=profile)
        found = session.get_credentials().get_frozen_credentials()
    except MissingExtraError:
        raise
    except Exception as error:  # botocore raises dozens of types
        raise AccessDeniedError(
            uri, f"the AWS SDK found no credentials in profile {profile!r}: {error}"
        ) from error
    return found.access_key, found.secret_key, found.token or ""
