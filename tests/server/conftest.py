"""Fixtures of several listeners' tests."""

import subprocess

import pytest

import levels

# schemathesis comes with `make setup-all` only.
collect_ignore = ["test_openapi_fuzz.py"] if levels.level() == "test" else []


@pytest.fixture(scope="session")
def pems(tmp_path_factory):
    """Create a certificate authority, and certificates of a server and a client."""
    folder = tmp_path_factory.mktemp("pems")

    def openssl(*args):
        subprocess.run(["openssl", *args], cwd=folder, check=True, capture_output=True)

    new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    openssl(
        "req", "-x509", *new, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=authority", "-days", "2"
    )
    (folder / "names").write_text("subjectAltName=DNS:localhost")
    for name in ("server", "client"):
        openssl("req", *new, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        signed = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names", "-days", "2"]
        openssl("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *signed)
    return folder
