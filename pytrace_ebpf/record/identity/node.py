"""What the node knows of a container: names from the files of the kubelet and of the container's runtime, of which only root can make any. No network, no API.

    /var/log/containers/POD_NAMESPACE_CONTAINER-ID.log     links that the kubelet makes
    /var/log/pods/NAMESPACE_POD_UID/                       its folders of logs
    config.json, config.v2.json                            the runtime's of each container: names, labels, image

They are found below the root of process 1, which is the node's also in a pod with hostPID. Names of files are only read, never followed; what stands in a file a user
may have had a say in (labels), so a process without rights reads it (sandbox.py), and of it only what has a column.
"""

import json
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from pytrace_ebpf.printable import printable
from pytrace_ebpf.record.identity.environment import LONGEST
from pytrace_ebpf.record.parsing import sandbox
from pytrace_ebpf.record.process.pinned import Descriptor

ROOT = Path("/proc/1/root")
_LINKS, _LOGS = "var/log/containers", "var/log/pods"
_CONFIGS = (
    "run/containerd/io.containerd.runtime.v2.task/k8s.io/{}/config.json",
    "run/k3s/containerd/io.containerd.runtime.v2.task/k8s.io/{}/config.json",
    "run/containers/storage/overlay-containers/{}/userdata/config.json",
    "var/lib/containers/storage/overlay-containers/{}/userdata/config.json",
    "var/lib/docker/containers/{}/config.v2.json",
)
_MOST_NAMES, _MOST_BYTES, _PATIENCE_S = 10_000, 1 << 20, 5.0
# By column the annotations and labels that runtimes have: containerd's CRI, CRI-O, the kubelet's (Docker), Podman.
_SAID = {
    "k8s_namespace_name": ("io.kubernetes.cri.sandbox-namespace", "io.kubernetes.pod.namespace"),
    "k8s_pod_name": ("io.kubernetes.cri.sandbox-name", "io.kubernetes.pod.name"),
    "k8s_pod_uid": ("io.kubernetes.cri.sandbox-uid", "io.kubernetes.pod.uid"),
    "k8s_container_name": ("io.kubernetes.cri.container-name", "io.kubernetes.container.name"),
    "image": ("io.kubernetes.cri.image-name", "io.kubernetes.cri-o.ImageName", "org.opencontainers.image.base.name"),
    "image_digest": ("io.kubernetes.cri-o.ImageRef",),
    "build_commit": ("org.opencontainers.image.revision", "org.label-schema.vcs-ref"),
    "service_version": ("org.opencontainers.image.version",),
}


@cache
def node_root() -> Path:
    """The root of process 1; where that may not be seen that of this process."""
    with suppress(OSError):
        os.stat(ROOT / ".")  # noqa: PTH116 - of what the link leads to
        return ROOT
    return Path("/")


def names(container: str, pod: str, root: Path | None = None) -> dict[str, str]:
    """The columns of trace.identity that the node (`root`: else node_root()) says of a container and a pod ("" for none), by id and uid. Nothing is raised."""
    root = root or node_root()
    found = _configured(container, root) if container else {}
    for name in _listed(root / _LINKS) if container else ():
        if name.endswith(f"-{container}.log"):
            parts = name.removesuffix(f"-{container}.log").split("_")
            if len(parts) == 3:
                found |= dict(zip(("k8s_pod_name", "k8s_namespace_name", "k8s_container_name"), parts, strict=True))
    for name in _listed(root / _LOGS) if pod else ():
        parts = name.split("_")
        if len(parts) == 3 and parts[2] == pod:
            found |= dict(zip(("k8s_namespace_name", "k8s_pod_name"), parts, strict=False))
    return {column: printable(text[:LONGEST]) for column, text in found.items() if text}


def _listed(folder: Path) -> Iterator[str]:
    with suppress(OSError), os.scandir(folder) as entries:
        yield from (os.fsencode(entry.name).decode("utf-8", "replace") for entry in islice(entries, _MOST_NAMES))


def _configured(container: str, root: Path) -> dict[str, str]:
    """What the runtime's file says."""
    for place in _CONFIGS:
        with suppress(OSError):
            file = Descriptor(os.open(root / place.format(container), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY))
            found = os.fstat(file.fileno())
            if stat.S_ISREG(found.st_mode) and found.st_uid == 0 and found.st_size <= _MOST_BYTES:
                with suppress(ValueError):
                    return sandbox.parsers.ask("container", {}, [file], dict[str, str], _PATIENCE_S, ("container", container))
    return {}


def read_container(_: dict[str, Any], files: list[int]) -> dict[str, str]:
    """What _configured() asks for: by column. Raises ValueError."""
    try:
        content = json.loads(os.pread(files[0], _MOST_BYTES, 0))
    except RecursionError:
        raise ValueError("the file of a container is nested too deeply") from None
    docker = _of(content, "Config")
    said = {**_of(docker, "Labels"), **_of(content, "annotations")}
    for labels in ("io.kubernetes.cri-o.Labels", "io.kubernetes.cri-o.Annotations"):
        with suppress(ValueError, TypeError):
            said = {**_of({"": json.loads(said.get(labels, ""))}, ""), **said}
    found = {column: next((said[name] for name in names if isinstance(said.get(name), str)), "") for column, names in _SAID.items()}
    if docker:
        found["image"], found["image_digest"] = found["image"] or docker.get("Image"), found["image_digest"] or content.get("Image")
        found["container_name"] = "" if found["k8s_pod_name"] else str(content.get("Name", "")).removeprefix("/")
    return {column: text[:LONGEST].encode("utf-8", "replace").decode() for column, text in found.items() if isinstance(text, str) and text}


def _of(value: Any, name: str) -> dict[str, Any]:
    inner = value.get(name) if isinstance(value, dict) else None
    return inner if isinstance(inner, dict) else {}
