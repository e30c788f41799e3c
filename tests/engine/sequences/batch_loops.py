"""Access to the batch loops of an engine, one for each instance."""

import threading
from unittest.mock import patch

from engine.support import WAIT_S
from headrace.engine import instance_worker
from headrace.engine.batch_loop import BatchLoop


def start_with_loops(engine):
    """Start an engine and return its batch loops, in the order of its instances."""
    loops, changed = {}, threading.Condition()

    def make(*args, instance, **settings):
        loop = BatchLoop(*args, instance=instance, **settings)
        with changed:
            loops[instance] = loop
            changed.notify_all()
        return loop

    with patch.object(instance_worker, "BatchLoop", make):
        engine.start()
        count = len(engine._session.slots)
        with changed:
            assert changed.wait_for(lambda: len(loops) == count, WAIT_S)
    return [loops[instance] for instance in range(count)]
