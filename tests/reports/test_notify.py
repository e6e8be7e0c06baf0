"""A webhook hears the summary; what goes wrong with it is a reason in words, without the address."""

from __future__ import annotations

import base64
import json
import socket
from datetime import UTC, datetime

import pytest

from embedctl.reports import notify
from embedctl.reports.outcome import Outcome
from tests.reports.hook import listening

OUTCOME = Outcome(
    job="docs", command="embed", destination="out", began=datetime(2026, 12, 1, 3, tzinfo=UTC), seconds=1.0,
    exit_code=5, status="error", error="the disk is full", hint="free some space", notes=("smaller batches",),
)  # fmt: skip


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(notify, "PAUSE_S", 0.0)


def test_the_object_that_is_posted():
    with listening() as hook:
        assert notify.post(f"{hook.url}/hook?key=s3cret", OUTCOME) is None
    ((path, headers, body),) = hook.requests
    told = json.loads(body)
    assert path == "/hook?key=s3cret"
    assert headers["Content-Type"] == "application/json"
    assert {k: told[k] for k in ("job", "command", "exit_code", "error", "hint", "notes", "began")} == {
        "job": "docs", "command": "embed", "exit_code": 5, "error": "the disk is full", "hint": "free some space",
        "notes": ["smaller batches"], "began": "2026-12-01T03:00:00.000Z",
    }  # fmt: skip
    assert told["text"] == "docs: embed failed with exit code 5: the disk is full"


def test_user_and_password_become_a_header():
    with listening() as hook:
        assert notify.post(hook.url.replace("//", "//me:p%40ss@"), OUTCOME) is None
    assert hook.requests[0][1]["Authorization"] == "Basic " + base64.b64encode(b"me:p@ss").decode()


def test_what_may_pass_is_tried_again():
    with listening([503, 429, 200]) as hook:
        assert notify.post(hook.url, OUTCOME) is None
    assert len(hook.requests) == 3


@pytest.mark.parametrize(("code", "tries"), [(500, 3), (404, 1), (302, 1)])
def test_what_does_not_pass_is_told_without_the_address(code, tries):
    with listening([code]) as hook:
        reason = notify.post(f"{hook.url}/s3cret?token=s3cret", OUTCOME)
    assert reason == f"the summary was not delivered: {hook.url.removeprefix('http://')} answered {code}"
    assert len(hook.requests) == tries


def test_nobody_there():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    reason = notify.post(f"http://user:s3cret@127.0.0.1:{port}/s3cret", OUTCOME)
    assert reason == f"the summary was not delivered: 127.0.0.1:{port}: Connection refused"


def test_a_host_that_never_answers():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        reason = notify.post(f"http://127.0.0.1:{port}/", OUTCOME, tries=1, timeout_s=0.1)
    assert reason == f"the summary was not delivered: 127.0.0.1:{port}: no answer in time"


@pytest.mark.parametrize("url", ["http://", "http://host:notaport/", "https:///path", "http://[::1/"])
def test_what_is_no_address(url):
    assert notify.post(url, OUTCOME) == "the address given with --notify-url is not a valid one"
