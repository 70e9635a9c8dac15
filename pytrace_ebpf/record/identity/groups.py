"""Which container, pod and unit of systemd a process is in, by the paths of its control groups.

Docker, Podman, containerd and CRI-O name the group of a container by its id; the kubelet names that of a pod by its uid, with dashes or underscores. Below
/user.slice a user makes groups as he likes, and could call one as somebody's pod: nothing there is believed to be a pod.
"""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

CONTAINER = re.compile(r"(?:^|[/:-])([0-9a-f]{64})(?=[/.:]|$)", re.ASCII)
_POD = re.compile(r"(?:^|[/-])pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?=[./:]|$)", re.ASCII)
_KUBELET, _USERS = "kubepods", "/user.slice"
_UNIT = re.compile(r"/([\w@:.\\-]+\.service)(?=/|$)", re.ASCII)
_ENGINES = ("docker.service", "containerd.service", "crio.service", "kubelet.service", "podman.service")
_LONGEST = 256


class Groups(NamedTuple):
    """ "" for none. `believed`: no user can have made up the container."""

    container_id: str = ""
    pod_uid: str = ""
    unit: str = ""
    believed: bool = False


def paths(content: str) -> Iterator[str]:
    """The paths in the contents of /proc/PID/cgroup, of version 2 and 1."""
    for line in content.split("\n"):
        fields = line.split(":", 2)
        if len(fields) == 3:
            yield fields[2]


def groups(of: Iterable[str]) -> Groups:
    """What these paths say: the innermost container, pod and unit. Of version 1 any hierarchy may have them."""
    found = Groups()
    for path in of:
        users = path.startswith(_USERS)
        containers, pods = CONTAINER.findall(path), _POD.findall(path) if _KUBELET in path and not users else []
        if containers and not (found.container_id and found.believed):
            found = found._replace(container_id=containers[-1], believed=not users)
        if pods and not found.pod_uid:
            found = found._replace(pod_uid=pods[-1].replace("_", "-"))
        units = [unit for unit in _UNIT.findall(path) if unit not in _ENGINES]
        if units and not containers and not pods and not found.unit:
            found = found._replace(unit=units[-1][:_LONGEST])
    return found._replace(unit="") if found.container_id or found.pod_uid else found
