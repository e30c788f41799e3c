import threading
from concurrent.futures import Future

import pytest

from headrace.core import InferResponse
from headrace.runs.channel import ChannelClosedError, EndOfChannelError
from headrace.runs.window import Window
from servers.polling import wait_until

ANSWER = InferResponse((), "m")


def in_thread(call):
    """Run `call` in a thread. Return the thread, and the list that receives the result."""
    got = []
    thread = threading.Thread(target=lambda: got.append(call()))
    thread.start()
    return thread, got


def test_batches_are_received_in_sending_order():
    window, responses = Window(100), [Future() for _ in range(3)]
    for name, response in zip("abc", responses, strict=True):
        window.send(name, response, 1)
    window.send("d", None, 1)
    window.finish()
    thread, got = in_thread(lambda: [window.receive() for _ in range(4)])
    for index in (2, 1, 0):
        responses[index].set_result(ANSWER)
    thread.join(10)
    assert got == [[("a", ANSWER), ("b", ANSWER), ("c", ANSWER), ("d", None)]]
    with pytest.raises(EndOfChannelError):
        window.receive()


def test_failure_is_raised_after_earlier_batches():
    window, broken = Window(100), Future()
    window.send("a", None, 1)
    window.send("b", broken, 1)
    window.fail(OSError("source"))
    broken.set_exception(ValueError("model"))
    assert window.receive() == ("a", None)
    with pytest.raises(ValueError, match="model"):
        window.receive()
    with pytest.raises(OSError, match="source"):
        window.receive()


def test_full_window_blocks_its_sender():
    window = Window(10)
    window.send("a", None, 10)
    thread, _ = in_thread(lambda: window.send("b", None, 1))
    wait_until(lambda: window._not_full._waiters, "a blocked sender")
    assert thread.is_alive()
    assert window.receive() == ("a", None)
    thread.join(10)
    assert window.receive() == ("b", None)


def test_close_wakes_both_sides():
    window = Window(1)
    window.send("a", Future(), 1)

    def send():
        with pytest.raises(ChannelClosedError):
            window.send("b", None, 1)
        return "closed"

    def receive():
        with pytest.raises(EndOfChannelError):
            window.receive()
        return "closed"

    both = [in_thread(send), in_thread(receive)]
    window.close()
    for thread, got in both:
        thread.join(10)
        assert got == ["closed"]
    with pytest.raises(ChannelClosedError):
        window.send("c", None, 1)
