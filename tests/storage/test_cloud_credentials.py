"""Credential checks for Google and Azure, without network access."""

import pytest

from cases import for_each
from headrace.core.errors import AccessDeniedError
from headrace.storage.cloud_credentials import library_options, require_credentials, uses_plain_http


@for_each(
    ("scheme", "variable"), [("gs", "GOOGLE_APPLICATION_CREDENTIALS"), ("az", "AZURE_STORAGE_ACCOUNT_KEY")]
)
def test_missing_credentials_error_lists_the_sources_searched(tmp_path, scheme, variable):
    bare = {"HOME": str(tmp_path)}
    with pytest.raises(AccessDeniedError, match=variable):
        require_credentials(f"{scheme}://b", scheme, bare, dmi_folder=tmp_path)
    require_credentials(f"{scheme}://b", scheme, bare | {variable: "x"}, dmi_folder=tmp_path)


def test_skip_signature_needs_no_credentials(tmp_path):
    require_credentials("gs://b", "gs", {"GOOGLE_SKIP_SIGNATURE": "true"}, dmi_folder=tmp_path)
    require_credentials("az://b", "az", {"AZURE_SKIP_SIGNATURE": "1"}, dmi_folder=tmp_path)


def test_login_file_or_provider_machine_counts_as_credentials(tmp_path):
    (tmp_path / "sys_vendor").write_text("Microsoft Corporation\n")
    require_credentials("az://b", "az", {"HOME": str(tmp_path)}, dmi_folder=tmp_path)
    login = tmp_path / ".config/gcloud/application_default_credentials.json"
    login.parent.mkdir(parents=True)
    login.write_text("{}")
    require_credentials("gs://b", "gs", {"HOME": str(tmp_path)}, dmi_folder=tmp_path)


def test_emulators_use_plain_http():
    assert uses_plain_http({"AZURE_STORAGE_USE_EMULATOR": "true"})
    assert uses_plain_http({"GOOGLE_BASE_URL": "http://127.0.0.1:4443"})
    assert not uses_plain_http({"GOOGLE_BASE_URL": "https://storage.example"})


KEYS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "eu-west-1", "HOME": "/none"}


def test_libraries_of_tables_use_the_settings_of_the_stores():
    assert library_options("lake/table/", KEYS) == {}
    assert library_options("s3://b/table/", KEYS | {"AWS_ENDPOINT_URL": "http://localhost:9000"}) == {
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_REGION": "eu-west-1",
        "AWS_ENDPOINT_URL": "http://localhost:9000",
        "AWS_ALLOW_HTTP": "true",
        "AWS_CONDITIONAL_PUT": "etag",
    }
    public = library_options("s3://b/table/", {"HOME": "/none", "AWS_SKIP_SIGNATURE": "true"})
    assert public["AWS_SKIP_SIGNATURE"] == "true"
    assert library_options("gs://b/t/", {"GOOGLE_SKIP_SIGNATURE": "true"}) == {}
    emulator = {"AZURE_STORAGE_USE_EMULATOR": "true"}
    assert library_options("az://b/t/", emulator) == {"ALLOW_HTTP": "true"}


def test_libraries_of_tables_get_the_keys_that_the_sdk_obtains(tmp_path, monkeypatch):
    pytest.importorskip("boto3")
    keys = '{"Version": 1, "AccessKeyId": "k", "SecretAccessKey": "s", "SessionToken": "t"}'
    (tmp_path / "keys").write_text(keys)
    for name, command in (("work", f"cat {tmp_path}/keys"), ("broken", "false")):
        (tmp_path / "config").write_text(f"[profile {name}]\ncredential_process = {command}\n")
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
        environ = {"HOME": "/none", "AWS_CONFIG_FILE": str(tmp_path / "config"), "AWS_PROFILE": name}
        if name == "work":
            options = library_options("s3://b/t/", environ)
            assert (options["AWS_ACCESS_KEY_ID"], options["AWS_SESSION_TOKEN"]) == ("k", "t")
        else:
            with pytest.raises(
                AccessDeniedError, match="the AWS SDK found no credentials in profile 'broken'"
            ):
                library_options("s3://b/t/", environ)


def test_missing_credentials_of_tables_are_an_error():
    environ = {"HOME": "/none", "AWS_EC2_METADATA_DISABLED": "true"}
    with pytest.raises(AccessDeniedError, match="no credentials found"):
        library_options("s3://b/t/", environ)
