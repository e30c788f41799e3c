"""Jobs as a whole: the API, a worker, or both, over one ledger and one store."""

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import headrace
from headrace.app.notifying import open_deliverer
from headrace.app.serving import ServedModel, ServerOptions, open_doors
from headrace.app.working import JobsAt, OpenedWorker, chores, open_worker
from headrace.config.jobs_file import JobsFile, anyone, read_jobs_file
from headrace.core.errors import ConfigError, HeadraceError
from headrace.core.model import Isolation
from headrace.core.service import Service
from headrace.engine.repository import ModelRepository
from headrace.engine.settings import ServeSettings
from headrace.jobs.access import JobAccess
from headrace.jobs.desk import DeskSettings, JobDesk
from headrace.jobs.dispatcher import Dispatcher
from headrace.jobs.ledgers.open import open_ledger
from headrace.jobs.ledgers.sql import SqlJobLedger
from headrace.jobs.maintenance.reconciler import Reconciler
from headrace.jobs.maintenance.sweeper import Retention, Sweeper
from headrace.jobs.maintenance.upkeep import Chore, Upkeep
from headrace.jobs.outbound.client import OutboundClient
from headrace.jobs.places import Places
from headrace.jobs.publication import Publication
from headrace.jobs.triggering import Triggering
from headrace.jobs.worker.settings import WorkerSettings
from headrace.server.dataplane import Dataplane
from headrace.server.jobs.app import jobs_app
from headrace.server.jobs.workroom import Workroom
from headrace.server.listen import HttpListener, Listener, TlsFiles, new_event_loop
from headrace.server.security import check_bind
from headrace.server.serving import DrainSettings, Serving
from headrace.storage.resolve import Stores

_log = logging.getLogger("headrace.jobs")

API_PORT: Final = 8090
