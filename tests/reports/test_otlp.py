"""Telemetry as a collector gets it: real protobuf over real HTTP, decoded with the protocol's own classes."""

from __future__ import annotations

import socket
from datetime import UTC, datetime

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from embedctl.events import Rows, Summary
from embedctl.reports import otlp
from embedctl.reports.outcome import Outcome
from tests.reports.hook import listening

BEGAN = datetime(2026, 12, 1, 3, tzinfo=UTC)
SUMMARY = Summary(
    status="done", exit_code=0, destination="out", recipe="r", rows=Rows(read=10, written=10), units=10, tokens=90,
    truncated=0, padding=0.0, seconds={"total": 2.0, "encode": 1.5},
)  # fmt: skip
GOOD = Outcome(
    job="docs", command="embed", destination="out", began=BEGAN, seconds=2.0, exit_code=0, status="done", run_rows=10,
    run_tokens=90, summary=SUMMARY,
)  # fmt: skip


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    for name in (*otlp.ENDPOINTS, "OTEL_SDK_DISABLED", "OTEL_SERVICE_NAME", "OTEL_EXPORTER_OTLP_HEADERS"):
        monkeypatch.delenv(name, raising=False)


def test_one_span_and_the_metrics(monkeypatch):
    with listening() as hook:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", hook.url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=s3cret")
        assert otlp.wanted()
        assert otlp.export(GOOD) is None
    bodies = {path: body for path, _, body in hook.requests}
    assert set(bodies) == {"/v1/traces", "/v1/metrics"}
    assert all(headers["x-key"] == "s3cret" for _, headers, _ in hook.requests)

    (spans,) = ExportTraceServiceRequest.FromString(bodies["/v1/traces"]).resource_spans
    (span,) = spans.scope_spans[0].spans
    attributes = {a.key: a.value for a in span.attributes}
    assert span.name == "embedctl embed"
    assert (span.start_time_unix_nano, span.end_time_unix_nano) == (
        int(BEGAN.timestamp() * 1e9),
        int((BEGAN.timestamp() + 2) * 1e9),
    )
    assert attributes["embedctl.rows.written"].int_value == 10
    assert attributes["embedctl.busy_s.encode"].double_value == 1.5
    assert {a.key: a.value.string_value for a in spans.resource.attributes}["service.name"] == "embedctl"

    (told,) = ExportMetricsServiceRequest.FromString(bodies["/v1/metrics"]).resource_metrics
    metrics = {m.name: m for m in told.scope_metrics[0].metrics}
    assert metrics["embedctl.run.rows"].gauge.data_points[0].as_int == 10
    rows = {p.attributes[-1].value.string_value: p.as_int for p in metrics["embedctl.rows"].gauge.data_points}
    assert rows["written"] == 10


def test_a_failed_run_is_a_span_with_an_error(monkeypatch):
    failed = Outcome(
        job="docs", command="sync", destination="out", began=BEGAN, seconds=1.0, exit_code=5, status="error",
        error="the disk is full",
    )  # fmt: skip
    with listening() as hook:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{hook.url}/v1/traces")
        assert otlp.export(failed) is None
    ((_, _, body),) = hook.requests
    (span,) = ExportTraceServiceRequest.FromString(body).resource_spans[0].scope_spans[0].spans
    assert (span.status.code, span.status.message) == (2, "the disk is full")


def test_nothing_is_sent_unless_asked(monkeypatch):
    assert not otlp.wanted()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert not otlp.wanted()


def test_a_collector_that_refuses_is_a_reason_not_a_traceback(monkeypatch, capsys):
    with listening([400]) as hook:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"{hook.url}/s3cret")
        reason = otlp.export(GOOD)
    assert reason is not None
    assert reason.startswith("telemetry was not delivered")
    assert "s3cret" not in reason
    assert capsys.readouterr().err == ""


def test_no_collector(monkeypatch, capsys):
    monkeypatch.setattr(otlp, "TIMEOUT_S", 0.3)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    assert str(otlp.export(GOOD)).startswith("telemetry was not delivered")
    assert capsys.readouterr().err == ""
