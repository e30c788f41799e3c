"""The job API in a process of its own: `python job_api.py LEDGER_URL STORE_URI`. Says its address on standard error."""

import asyncio
import signal
import sys

from headrace.jobs.access import JobAccess
from headrace.jobs.desk import DeskSettings, JobDesk
from headrace.jobs.ledgers.open import open_ledger
from headrace.server.jobs.app import jobs_app
from headrace.server.listen import HttpListener, new_event_loop
from headrace.storage import Stores


def main() -> None:
    ledger_url, store_uri = sys.argv[1:]
    ledger = open_ledger(ledger_url)
    ledger.start()
    desk = JobDesk(ledger, Stores(), DeskSettings(store_uri))
    desk.start()

    async def serve() -> None:
        over = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
        listener = HttpListener(jobs_app(desk, JobAccess(), version="0"), "127.0.0.1", 0)
        await listener.start()
        print(listener.address, file=sys.stderr, flush=True)
        await over.wait()
        await listener.stop(1.0)

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(serve())
    desk.stop()
    ledger.stop()


if __name__ == "__main__":
    main()
