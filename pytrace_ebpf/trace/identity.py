"""Who a process is, as columns of `processes`: OpenTelemetry's attributes of a resource, https://opentelemetry.io/docs/specs/semconv/resource."""

from typing import NamedTuple

from pytrace_ebpf.trace.table import Column


class Attribute(NamedTuple):
    """`names`: of the attribute, the one of today first; "" for what is none of OpenTelemetry's."""

    column: str
    names: tuple[str, ...]
    meaning: str


ATTRIBUTES = (
    Attribute("service_name", ("service.name",), "what its service is called, as docs/identity.md says; null where nobody says: then the script or module that runs is shown"),
    Attribute("service_version", ("service.version",), "the service's; of a pod whose program says none the tag of its image"),
    Attribute("service_instance_id", ("service.instance.id",), "which one of the service's processes or pods; of a pod whose program says none namespace.pod.container"),
    Attribute("deployment_environment", ("deployment.environment.name", "deployment.environment"), "production, staging"),
    Attribute("container_id", ("container.id",), "64 hexadecimal digits, from its control group"),
    Attribute("container_name", ("container.name",), "as Docker or Podman calls it; null in Kubernetes"),
    Attribute("k8s_namespace_name", ("k8s.namespace.name",), "of its pod"),
    Attribute("k8s_pod_name", ("k8s.pod.name",), "its pod"),
    Attribute("k8s_pod_uid", ("k8s.pod.uid",), "the pod's, from its control group"),
    Attribute("k8s_container_name", ("k8s.container.name",), "its container, as the pod calls it"),
    Attribute("k8s_node_name", ("k8s.node.name",), "of a process in a pod the node"),
    Attribute("host_id", ("host.id",), "the host's machine-id"),
    Attribute("systemd_unit", (), "the service of systemd that it belongs to, by its control group"),
    Attribute("build_commit", ("vcs.ref.head.revision", "vcs.repository.ref.revision"), "the commit that it was built of"),
    Attribute("image", ("container.image.name",), "its container's image, as the container's runtime has it"),
    Attribute("image_digest", ("oci.manifest.digest", "container.image.id"), "that image's digest, or its id: sha256:..."),
)  # fmt: skip
COLUMNS = tuple(
    Column(each.column, "string", "", f"{f'{each.names[0]}: ' if each.names else ''}{each.meaning}; null where that is not known", True)
    for each in ATTRIBUTES
)
OF_NAME = {name: each.column for each in ATTRIBUTES for name in reversed(each.names)}
"""By attribute its column."""
NAME_OF = {each.column: each.names[0] for each in ATTRIBUTES if each.names}
"""By column the name of its attribute."""
NAMES = tuple(each.column for each in ATTRIBUTES)
