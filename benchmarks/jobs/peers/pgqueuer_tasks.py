"""PgQueuer over PostgreSQL and asyncpg: coroutines, jobs taken and ended in batches; no result is kept."""

import asyncio
import signal

import asyncpg
import uvloop
from job_peer import TOGETHER, Marks, say, told
from pgqueuer import AsyncpgDriver, PgQueuer, Queries

given = told()
marks = Marks(given.marks)


async def submit() -> None:
    connection = await asyncpg.connect(given.url)
    queries = Queries(AsyncpgDriver(connection))
    say("begin")
    for begin in range(0, given.jobs, TOGETHER):
        some = range(begin, min(begin + TOGETHER, given.jobs))
        await queries.enqueue(["bench"] * len(some), [b"%d" % number for number in some], [0] * len(some))
    await connection.close()


async def work() -> None:
    connection = await asyncpg.connect(given.url)
    queue = PgQueuer(AsyncpgDriver(connection))

    @queue.entrypoint("bench")
    async def bench(_: object) -> None:
        await asyncio.sleep(given.job_s)
        marks.done()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, queue.shutdown.set)
    say("ready")
    await queue.run(batch_size=given.concurrency)


async def prepare() -> None:
    connection = await asyncpg.connect(given.url)
    await Queries(AsyncpgDriver(connection)).install()
    await connection.close()


if __name__ == "__main__":
    uvloop.run({"submit": submit, "work": work, "prepare": prepare}[given.role]())
