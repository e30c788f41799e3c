"""The cache of current endpoints."""

from headrace.jobs.access.endpoints import EndpointSettings
from headrace.jobs.current_endpoints import CACHED_S, CurrentEndpoints
from headrace.testing import ManualClock, ManualWallClock, MemoryJobLedger


def test_endpoints_are_cached_for_a_second_or_until_dropped():
    ledger, clock = MemoryJobLedger(ManualWallClock()), ManualClock()
    ledger.start()
    endpoints = CurrentEndpoints(ledger, clock=clock)
    assert endpoints.find("e") is None
    ledger.set_endpoint("e", EndpointSettings("m"))
    clock.advance(CACHED_S)
    assert endpoints.find("e") is None
    clock.advance(0.1)
    assert endpoints.find("e").version == 1
    ledger.set_endpoint("e", EndpointSettings("m2"))
    assert endpoints.find("e").version == 1
    endpoints.drop()
    assert endpoints.find("e").version == 2
