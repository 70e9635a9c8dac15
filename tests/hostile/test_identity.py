"""A user's process that says much of itself, in a control group that is a pod's: what root's recording of it has of that."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import pytrace_ebpf
from pytrace_ebpf.identity_patterns import Who
from pytrace_ebpf.record.identity.choosing import Choosing
from pytrace_ebpf.record.process import matching
from tests.bpf.conftest import Recorder, attach
from tests.unit.record.identity.test_published import NOBODY, PUBLISHES, context, publish

__all__ = ["attach"]  # a fixture
pytestmark = [pytest.mark.skipif(os.geteuid() != 0, reason="the tracer is root here, and its target is not"), pytest.mark.bpf]
UID, CONTAINER = "9a3c1f2e-0b1d-4c5e-8f70-112233445566", "c0ffee00" * 8
HIERARCHIES = [Path("/sys/fs/cgroup", name) for name in ("pids", "memory", "cpu", "unified", "")]
SAID = {
    b"OTEL_SERVICE_NAME": b"shop\x1b]0;owned\x07\xff\n", b"PASSWORD": b"hunter2", b"LONG": b"x" * 100_000, b"\xff\xfe": b"\xff",
    b"OTEL_RESOURCE_ATTRIBUTES": b"k8s.pod.name=forged,deployment.environment=a%0Ab,service.version=" + b"7" * 100_000, b"OTEL_EXPORTER_OTLP_HEADERS": b"hunter2",
}  # fmt: skip


@pytest.fixture
def pod() -> Iterator[Path]:
    """A container's control group."""
    for root in HIERARCHIES:
        folders = [root / "kubepods", root / "kubepods/burstable", root / f"kubepods/burstable/pod{UID}"]
        if (root / "cgroup.procs").exists():
            (group := folders[-1] / CONTAINER).mkdir(parents=True, exist_ok=True)
            yield group
            for folder in (group, *reversed(folders)):
                folder.rmdir()
            return
    pytest.skip("no control groups can be made here")


def test_what_is_kept_of_a_users_process(attach: Callable[..., Recorder], pod: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching, "is_ours", lambda pid: False)  # what this one starts is not left out as the tracer's own
    words = ["/bin/sh", "-c", f'echo $$ > {pod}/cgroup.procs && exec setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups "$@"', "sh"]
    with subprocess.Popen(
        [*words, "/usr/bin/python3", "-c", PUBLISHES], env=SAID, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout and process.stdout.readline() == "ready\n"
        publish(process, "memfd", context({"service.instance.id": "i-7", "password": "hunter2"}))
        recorder = attach(process.pid, "--sample")
        recorder.stop()
        assert (
            {pid for pid, _ in Choosing(Who("pod", "forged")).there()}
            == {process.pid}
            == {pid for pid, _ in Choosing(Who("container", "c0ffee")).there()}
        )
        assert Choosing(Who("service", "hunter2")).there() == []
        process.kill()
        process.wait()
    trace = pytrace_ebpf.open(recorder.directory)
    row = trace.processes().set_index("pid").loc[process.pid]
    assert row["container_id"] == CONTAINER and row["k8s_pod_uid"] == UID and row["k8s_pod_name"] == "forged"  # nothing on the node says another one
    assert row["service_name"] == "shop?]0;owned?\ufffd" and row["service_version"] == "7" * 256 and row["deployment_environment"] == "a b"
    assert row["service_instance_id"] == "i-7"
    assert not any("hunter2" in str(value) for value in row)
    for kind, rows in (
        ("manifest", str(trace.manifest)),
        *((file.name, file.read_bytes().decode("latin-1")) for file in recorder.directory.rglob("*") if file.is_file()),
    ):
        assert "hunter2" not in rows, kind
