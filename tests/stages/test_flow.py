"""Channels stay within their bound, pass failure on in both directions, and never hang."""

from __future__ import annotations

import threading

import pytest

from embedctl.errors import Interrupted
from embedctl.stages.flow import Channel, Halt, stage

pytestmark = pytest.mark.timeout(60)


def test_items_arrive_in_order_and_the_bound_holds():
    halt = Halt()
    channel: Channel[int] = Channel(halt, max_cost=3)
    ahead = threading.Semaphore(4)  # three wait in the channel, one is in the reader's hand

    def write() -> None:
        for i in range(50):
            channel.put(i, 1)
            assert ahead.acquire(blocking=False), "the writer ran past the bound"
        channel.close()

    seen = []
    with stage("write", halt, write):
        for item in channel:
            seen.append(item)
            ahead.release()
    assert seen == list(range(50))


def test_an_item_larger_than_the_bound_still_passes():
    channel: Channel[str] = Channel(Halt(), max_cost=1)
    channel.put("large", 100)
    channel.close()
    assert list(channel) == ["large"]


def test_a_failed_writer_ends_the_waiting_reader():
    halt = Halt()
    channel: Channel[int] = Channel(halt, max_cost=1)

    def write() -> None:
        raise ValueError("broken source")

    with pytest.raises(ValueError, match="broken source"), stage("write", halt, write):
        list(channel)


def test_a_failed_reader_ends_the_waiting_writer():
    halt = Halt()
    channel: Channel[int] = Channel(halt, max_cost=1)
    ended = threading.Event()

    def write() -> None:
        try:
            while True:
                channel.put(0, 1)
        finally:
            ended.set()

    with pytest.raises(KeyError, match="reader"), stage("write", halt, write):
        raise KeyError("reader")
    assert ended.wait(timeout=30)


def test_a_signal_ends_a_wait_and_the_first_failure_is_the_one_told():
    halt = Halt()
    halt.signum = 15
    with pytest.raises(Interrupted):
        list(Channel[int](halt, max_cost=1))
    first = ValueError("first")
    halt.fail(first)
    halt.fail(ValueError("second"))
    with pytest.raises(ValueError, match="first"):
        halt.check()
