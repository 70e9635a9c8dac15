"""Who a process is: by made-up environments, control groups and files of a node, in the order in which they count."""

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from pytrace_ebpf.record.identity import identity as who
from pytrace_ebpf.record.identity import node
from pytrace_ebpf.record.identity.environment import LONGEST, said, variables
from pytrace_ebpf.record.identity.groups import Groups, groups, paths
from pytrace_ebpf.record.identity.identities import Known
from pytrace_ebpf.record.identity.identity import identity, workload
from pytrace_ebpf.trace.identity import NAMES

ID, OTHER = "0123456789abcdef" * 4, "f" * 64
UID = "9a3c1f2e-0b1d-4c5e-8f70-112233445566"
SYSTEMD = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID.replace('-', '_')}.slice"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (b"SECRET=1\0OTEL_SERVICE_NAME=shop\0", {"service_name": "shop"}),
        (b"OTEL_RESOURCE_ATTRIBUTES=service.name=a,service.version=1%2C2\0OTEL_SERVICE_NAME=b\0", {"service_name": "b", "service_version": "1,2"}),
        (b"OTEL_SERVICE_NAME=\0OTEL_RESOURCE_ATTRIBUTES= service.name = a , junk, =x,k8s.pod.name=p", {"service_name": "a", "k8s_pod_name": "p"}),
        (b"OTEL_RESOURCE_ATTRIBUTES=deployment.environment=old,deployment.environment.name=new", {"deployment_environment": "new"}),
        (b"OTEL_RESOURCE_ATTRIBUTES=vcs.ref.head.revision=abc,password=hunter2", {"build_commit": "abc"}),
        (b"OTEL_SERVICE_NAME=first\0OTEL_SERVICE_NAME=second\0", {"service_name": "first"}),
        (b"OTEL_SERVICE_NAME=a\xff\x1b[31m%\n\0", {"service_name": "a\ufffd?[31m%"}),
        (b"OTEL_SERVICE_NAME=" + b"x" * 100_000 + b"\0", {"service_name": "x" * LONGEST}),
        (b"OTEL_SERVICE_NAMES=x\0XOTEL_SERVICE_NAME=y\0OTEL_EXPORTER_OTLP_HEADERS=token\0OTEL_\0=\0\0", {}),
    ],
)
def test_the_environment_says_what_two_variables_say(environment: bytes, expected: dict[str, str]) -> None:
    assert said(variables(environment)) == expected


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (f"0::{SYSTEMD}/cri-containerd-{ID}.scope\n", Groups(ID, UID, "", True)),
        (f"0::{SYSTEMD}/crio-{ID}.scope/container\n", Groups(ID, UID, "", True)),
        (f"12:cpu,cpuacct:/kubepods/besteffort/pod{UID}/{ID}\n1:name=systemd:/\n", Groups(ID, UID, "", True)),
        (f"5:cpuset:/\n4:memory:/kubepods/pod{'ab' * 16}/{ID}\n", Groups(ID, "ab" * 16, "", True)),
        (f"9:pids:/system.slice/containerd.service/kubepods-pod{UID.replace('-', '_')}.slice:cri-containerd:{ID}\n", Groups(ID, UID, "", True)),
        (f"0::/../../kubepods-burstable-pod{UID.replace('-', '_')}.slice/cri-containerd-{ID}.scope\n", Groups(ID, UID, "", True)),
        (f"0::/docker/{OTHER}/kubelet/kubepods/besteffort/pod{UID}/{ID}\n", Groups(ID, UID, "", True)),
        (f"0::/system.slice/docker-{ID}.scope\n", Groups(ID, "", "", True)),
        (f"3:memory:/docker/{ID}\n", Groups(ID, "", "", True)),
        (f"0::/machine.slice/libpod-{ID}.scope/container\n", Groups(ID, "", "", True)),
        (f"0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope\n", Groups(ID, "", "", False)),
        (f"0::/user.slice/user-1000.slice/user@1000.service/kubepods/pod{UID}/{ID}\n", Groups(ID, "", "", False)),
        ("0::/system.slice/shop.service\n", Groups("", "", "shop.service")),
        ("0::/system.slice/system-gunicorn.slice/gunicorn@shop.service/worker\n", Groups("", "", "gunicorn@shop.service")),
        ("0::/user.slice/user-1000.slice/session-3.scope\n", Groups()),
        ("0::/\n:\nx:y\n", Groups()),
        (f"0::/pod{UID}\n1:a:/{ID}0\n2:b:/{ID[:-1]}g\n", Groups()),
    ],
)
def test_control_groups_name_container_pod_and_unit(content: str, expected: Groups) -> None:
    assert groups(paths(content)) == expected


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root of a node."""
    monkeypatch.setattr(who, "host_id", lambda: "machine")
    monkeypatch.setattr(who, "node_name", lambda: "node-1")
    (tmp_path / "var/log/containers").mkdir(parents=True)
    (tmp_path / f"var/log/pods/prod_shop-6d4cf56db6-x7k2p_{UID}/web").mkdir(parents=True)
    (tmp_path / "var/log/pods/none").mkdir()
    return tmp_path


def test_a_pod_without_a_word_of_its_program_has_the_name_of_its_workload(host: Path) -> None:
    (host / f"var/log/containers/shop-6d4cf56db6-x7k2p_prod_web-{ID}.log").symlink_to("/nowhere")
    found = identity(Groups(ID, UID, "", True), {}, node.names(ID, UID, host))
    assert {name: value for name, value in found.items() if value} == {
        "service_name": "shop", "service_instance_id": "prod.shop-6d4cf56db6-x7k2p.web", "container_id": ID, "k8s_namespace_name": "prod",
        "k8s_pod_name": "shop-6d4cf56db6-x7k2p", "k8s_pod_uid": UID, "k8s_container_name": "web", "k8s_node_name": "node-1", "host_id": "machine",
    }  # fmt: skip
    assert tuple(found) == NAMES


def test_a_container_is_named_when_the_node_names_it_also_when_its_process_has_ended(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "node_root", lambda: host)
    known = Known(None, Groups(ID, "", "", True))
    known.look()
    assert known.is_unnamed and known.columns["k8s_pod_name"] is None
    (host / f"var/log/containers/db-0_prod_postgres-{ID}.log").symlink_to("/nowhere")
    known.look()
    assert not known.is_unnamed and [known.columns[name] for name in ("service_name", "k8s_pod_name", "k8s_container_name")] == [
        "db",
        "db-0",
        "postgres",
    ]


def test_the_program_names_its_service_and_the_node_its_pod(host: Path) -> None:
    program = {"service_name": "pay", "service_version": "2", "k8s_pod_name": "a-lie", "k8s_node_name": "said", "container_id": OTHER}
    found = identity(Groups(ID, UID, "", True), program, node.names(ID, UID, host))
    assert [found[name] for name in ("service_name", "service_version", "k8s_pod_name", "k8s_node_name", "container_id")] == [
        "pay", "2", "shop-6d4cf56db6-x7k2p", "said", ID,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        ("shop-6d4cf56db6-x7k2p", "shop"),
        ("db-0", "db"),
        ("agent-x7k2p", "agent"),
        ("report-28912340-abcde", "report"),
        ("shop", "shop"),
        ("my-hello", "my-hello"),
    ],
)
def test_the_workload_of_a_pod(pod: str, expected: str) -> None:
    assert workload(pod) == expected


CRI = {
    "annotations": {
        "io.kubernetes.cri.sandbox-namespace": "prod", "io.kubernetes.cri.sandbox-name": "shop-0", "io.kubernetes.cri.container-name": "web",
        "io.kubernetes.cri.image-name": "registry.example/shop:1.4", "secret": "hunter2",
    },
    "process": {"env": ["PASSWORD=hunter2"]},
}  # fmt: skip
CRIO = {
    "annotations": {
        "io.kubernetes.pod.name": "db-0",
        "io.kubernetes.cri-o.ImageRef": "sha256:77",
        "io.kubernetes.cri-o.Labels": '{"io.kubernetes.pod.namespace": "prod"}',
    }
}
DOCKER = {
    "Name": "/shop",
    "Image": "sha256:99",
    "Config": {"Image": "shop:2", "Labels": {"org.opencontainers.image.revision": "abc"}, "Env": ["PASSWORD=hunter2"]},
}


@pytest.mark.skipif(os.geteuid() != 0, reason="the runtime's files are root's")
@pytest.mark.parametrize(
    ("place", "content", "expected"),
    [
        (0, CRI, {"k8s_namespace_name": "prod", "k8s_pod_name": "shop-0", "k8s_container_name": "web", "image": "registry.example/shop:1.4"}),
        (2, CRIO, {"k8s_namespace_name": "prod", "k8s_pod_name": "db-0", "image_digest": "sha256:77"}),
        (4, DOCKER, {"container_name": "shop", "image": "shop:2", "image_digest": "sha256:99", "build_commit": "abc"}),
        (4, [1], {}),
        (4, {"Config": {"Labels": [], "Image": 7}, "Name": ["x"], "Image": {}}, {"container_name": "['x']"}),
        (0, {"annotations": {"io.kubernetes.pod.name": "a\u001b[31m\ud800" + "x" * 9999}}, {"k8s_pod_name": "a?[31m?" + "x" * (LONGEST - 7)}),
    ],
)  # fmt: skip
def test_the_files_of_the_runtime(tmp_path: Path, place: int, content: Any, expected: dict[str, str]) -> None:
    file = tmp_path / node._CONFIGS[place].format(ID)
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(content))
    assert node.names(ID, "", tmp_path) == expected


@pytest.mark.skipif(os.geteuid() != 0, reason="makes files of another user's")
def test_files_of_the_runtime_that_a_user_could_have_made_are_not_read(tmp_path: Path) -> None:
    file = tmp_path / node._CONFIGS[0].format(ID)
    file.parent.mkdir(parents=True)
    for make in (
        lambda: (file.write_text(json.dumps(CRI)), os.chown(file, 65534, 65534)),
        lambda: file.symlink_to("/etc/passwd"),
        lambda: os.mkfifo(file),
        lambda: file.mkdir(),
        lambda: file.write_text("[" * 100_000),
        lambda: file.write_text(" " * ((1 << 20) + 1)),
    ):
        make()
        assert node.names(ID, "", tmp_path) == {}
        file.rmdir() if file.is_dir() else file.unlink()


def test_the_tag_is_the_version_and_what_is_random_is_no_crash(host: Path) -> None:
    said_by_node = {"k8s_pod_name": "shop-0", "image": "registry:5000/shop:1.4@sha256:aa"}
    assert identity(Groups(ID, UID, "", True), {}, said_by_node)["service_version"] == "1.4"
    generator = random.Random(1)
    for _ in range(300):
        words = bytes(generator.choice(b"OTEL_RESOURCE_ATTRIBUTES=service.name,%=\0\xff:/-pod0a") for _ in range(60))
        said(variables(b"OTEL_RESOURCE_ATTRIBUTES=" + words))
        groups(paths(words.decode("utf-8", "replace")))
