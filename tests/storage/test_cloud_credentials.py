"""Credential checks for Google and Azure, without network access."""

import pytest

from cases import for_each
from headrace.core.errors import AccessDeniedError
from headrace.storage.cloud_credentials import require_credentials, uses_plain_http


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
