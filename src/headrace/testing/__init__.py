"""For tests of code that stands on headrace, and of stores, formats, predictors, checkpoint stores and dispatchers that are not ours.

A contract comes with its suite: what is called ``check_...`` raises AssertionError naming the promise that broke. Our
own implementations go through the same doors.
"""

from headrace.testing.checkpoints import (
    CHECKPOINT_CHECKS,
    SHARED_CHECKPOINT_CHECKS,
    CheckpointBench,
    check_checkpoint_store,
)
from headrace.testing.clock import ManualClock, ManualWallClock
from headrace.testing.dispatcher import DISPATCHER_CHECKS, check_dispatcher, check_outage
from headrace.testing.endpoint import EndpointFault, ScriptedEndpoint, SeenRequest
from headrace.testing.flaky_store import FlakyStore
from headrace.testing.formats import FORMAT_CHECKS, FormatSample, check_format
from headrace.testing.job_checks.bench import LedgerBench
from headrace.testing.job_ledger import JOB_LEDGER_CHECKS, check_job_ledger
from headrace.testing.job_ledger_memory import MemoryJobLedger
from headrace.testing.models import EchoModel, HeldModel, PickyModel
from headrace.testing.outbox import OUTBOX_CHECKS, OutboxBench, check_outbox
from headrace.testing.service import check_predictor, check_service
from headrace.testing.storage import STORE_CHECKS, check_reading, check_store

__all__ = [
    "CHECKPOINT_CHECKS",
    "DISPATCHER_CHECKS",
    "FORMAT_CHECKS",
    "JOB_LEDGER_CHECKS",
    "OUTBOX_CHECKS",
    "SHARED_CHECKPOINT_CHECKS",
    "STORE_CHECKS",
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
    "ScriptedEndpoint",
    "SeenRequest",
    "check_checkpoint_store",
    "check_dispatcher",
    "check_format",
    "check_job_ledger",
    "check_outage",
    "check_outbox",
    "check_predictor",
    "check_reading",
    "check_service",
    "check_store",
]
