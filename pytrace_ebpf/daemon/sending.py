"""Sends each window of what the daemon samples to a server: OTLP profiles to a Collector, or pprof to Pyroscope."""

import gzip
import json
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping
from urllib.parse import urlencode

import pandas as pd

from pytrace_ebpf.daemon.destination import OTLP
from pytrace_ebpf.daemon.push import Payload
from pytrace_ebpf.view.export import otlp, pprof
from pytrace_ebpf.view.export.pprof import Span
from pytrace_ebpf.view.export.profile_windows import contexts_of

MOST_SERVICES = 32  # of a window that go to Pyroscope, each with a request of its own: those with most time; the others together
_OTHERS = "others"
_COMPRESSION = 5


def most_payloads(kind: str) -> int:
    """How many a window makes at most."""
    return 1 if kind == OTLP else MOST_SERVICES + 1


def payloads(kind: str, rows: pd.DataFrame, functions: pd.DataFrame, span: Span, resources: Mapping[int, otlp.Attributes]) -> Iterator[Payload]:
    """What to send of a window: `rows` of table profile, the `functions` they join (schema.FUNCTIONS), and by process its attributes (otlp.resource)."""
    if kind == OTLP:
        body = b"".join(otlp.request(contexts_of(rows, functions), span, resources))
        yield Payload("/v1development/profiles", gzip.compress(body, _COMPRESSION), "application/x-protobuf", "gzip")
        return
    for service, own in _by_service(rows, resources):
        contexts = contexts_of(own, functions)
        if len(contexts.rows()):
            profile = gzip.compress(b"".join(pprof.profile(contexts, span, service, resources)), _COMPRESSION)
            yield _to_pyroscope(service, profile, [*contexts.values], span)


def _by_service(rows: pd.DataFrame, resources: Mapping[int, otlp.Attributes]) -> Iterator[tuple[str, pd.DataFrame]]:
    """The rows of each service, whose processes pprof's labels tell apart."""
    time: dict[str, int] = defaultdict(int)
    name = {pid: str(resources.get(pid, {}).get("service.name", "unknown_service")) for pid in rows["pid"].unique().tolist()}
    for pid, samples in (rows["samples"] + rows["off_samples"]).groupby(rows["pid"]).sum().items():
        time[name[pid]] += int(samples)
    kept = set(sorted(time, key=lambda each: -time[each])[:MOST_SERVICES])
    service = rows["pid"].map({pid: each if each in kept else _OTHERS for pid, each in name.items()})
    yield from ((str(each), own) for each, own in rows.groupby(service))


def _to_pyroscope(service: str, profile: bytes, types: list[str], span: Span) -> Payload:
    """A form with the profile and what its sample types are. https://grafana.com/docs/pyroscope/latest/reference-server-api"""
    config = {
        name: {"units": "samples" if at == 0 else "nanoseconds", "display-name": name, "aggregation": "sum", "cumulative": False, "sampled": at == 0}
        for at, name in enumerate(types)
    }
    begun_s = span.unix_ns // 10**9
    named = "".join(c if (c.isalnum() and c.isascii()) or c in "._-" else "_" for c in service)
    query = {
        "name": named, "from": begun_s, "until": max(begun_s + 1, (span.unix_ns + span.duration_ns) // 10**9), "format": "pprof",
        "spyName": "pytrace-ebpf",
    }  # fmt: skip
    boundary = uuid.uuid4().hex
    fields = (("profile", "profile.pb.gz", profile), ("sample_type_config", "sample_type_config.json", json.dumps(config).encode()))
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"; filename="{file}"\r\nContent-Type: application/octet-stream\r\n\r\n'.encode()
        + content
        + b"\r\n"
        for name, file, content in fields
    ]
    body = b"".join(parts) + f"--{boundary}--\r\n".encode()
    return Payload(f"/ingest?{urlencode(query)}", body, f"multipart/form-data; boundary={boundary}")
