"""What names processes by who they are: service=shop, pod=prod/shop-*, container=web, unit=shop.service. Columns as trace.identity has them."""

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from pytrace_ebpf.services import service_of

KINDS = ("service", "pod", "container", "unit")
HELP = "service=NAME, pod=NAME or pod=NAMESPACE/NAME, container=NAME or the beginning of its id, unit=NAME; * stands for anything"
_COLUMNS = {"pod": ("k8s_pod_name",), "container": ("k8s_container_name", "container_name"), "unit": ("systemd_unit",)}
_WRITTEN = re.compile(f"({'|'.join(KINDS)})=(.+)", re.DOTALL)


class Who(NamedTuple):
    """One kind and a glob."""

    kind: str
    pattern: str

    @classmethod
    def parsed(cls, text: str) -> "Who | None":
        """That of a text such as service=shop; None for another text."""
        found = _WRITTEN.fullmatch(text)
        return cls(found[1], found[2]) if found else None

    def __str__(self) -> str:
        return f"{self.kind}={self.pattern}"

    def fits(self, row: Mapping[str, Any]) -> bool:
        """Whether a process is one of these: its columns of trace.identity, command and executable."""
        known = {column: value for column, value in row.items() if isinstance(value, str) and value}
        if self.kind == "service":
            return fnmatchcase(service_of(known), self.pattern) and bool(service_of(known))
        if self.kind == "pod" and "/" in self.pattern and "k8s_pod_name" in known:
            return fnmatchcase(f"{known.get('k8s_namespace_name', '')}/{known['k8s_pod_name']}", self.pattern)
        by_id = self.kind == "container" and "container_id" in known and fnmatchcase(known["container_id"], f"{self.pattern}*")
        return by_id or any(fnmatchcase(known[column], self.pattern) for column in _COLUMNS[self.kind] if column in known)
