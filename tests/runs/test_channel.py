import threading
from concurrent.futures import Future

import pytest

from headrace.core import InferResponse
from headrace.runs.items import Channel, ChannelClosedError, EndOfChannelError
from servers.polling import wait_until


def test_items_are_received_in_order_until_the_end():
    channel: Channel[int] = Channel(100)
    for i in range(3):
        channel.send(i, 1)
    channel.finish()
    assert [channel.receive() for _ in range(3)] == [0, 1, 2]
    with pytest.raises(EndOfChannelError):
        channel.receive()


def test_failure_arrives_after_earlier_items():
    channel: Channel[int] = Channel(100)
    channel.send(1, 1)
    channel.fail(ValueError("broken"))
    assert channel.receive() == 1
    with pytest.raises(ValueError, match="broken"):
        channel.receive()


def test_full_channel_blocks_its_sender():
    channel: Channel[str] = Channel(10)
    channel.send("a", 10)
    sent = threading.Event()

    def send() -> None:
        channel.send("b", 1)
        sent.set()

    sender = threading.Thread(target=send)
    sender.start()
    wait_until(lambda: channel._not_full._waiters, "a blocked sender")
    assert not sent.is_set()
    assert channel.receive() == "a"
    sender.join(5)
    assert sent.is_set()


def test_close_wakes_a_blocked_sender():
    channel: Channel[str] = Channel(1)
    channel.send("a", 1)
    raised: list[BaseException] = []

    def send() -> None:
        try:
            channel.send("b", 1)
        except ChannelClosedError as error:
            raised.append(error)

    sender = threading.Thread(target=send)
    sender.start()
    channel.close()
    sender.join(5)
    assert len(raised) == 1


def test_receive_returns_none_after_its_timeout():
    channel: Channel[int] = Channel(1)
    assert channel.receive(0.0) is None


# Items that wait for a future, as the batches in the window of a flow do

ANSWER = InferResponse((), "m")


def send(window, batch, future, weight):
    """Send a batch as a flow does: with the future that makes it ready."""
    window.send((batch, future), weight, future)


def receive(window):
    """Return the next batch with its response."""
    batch, future = window.receive()
    return batch, None if future is None else future.result()


def in_thread(call):
    """Run `call` in a thread. Return the thread, and the list that receives the result."""
    got = []
    thread = threading.Thread(target=lambda: got.append(call()))
    thread.start()
    return thread, got


def test_batches_are_received_in_sending_order():
    window, responses = Channel(100), [Future() for _ in range(3)]
    for name, response in zip("abc", responses, strict=True):
        send(window, name, response, 1)
    send(window, "d", None, 1)
    window.finish()
    thread, got = in_thread(lambda: [receive(window) for _ in range(4)])
    for index in (2, 1, 0):
        responses[index].set_result(ANSWER)
    thread.join(10)
    assert got == [[("a", ANSWER), ("b", ANSWER), ("c", ANSWER), ("d", None)]]
    with pytest.raises(EndOfChannelError):
        receive(window)


def test_failure_is_raised_after_earlier_batches():
    window, broken = Channel(100), Future()
    send(window, "a", None, 1)
    send(window, "b", broken, 1)
    window.fail(OSError("source"))
    broken.set_exception(ValueError("model"))
    assert receive(window) == ("a", None)
    with pytest.raises(ValueError, match="model"):
        receive(window)
    with pytest.raises(OSError, match="source"):
        receive(window)


def test_full_window_blocks_its_sender():
    window = Channel(10)
    send(window, "a", None, 10)
    thread, _ = in_thread(lambda: send(window, "b", None, 1))
    wait_until(lambda: window._not_full._waiters, "a blocked sender")
    assert thread.is_alive()
    assert receive(window) == ("a", None)
    thread.join(10)
    assert receive(window) == ("b", None)


def test_close_wakes_both_sides():
    window = Channel(1)
    send(window, "a", Future(), 1)

    def blocked_send():
        with pytest.raises(ChannelClosedError):
            send(window, "b", None, 1)
        return "closed"

    def blocked_receive():
        with pytest.raises(EndOfChannelError):
            receive(window)
        return "closed"

    both = [in_thread(blocked_send), in_thread(blocked_receive)]
    window.close()
    for thread, got in both:
        thread.join(10)
        assert got == ["closed"]
    with pytest.raises(ChannelClosedError):
        send(window, "c", None, 1)
