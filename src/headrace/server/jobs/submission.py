"""The step from a parsed submission to a job in the ledger, for both submission routes."""

import asyncio

from headrace.jobs.access import JobKey
from headrace.jobs.ledger import SubmitReply
from headrace.jobs.submission import Submission
from headrace.server.jobs.api import Api


async def submit_job(
    api: Api, key: JobKey, submission: Submission, *, trusted_output: bool = False
) -> SubmitReply:
    """Return the job in the ledger.

    Storing the payload occupies a thread for a while. Waiting for the commit occupies none.
    """
    future = await api.thread_pool.run(api.service.submit, key, submission, trusted_output=trusted_output)
    # The shield is needed because a disconnect of the client cannot undo the submission.
    return await asyncio.shield(asyncio.wrap_future(future))
