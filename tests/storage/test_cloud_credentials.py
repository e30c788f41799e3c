"""Google and Azure: refuse at once what could only hang."""

import pytest

from headrace.core.errors import AccessDeniedError
from headrace.storage.cloud_credentials import meant_plain_http, require_credentials


@pytest.mark.parametrize(
    ("scheme", "variable"), [("gs", "GOOGLE_APPLICATION_CREDENTIALS"), ("az", "AZURE_STORAGE_ACCOUNT_KEY")]
)
def test_nothing_to_sign_with_says_what_was_looked_for(tmp_path, scheme, variable):
    bare = {"HOME": str(tmp_path)}
    with pytest.raises(AccessDeniedError, match=variable):
        require_credentials(f"{scheme}://b", scheme, bare, machine_files=tmp_path)
    require_credentials(f"{scheme}://b", scheme, bare | {variable: "x"}, machine_files=tmp_path)


def test_a_public_bucket_needs_none(tmp_path):
    require_credentials("gs://b", "gs", {"GOOGLE_SKIP_SIGNATURE": "true"}, machine_files=tmp_path)
    require_credentials("az://b", "az", {"AZURE_SKIP_SIGNATURE": "1"}, machine_files=tmp_path)


def test_a_login_or_the_machine_itself_lends_some(tmp_path):
    (tmp_path / "sys_vendor").write_text("Microsoft Corporation\n")
    require_credentials("az://b", "az", {"HOME": str(tmp_path)}, machine_files=tmp_path)
    login = tmp_path / ".config/gcloud/application_default_credentials.json"
    login.parent.mkdir(parents=True)
    login.write_text("{}")
    require_credentials("gs://b", "gs", {"HOME": str(tmp_path)}, machine_files=tmp_path)


def test_emulators_are_meant_without_tls():
    assert meant_plain_http({"AZURE_STORAGE_USE_EMULATOR": "true"})
    assert meant_plain_http({"GOOGLE_BASE_URL": "http://127.0.0.1:4443"})
    assert not meant_plain_http({"GOOGLE_BASE_URL": "https://storage.example"})
