"""Who we are to S3 and where it is: the AWS environment and the files in ``~/.aws``, read without a network.

The order is that of the AWS tools: keys in the environment, then the profile's keys, then what only their SDK can
get (single sign-on, roles, a credential process), then what the machine gives (containers, instance metadata).
"""

import configparser
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from headrace.core.errors import ConfigError

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


class CredentialSource(StrEnum):
    """Where credentials come from."""

    KEYS = "keys"
    """`access_key_id` and `secret_access_key` are known."""
    ANONYMOUS = "anonymous"
    """Requests are not signed."""
    SDK = "sdk"
    """The profile needs the AWS SDK: single sign-on, a role, a process."""
    MACHINE = "machine"
    """A container's, a pod's or an instance's own; the client library asks for them."""
    NONE = "none"
    """There are none; `looked_for` says where we looked."""


@dataclass(frozen=True, slots=True)
class AwsSettings:
    """Everything that a client for one bucket needs. `secret_access_key` and `session_token` stay out of repr."""

    source: CredentialSource
    access_key_id: str = ""
    secret_access_key: str = ""
    session_token: str = ""
    region: str = "us-east-1"
    endpoint: str = ""
    profile: str = "default"
    ca_bundle: str = ""
    looked_for: str = ""

    def __repr__(self) -> str:
        return f"AwsSettings(source={self.source}, profile={self.profile!r}, endpoint={self.endpoint!r})"


def aws_settings(environ: Mapping[str, str], *, ec2_vendor_file: Path = EC2_VENDOR_FILE) -> AwsSettings:
    """Read the environment and the files it names. Never waits for a network.

    Raises ConfigError when AWS_PROFILE names a profile that no file has, or a file cannot be parsed.
    """
    profile_name = environ.get("AWS_PROFILE") or environ.get("AWS_DEFAULT_PROFILE") or "default"
    files = _Files.read(environ)
    profile = files.profile(profile_name)
    if profile is None and profile_name != "default":
        raise ConfigError(f"AWS_PROFILE is {profile_name!r}, but {files.names} have no such profile")
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
        looked_for=f"AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment, profile {profile_name!r} in {files.names}",
    )


def truthy(text: str | None) -> bool:
    """Whether an environment variable says yes."""
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
            "set both AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or neither: one of them is empty"
        )
    if named["aws_access_key_id"]:
        return CredentialSource.KEYS, named
    # A role is assumed with the keys beside it, so it comes first.
    if any(profile.get(setting) for setting in _SDK_SETTINGS):
        return CredentialSource.SDK, {}
    lender = (
        profile if "aws_access_key_id" in profile else files.profile(profile.get("source_profile", "")) or {}
    )
    if lender.get("aws_access_key_id") and lender.get("aws_secret_access_key"):
        return CredentialSource.KEYS, lender
    if any(environ.get(variable) for variable in _MACHINE_VARIABLES) or _on_ec2(environ, ec2_vendor_file):
        return CredentialSource.MACHINE, {}
    return CredentialSource.NONE, {}


def _on_ec2(environ: Mapping[str, str], vendor_file: Path) -> bool:
    """Whether asking the instance's metadata address can do anything but hang."""
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
            return _checked_endpoint(url, variable)
    if truthy(environ.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS")):
        return ""
    services = files.services(profile.get("services", ""))
    url = _nested(services.get("s3", "")).get("endpoint_url") or profile.get("endpoint_url", "")
    return _checked_endpoint(url, "endpoint_url") if url else ""


def _checked_endpoint(url: str, setting: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"{setting} is {url!r}; write http://HOST:PORT or https://HOST")
    return url.rstrip("/")


def _nested(text: str) -> dict[str, str]:
    """The indented settings below a service's name."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {name.strip(): value.strip() for name, _, value in pairs}


@dataclass(frozen=True, slots=True)
class _Files:
    """The two files, parsed. Keys in the credentials file win over those in the config file."""

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
        return cls(" and ".join(str(p) for p in paths), *(_parsed(p) for p in paths))

    def profile(self, name: str) -> _Section | None:
        """The settings of a profile, from both files; None when neither has it."""
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


def _parsed(path: Path) -> configparser.RawConfigParser:
    # No default section: [default] is a profile like any other.
    parser = configparser.RawConfigParser(default_section="\0", strict=False)
    try:
        parser.read_string(path.read_text("utf-8-sig"), str(path))
    except OSError:
        pass  # no such file, or not for us: as if it were empty
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not an AWS configuration file: it is not text in UTF-8") from None
    except configparser.Error as error:
        # The error itself shows the line, which may hold a secret.
        raise ConfigError(f"{path} is not an AWS configuration file: {_what_is_wrong(error)}") from None
    return parser


def _what_is_wrong(error: configparser.Error) -> str:
    if isinstance(error, configparser.MissingSectionHeaderError):
        return f"line {error.lineno} is in no section, such as [default]"
    if isinstance(error, configparser.ParsingError):
        return f"line {error.errors[0][0]} is no setting, such as name = value"
    return type(error).__name__
