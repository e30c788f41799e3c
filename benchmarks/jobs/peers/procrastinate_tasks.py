"""procrastinate over PostgreSQL: coroutines, one query to take each job and one to end it; no result is kept."""

import asyncio

from job_peer import TOGETHER, Marks, say, told
from procrastinate import App, PsycopgConnector

given = told()
app = App(connector=PsycopgConnector(conninfo=given.url))
marks = Marks(given.marks)


@app.task(name="bench")
async def bench(number: int) -> None:  # noqa: ARG001 - jobs name their arguments
    await asyncio.sleep(given.job_s)
    marks.done()


async def submit() -> None:
    async with app.open_async():
        say("begin")
        for begin in range(0, given.jobs, TOGETHER):
            some = range(begin, min(begin + TOGETHER, given.jobs))
            await bench.batch_defer_async(*({"number": number} for number in some))


async def work() -> None:
    async with app.open_async():
        say("ready")
        await app.run_worker_async(concurrency=given.concurrency)


async def prepare() -> None:
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


if __name__ == "__main__":
    asyncio.run({"submit": submit, "work": work, "prepare": prepare}[given.role]())
