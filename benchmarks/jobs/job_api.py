"""Run the job API in a separate process: `python job_api.py LEDGER_URL STORE_URI`.

The address goes to standard error.
"""

import asyncio
import signal
import sys

from headrace.jobs.access import Access
from headrace.jobs.ledgers import open_ledger
from headrace.jobs.service import JobService, JobServiceSettings
from headrace.server.jobs.app import jobs_app
from headrace.server.listen import HttpListener, new_event_loop
from headrace.storage import Stores


def main() -> None:
    ledger_url, store_uri = sys.argv[1:]
    ledger = open_ledger(ledger_url)
    ledger.start()
    service = JobService(ledger, Stores(), JobServiceSettings(store_uri))
    service.start()

    async def serve() -> None:
        stopped = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
        listener = HttpListener(jobs_app(service, Access(), version="0"), "127.0.0.1", 0)
        await listener.start()
        print(listener.address, file=sys.stderr, flush=True)
        await stopped.wait()
        await listener.stop(1.0)

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(serve())
    service.stop()
    ledger.stop()


if __name__ == "__main__":
    main()
