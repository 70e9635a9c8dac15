"""Who a process is, of all that is known: what it publishes, what its environment says, what its control groups are, what the node's files say.

Of a service what its program says goes first, and where it is from what the kernel and the node say; a service that does not say its name has that of
its workload in Kubernetes, in OpenTelemetry's order as far as a node's files know that:
https://opentelemetry.io/docs/specs/semconv/non-normative/k8s-attributes
"""

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import cache

from pytrace_ebpf.printable import printable
from pytrace_ebpf.record.identity.environment import LONGEST
from pytrace_ebpf.record.identity.groups import Groups
from pytrace_ebpf.record.identity.node import node_root
from pytrace_ebpf.trace.identity import NAMES

UNKNOWN: dict[str, str | None] = dict.fromkeys(NAMES)
"""The columns where nothing is known."""
_LETTERS = "bcdfghjklmnpqrstvwxz2456789"  # of which Kubernetes makes what is random in names, as nobody reads words into them
_WORKLOADS = tuple(
    re.compile(f"(.+?)-{suffix}") for suffix in (rf"[{_LETTERS}]{{6,10}}-[{_LETTERS}]{{5}}", r"\d{8,}-[a-z0-9]{5}", r"\d+", rf"[{_LETTERS}]{{5}}")
)  # a deployment's replica set, a cron job's job, a stateful set, a job or daemon set


def identity(groups: Groups, program: Mapping[str, str], node: Mapping[str, str]) -> dict[str, str | None]:
    """All columns of trace.identity. `program`: what the process says, published before environment; `node`: what files of the node say (names())."""
    kernel = {"container_id": groups.container_id, "k8s_pod_uid": groups.pod_uid, "systemd_unit": groups.unit, "host_id": host_id()}
    known = {"image": "", **program} | {name: text for name, text in {**node, **kernel}.items() if text and name not in _OF_PROGRAM}
    for name in _OF_PROGRAM:
        known[name] = program.get(name) or node.get(name, "")
    if pod := known.get("k8s_pod_name"):
        known.setdefault("k8s_node_name", node_name())
        container, image = known.get("k8s_container_name", ""), known["image"]
        known["service_name"] = known["service_name"] or workload(pod)
        known["service_version"] = known["service_version"] or _tag(image)
        known["service_instance_id"] = known["service_instance_id"] or ".".join(filter(None, (known.get("k8s_namespace_name"), pod, container)))
    return {name: known.get(name) or None for name in NAMES}


_OF_PROGRAM = ("service_name", "service_version", "service_instance_id", "deployment_environment", "build_commit")


def workload(pod: str) -> str:
    """What a pod belongs to, by the name that its controller gave it; its own where none did."""
    return next((found[1] for pattern in _WORKLOADS if (found := pattern.fullmatch(pod))), pod)


def _tag(image: str) -> str:
    """The tag of an image's name, else its digest: shop:1.4@sha256:..."""
    name, _, digest = image.partition("@")
    tag = name.rpartition("/")[2].partition(":")[2]
    return tag or digest


@cache
def host_id() -> str:
    """The node's machine-id; "" where it has none."""
    return _line("etc/machine-id")


@cache
def node_name() -> str:
    """What Kubernetes calls the node: as NODE_NAME says, by which a pod is told (spec.nodeName), else the host's name, which the kubelet takes."""
    return os.environ.get("NODE_NAME", "") or _line("etc/hostname")


def _line(place: str) -> str:
    with suppress(OSError), (node_root() / place).open("rb") as file:
        return printable(file.read(LONGEST).decode("utf-8", "replace").split("\n")[0])
    return ""
