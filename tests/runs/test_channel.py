import threading

import pytest

from headrace.runs.channel import Channel, ChannelClosedError, EndOfChannelError
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
