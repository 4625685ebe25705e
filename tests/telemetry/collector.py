"""Collect spans on a real socket: OTLP over HTTP."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.fakes.upstream import Reply, Request, Upstream, in_a_thread


@dataclass(frozen=True, slots=True)
class Span:
    """A collected span with the name of its service."""

    service: str
    name: str
    trace: str
    id: str
    parent: str
    attributes: dict[str, Any]
    failed: bool


@dataclass(slots=True)
class Collector:
    """The received spans, decoded and as bytes."""

    url: str
    spans: list[Span] = field(default_factory=list)
    raw: bytes = b""

    def take(self, body: bytes) -> None:
        self.raw += body
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            service = _plain(resource.resource.attributes)["service.name"]
            for scope in resource.scope_spans:
                for span in scope.spans:
                    ids = span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()
                    self.spans.append(Span(service, span.name, *ids, _plain(span.attributes), span.status.code == 2))


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector("")

    def take(request: Request) -> Reply:
        assert request.path == "/v1/traces"
        collector.take(request.body)
        return Reply(b"")

    with in_a_thread(Upstream(take)) as server:
        collector.url = f"{server.url}/v1/traces"
        yield collector


def _plain(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}
