"""A ledger with pools, and the API over it."""

import pytest

from scaling.external_metrics.adapter import PoolLedger, served_metrics, write_certificates
from scaling.pool_bench import unshared


@pytest.fixture
def ledger():
    ledger = PoolLedger()
    ledger.decide("gpu", 7, 3)
    ledger.decide("cpu", 0)
    return ledger


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    return write_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def https_address(ledger, certificates):
    """Serve the API to clients with a certificate of the front proxy."""
    with served_metrics(unshared(ledger.memory.pools), certificates.tls) as address:
        yield address
