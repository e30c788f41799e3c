"""PgQueuer over PostgreSQL and asyncpg: coroutines, jobs claimed and ended in batches; no results."""

import asyncio
import signal

import asyncpg
import uvloop
from job_peer import TOGETHER, Marks, read_arguments, report
from pgqueuer import AsyncpgDriver, PgQueuer, Queries

arguments = read_arguments()
marks = Marks(arguments.marks)


async def submit() -> None:
    connection = await asyncpg.connect(arguments.url)
    queries = Queries(AsyncpgDriver(connection))
    report("begin")
    for begin in range(0, arguments.jobs, TOGETHER):
        some = range(begin, min(begin + TOGETHER, arguments.jobs))
        await queries.enqueue(["bench"] * len(some), [b"%d" % number for number in some], [0] * len(some))
    await connection.close()


async def work() -> None:
    connection = await asyncpg.connect(arguments.url)
    queue = PgQueuer(AsyncpgDriver(connection))

    @queue.entrypoint("bench")
    async def bench(_: object) -> None:
        await asyncio.sleep(arguments.job_s)
        marks.done()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, queue.shutdown.set)
    report("ready")
    await queue.run(batch_size=arguments.concurrency)


async def prepare() -> None:
    connection = await asyncpg.connect(arguments.url)
    await Queries(AsyncpgDriver(connection)).install()
    await connection.close()


if __name__ == "__main__":
    uvloop.run({"submit": submit, "work": work, "prepare": prepare}[arguments.role]())
