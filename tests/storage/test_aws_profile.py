"""AWS settings from the environment and the files, in the order of the AWS tools."""

import pytest

from cases import for_each
from headrace.core.errors import ConfigError
from headrace.storage.cloud_credentials import CredentialSource, aws_settings

KEYS = {"AWS_ACCESS_KEY_ID": "env-key", "AWS_SECRET_ACCESS_KEY": "env-secret"}
CREDENTIALS = """
[default]
aws_access_key_id = default-key
aws_secret_access_key = default-secret
[work]
aws_access_key_id = work-key
aws_secret_access_key = work%secret
aws_session_token = work-token
"""
CONFIG = """
[default]
region = eu-central-1
[profile work]
region = eu-west-3
endpoint_url = https://storage.work.example/
services = local
[services local]
s3 =
  endpoint_url = http://127.0.0.1:9000
  other = 1
dynamodb =
  endpoint_url = http://127.0.0.1:8000
[profile with-source]
source_profile = work
[profile role]
role_arn = arn:aws:iam::1:role/x
source_profile = work
[profile sso]
sso_session = here
"""


@pytest.fixture
def settings(tmp_path):
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text(CREDENTIALS)
    (tmp_path / ".aws" / "config").write_text(CONFIG)
    return lambda **environ: aws_settings(
        {"HOME": str(tmp_path)} | environ, ec2_vendor_file=tmp_path / "vendor"
    )


@pytest.fixture
def settings_without_files(tmp_path):
    return lambda **environ: aws_settings(
        {"HOME": str(tmp_path)} | environ, ec2_vendor_file=tmp_path / "vendor"
    )


def test_environment_keys_take_precedence(settings):
    found = settings(**KEYS, AWS_SESSION_TOKEN="t", AWS_PROFILE="work")
    assert (found.source, found.access_key_id) == (CredentialSource.KEYS, "env-key")
    assert (found.secret_access_key, found.session_token) == ("env-secret", "t")


def test_default_profile_is_used_without_environment_keys(settings):
    found = settings()
    assert (found.source, found.access_key_id) == (CredentialSource.KEYS, "default-key")
    assert (found.region, found.endpoint) == ("eu-central-1", "")


def test_named_profile_provides_all_its_settings(settings):
    found = settings(AWS_PROFILE="work")
    assert (found.access_key_id, found.secret_access_key) == ("work-key", "work%secret")
    assert found.session_token == "work-token"
    assert (found.region, found.endpoint) == ("eu-west-3", "http://127.0.0.1:9000")


def test_profile_uses_static_keys_of_its_source_profile(settings):
    found = settings(AWS_PROFILE="with-source")
    assert (found.source, found.access_key_id) == (CredentialSource.KEYS, "work-key")


@for_each("profile", ["role", "sso"])
def test_roles_and_single_sign_on_need_the_sdk(settings, profile):
    found = settings(AWS_PROFILE=profile)
    assert (found.source, found.profile) == (CredentialSource.SDK, profile)


@for_each("setting", ["credential_process = /bin/x", "web_identity_token_file = /x"])
def test_credential_processes_and_tokens_need_the_sdk(settings_without_files, tmp_path, setting):
    path = tmp_path / "my-config"
    path.write_text(f"[default]\n{setting}\n")
    assert settings_without_files(AWS_CONFIG_FILE=str(path)).source is CredentialSource.SDK
    assert settings_without_files(AWS_CONFIG_FILE="~/my-config").source is CredentialSource.SDK


def test_missing_credentials_name_the_sources_searched(settings_without_files, tmp_path):
    found = settings_without_files()
    assert found.source is CredentialSource.NONE
    assert "AWS_ACCESS_KEY_ID" in found.searched_sources
    assert str(tmp_path / ".aws" / "credentials") in found.searched_sources


@for_each(
    "variable",
    [
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
    ],
)
def test_container_variables_select_machine_credentials(settings_without_files, variable):
    assert settings_without_files(**{variable: "x"}).source is CredentialSource.MACHINE


def test_instance_metadata_is_used_only_on_ec2_or_on_request(settings_without_files, tmp_path):
    assert settings_without_files(AWS_EC2_METADATA_DISABLED="false").source is CredentialSource.MACHINE
    (tmp_path / "vendor").write_text("Amazon EC2\n")
    assert settings_without_files().source is CredentialSource.MACHINE
    assert settings_without_files(AWS_EC2_METADATA_DISABLED="true").source is CredentialSource.NONE


def test_skip_signature_selects_anonymous(settings):
    assert settings(AWS_SKIP_SIGNATURE="True", **KEYS).source is CredentialSource.ANONYMOUS
    assert settings(AWS_SKIP_SIGNATURE="false", **KEYS).source is CredentialSource.KEYS


def test_endpoint_settings_have_precedence_order(settings):
    both = {"AWS_ENDPOINT_URL": "http://all", "AWS_ENDPOINT_URL_S3": "http://s3/"}
    assert settings(**both, AWS_PROFILE="work").endpoint == "http://s3"
    assert settings(AWS_ENDPOINT_URL="http://all").endpoint == "http://all"
    assert settings(AWS_PROFILE="work", AWS_IGNORE_CONFIGURED_ENDPOINT_URLS="true").endpoint == ""


def test_region_settings_have_precedence_order(settings, tmp_path):
    assert settings(AWS_REGION="a", AWS_DEFAULT_REGION="b").region == "a"
    assert settings(AWS_DEFAULT_REGION="b").region == "b"
    assert aws_settings({"HOME": "/nonexistent"}, ec2_vendor_file=tmp_path / "vendor").region == "us-east-1"


@for_each(
    ("environ", "message"),
    [
        ({"AWS_PROFILE": "missing"}, "no such profile"),
        ({"AWS_ACCESS_KEY_ID": "x"}, "both"),
        ({"AWS_ENDPOINT_URL": "localhost:9000"}, "write http://HOST:PORT"),
    ],
)
def test_invalid_settings_are_rejected(settings, environ, message):
    with pytest.raises(ConfigError, match=message):
        settings(**environ)


def test_invalid_configuration_file_is_named(settings_without_files, tmp_path):
    path = tmp_path / "broken"
    path.write_text("no section here\n")
    with pytest.raises(ConfigError, match="broken is not an AWS configuration file"):
        settings_without_files(AWS_CONFIG_FILE=str(path))


@for_each(
    ("text", "line"),
    [("aws_secret_access_key = hush\n", 1), ("[default]\naws_secret_access_key hush\n", 2)],
)
def test_parse_error_names_the_line_without_its_text(settings_without_files, tmp_path, text, line):
    path = tmp_path / "broken"
    path.write_text(text)
    with pytest.raises(ConfigError, match=f"line {line} is") as raised:
        settings_without_files(AWS_SHARED_CREDENTIALS_FILE=str(path))
    assert "hush" not in str(raised.value)
    assert raised.value.__cause__ is None


def test_byte_order_mark_and_quoted_profiles_are_accepted(settings_without_files, tmp_path):
    path = tmp_path / "config"
    path.write_text(
        "\ufeff[default]\nregion = a\n[profile 'my work']\nregion = b\n[profile \"mine\"]\nregion = c\n"
    )
    for profile, region in (("default", "a"), ("my work", "b"), ("mine", "c")):
        assert settings_without_files(AWS_CONFIG_FILE=str(path), AWS_PROFILE=profile).region == region


def test_repr_omits_secrets(settings):
    assert "secret" not in repr(settings(**KEYS, AWS_SESSION_TOKEN="also-secret"))
