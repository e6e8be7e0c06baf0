"""OpenTelemetry: one span and a few metrics a run, to the collector that the environment names.

Nothing happens unless `OTEL_EXPORTER_OTLP_ENDPOINT` (or its `_TRACES_`, `_METRICS_` kin) is set; the `OTEL_*` variables
mean what they mean everywhere. Needs the extra `otel`. Leaves: None, or why nothing was delivered.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from typing import Any

from embedctl import __version__
from embedctl.reports.outcome import COMPLETE, Outcome

ENDPOINTS = tuple(f"OTEL_EXPORTER_OTLP_{kind}ENDPOINT" for kind in ("", "TRACES_", "METRICS_"))
TIMEOUT_S = 5.0


def wanted(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the environment names a collector."""
    off = environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    return not off and any(environ.get(name) for name in ENDPOINTS)


def export(outcome: Outcome) -> str | None:
    """Send one run; None when the collector took it, else the reason. Never raises."""
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError:
        return "OTEL_EXPORTER_OTLP_ENDPOINT is set, but OpenTelemetry is not installed: pip install 'embedctl[otel]'"
    quiet = logging.getLogger("opentelemetry")
    heard = _Kept()
    quiet.addHandler(heard)
    propagated, quiet.propagate = quiet.propagate, False  # its complaints are told as one note, not as a traceback
    try:
        sent = []
        if _endpoint("TRACES_"):
            sent.append(_send_span(outcome, OTLPSpanExporter(timeout=TIMEOUT_S)))
        if _endpoint("METRICS_"):
            sent.append(_send_metrics(outcome, OTLPMetricExporter(timeout=TIMEOUT_S)))
    except Exception as exc:
        return f"telemetry was not delivered: {type(exc).__name__}"
    finally:
        quiet.propagate = propagated
        quiet.removeHandler(heard)
    return None if all(sent) else f"telemetry was not delivered: {heard.last or 'the collector refused it'}"


class _Kept(logging.Handler):
    """Keeps the last complaint, without addresses, which may hold secrets."""

    last = ""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING:
            self.last = re.sub(r"\S*://\S+", "…", " ".join(record.getMessage().split()))[:200]


def _endpoint(kind: str) -> bool:
    return bool(os.environ.get(ENDPOINTS[0]) or os.environ.get(f"OTEL_EXPORTER_OTLP_{kind}ENDPOINT"))


def _resource() -> Any:
    from opentelemetry.sdk.resources import Resource

    named = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": "embedctl"}
    return Resource.create({**named, "service.version": __version__})


def _attributes(outcome: Outcome) -> dict[str, Any]:
    of: dict[str, Any] = {
        "embedctl.job": outcome.job,
        "embedctl.command": outcome.command,
        "embedctl.destination": outcome.destination,
        "embedctl.status": outcome.status,
        "embedctl.exit_code": outcome.exit_code,
        "embedctl.run_rows": outcome.run_rows,
        "embedctl.run_tokens": outcome.run_tokens,
    }
    if outcome.summary is not None:
        of |= {f"embedctl.rows.{k}": v for k, v in outcome.summary.rows.to_json().items()}
        of |= {f"embedctl.busy_s.{k}": v for k, v in outcome.summary.seconds.items() if k != "total"}
        of |= {"embedctl.recipe": outcome.summary.recipe, "embedctl.vectors": outcome.summary.units}
    return of


def _send_span(outcome: Outcome, exporter: Any) -> bool:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.trace import SpanKind, Status, StatusCode

    results: list[bool] = []
    provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
    watched: Any = _Watched(exporter, results)
    provider.add_span_processor(SimpleSpanProcessor(watched))
    tracer = provider.get_tracer("embedctl", __version__)
    span = tracer.start_span(
        f"embedctl {outcome.command}",
        kind=SpanKind.INTERNAL,
        attributes=_attributes(outcome),
        start_time=_ns(outcome.began.timestamp()),
    )
    failed = outcome.exit_code not in COMPLETE
    span.set_status(Status(StatusCode.ERROR, outcome.error) if failed else Status(StatusCode.OK))
    span.end(end_time=_ns(outcome.ended.timestamp()))
    provider.shutdown()
    return all(results) and bool(results)


def _send_metrics(outcome: Outcome, exporter: Any) -> bool:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricExportResult

    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader], resource=_resource(), shutdown_on_exit=False)
    meter = provider.get_meter("embedctl", __version__)
    labels = {"job": outcome.job, "command": outcome.command}
    values = {
        ("embedctl.run.duration", "s"): outcome.seconds,
        ("embedctl.run.rows", "{row}"): outcome.run_rows,
        ("embedctl.run.tokens", "{token}"): outcome.run_tokens,
        ("embedctl.run.exit_code", "1"): outcome.exit_code,
    }
    for (name, unit), value in values.items():
        meter.create_gauge(name, unit=unit).set(value, labels)
    if outcome.summary is not None:
        rows = meter.create_gauge("embedctl.rows", unit="{row}")
        for state, count in outcome.summary.rows.to_json().items():
            rows.set(count, {**labels, "state": state})
    data = reader.get_metrics_data()
    provider.shutdown()
    return data is not None and exporter.export(data) is MetricExportResult.SUCCESS


class _Watched:
    """A span exporter that remembers whether it was heard."""

    def __init__(self, inner: Any, results: list[bool]) -> None:
        self._inner, self._results = inner, results

    def export(self, spans: Any) -> Any:
        from opentelemetry.sdk.trace.export import SpanExportResult

        result = self._inner.export(spans)
        self._results.append(result is SpanExportResult.SUCCESS)
        return result

    def shutdown(self) -> None:
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return bool(self._inner.force_flush(timeout_millis))


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
