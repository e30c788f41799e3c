"""procrastinate over PostgreSQL: coroutines, one query to claim each job and one to end it; no
results.
"""

import asyncio

from job_peer import TOGETHER, Marks, read_arguments, report
from procrastinate import App, PsycopgConnector

arguments = read_arguments()
app = App(connector=PsycopgConnector(conninfo=arguments.url))
marks = Marks(arguments.marks)


@app.task(name="bench")
async def bench(number: int) -> None:  # noqa: ARG001 - jobs name their arguments
    await asyncio.sleep(arguments.job_s)
    marks.done()


async def submit() -> None:
    async with app.open_async():
        report("begin")
        for begin in range(0, arguments.jobs, TOGETHER):
            some = range(begin, min(begin + TOGETHER, arguments.jobs))
            await bench.batch_defer_async(*({"number": number} for number in some))


async def work() -> None:
    async with app.open_async():
        report("ready")
        await app.run_worker_async(concurrency=arguments.concurrency)


async def prepare() -> None:
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


if __name__ == "__main__":
    asyncio.run({"submit": submit, "work": work, "prepare": prepare}[arguments.role]())
