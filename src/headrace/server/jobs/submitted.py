"""One submission, carried to the ledger: what the API's own door and the vendor's have in common."""

import asyncio

from headrace.jobs.access import JobKey
from headrace.jobs.intake import Submission
from headrace.jobs.ledger import Submitted
from headrace.server.jobs.api import Api


async def submitted(
    api: Api, caller: JobKey, submission: Submission, *, output_is_ours: bool = False
) -> Submitted:
    """The job in the ledger. Storing its payload takes a thread for a while; waiting for the commit takes none."""
    answer = await api.workroom.run(api.desk.submit, caller, submission, output_is_ours=output_is_ours)
    # Shielded: what is on its way cannot be called back when its caller goes.
    return await asyncio.shield(asyncio.wrap_future(answer))
