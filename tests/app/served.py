"""A model server in a thread of the test process, on free ports."""

import asyncio
import threading
from contextlib import contextmanager
from dataclasses import replace

from headrace.app.serving import DrainSettings, ServerOptions, open_server
from headrace.server.listen import new_event_loop

ALL_PORTS = ServerOptions(rest_port=0, grpc_port=0, metrics_port=0, drain=DrainSettings(grace_s=5))
REST_PORT = replace(ALL_PORTS, grpc_port=None, metrics_port=None)
WAIT_S = 30.0


@contextmanager
def served(models, options=REST_PORT, **settings):
    """Run a model server in a thread; yield it when it is ready, and stop it at the end."""
    with running(lambda: open_server(models, options, **settings)) as opened:
        try:
            yield opened
        finally:
            opened.observation.close()


@contextmanager
def running(open_it):
    """Run the server that `open_it` builds, as `served` does."""
    ready, opened, errors = threading.Event(), [], []

    async def main():
        try:
            opened.append(open_it())
            await opened[0].serving.run(ready.set, signals=False)
        except BaseException as error:
            errors.append(error)
        finally:
            ready.set()

    def run():
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(main())

    thread = threading.Thread(target=run, name="test-server", daemon=True)
    thread.start()
    assert ready.wait(WAIT_S)
    if errors:
        thread.join()
        raise errors[0]
    try:
        yield opened[0]
    finally:
        opened[0].serving.stop_threadsafe()
        thread.join(WAIT_S)
        assert not thread.is_alive()
