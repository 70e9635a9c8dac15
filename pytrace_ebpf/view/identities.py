"""Who the processes of a trace are, in words: the service, its version, the pod and container. Columns as trace.identity has them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from pytrace_ebpf.printable import printable
from pytrace_ebpf.trace.identity import NAME_OF, NAMES
from pytrace_ebpf.units import plural

_SHOWN = 3
_COMMON = (
    "service_name", "service_version", "deployment_environment", "container_id", "container_name", "k8s_namespace_name", "k8s_pod_name", "k8s_container_name",
    "k8s_node_name", "host_id", "systemd_unit", "build_commit", "image",
)  # fmt: skip
_SAYS = frozenset(_COMMON) - {"host_id"}  # of a host alone nobody learns more than from the host's name


def identified(row: Mapping[str, Any]) -> dict[str, str]:
    """What is known of a process (a row of schema.PROCESSES), by the names of OpenTelemetry's attributes."""
    return {NAME_OF[column]: printable(value) for column, value in strings(row).items() if column in NAME_OF}


def identities(processes: pd.DataFrame) -> list[dict[str, Any]]:
    """The different ones of them: `processes`, how many, and by column what is known; those with most processes first. Without what only says which host it is."""
    rows = (strings(row) for row in processes[list(_COMMON)].to_dict("records"))
    counts = Counter(tuple(sorted(row.items())) for row in rows)
    found = [{"processes": count, **dict(row)} for row, count in counts.items()]
    return sorted((each for each in found if _SAYS & each.keys()), key=lambda each: -each["processes"])


def strings(row: Mapping[str, Any]) -> dict[str, str]:
    """The columns of a row of schema.PROCESSES that are known."""
    return {name: value for name in NAMES if isinstance(value := row.get(name), str) and value}


def words(of: Mapping[str, str]) -> str:
    """One of them: service shop 1.4 (production), commit abc, pod prod/shop-0, container web, node n1."""
    pod = "/".join(filter(None, (of.get("k8s_namespace_name"), of.get("k8s_pod_name"))))
    container = of.get("k8s_container_name") or of.get("container_name") or of.get("container_id", "")[:12]
    service = " ".join(filter(None, (of.get("service_name"), of.get("service_version"))))
    environment = f" ({of['deployment_environment']})" if of.get("deployment_environment") else ""
    named = (
        ("service", service + environment if service else ""), ("commit", of.get("build_commit", "")[:12]), ("pod", pod), ("container", container),
        ("node", of.get("k8s_node_name", "")), ("", of.get("systemd_unit", "") if of.get("systemd_unit") != of.get("service_name") else ""),
    )  # fmt: skip
    return printable(", ".join(f"{kind} {said}".strip() for kind, said in named if said))


def sentences(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each of identities(), the first ones; with how many processes it has where there are several."""
    several, more = len(found) > 1, len(found) - _SHOWN
    lines = [words(of) + (f": {plural(of['processes'], 'process')}" if several else "") for of in found[:_SHOWN]]
    return [*lines, f"and {more:,} more services or containers" if more > 1 else "and one more service or container"] if more > 0 else lines
