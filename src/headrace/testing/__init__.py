"""Test doubles, and conformance suites for implementations of headrace's contracts.

A function `check_...` raises AssertionError with the broken guarantee. headrace's own
implementations pass the same suites as external stores, formats, predictors, checkpoint stores,
ledgers and wakeup brokers.
"""

from headrace.testing.checkpoints import (
    CHECKPOINT_CHECKS,
    SHARED_CHECKPOINT_CHECKS,
    CheckpointBench,
    check_checkpoint_store,
)
from headrace.testing.doubles import (
    EchoModel,
    FlakyStore,
    HeldModel,
    ManualClock,
    ManualWallClock,
    PickyModel,
)
from headrace.testing.endpoint import EndpointFault, RecordedRequest, ScriptedEndpoint
from headrace.testing.formats import FORMAT_CHECKS, FormatSample, check_format
from headrace.testing.job_checks import JOB_LEDGER_CHECKS, check_job_ledger
from headrace.testing.job_checks.bench import LedgerBench
from headrace.testing.job_ledger_memory import MemoryJobLedger
from headrace.testing.outbox import OUTBOX_CHECKS, OutboxBench, check_outbox
from headrace.testing.service import check_predictor, check_service
from headrace.testing.storage import STORE_CHECKS, check_reading, check_store
from headrace.testing.wakeup_broker import WAKEUP_BROKER_CHECKS, check_outage, check_wakeup_broker

__all__ = [
    "CHECKPOINT_CHECKS",
    "FORMAT_CHECKS",
    "JOB_LEDGER_CHECKS",
    "OUTBOX_CHECKS",
    "SHARED_CHECKPOINT_CHECKS",
    "STORE_CHECKS",
    "WAKEUP_BROKER_CHECKS",
    "CheckpointBench",
    "EchoModel",
    "EndpointFault",
    "FlakyStore",
    "FormatSample",
    "HeldModel",
    "LedgerBench",
    "ManualClock",
    "ManualWallClock",
    "MemoryJobLedger",
    "OutboxBench",
    "PickyModel",
    "RecordedRequest",
    "ScriptedEndpoint",
    "check_checkpoint_store",
    "check_format",
    "check_job_ledger",
    "check_outage",
    "check_outbox",
    "check_predictor",
    "check_reading",
    "check_service",
    "check_store",
    "check_wakeup_broker",
]
