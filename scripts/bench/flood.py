"""What users who flood the daemon cost another one: the windows that it writes, those in which the other one's processes are, and how long it takes to end.

    scripts/bench/flood.py [--seconds 40] [--flooders functions symbols starts]

Each flooder (tests/hostile/flooders.py) and each of the two steady programs has a user of its own; one of the steady ones is there before the flood, the other
one starts in the middle of it. Windows have 2 s. Needs root.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytrace_ebpf

ROOT = Path(__file__).resolve().parents[2]
WINDOW_S, PATIENCE_S, FIRST_USER = 2, 300.0, 70_000
STEADY = "handle_request"


def start(folder: Path, what: str, user: int) -> "subprocess.Popen[bytes]":
    """A program of flooders.py, once it is under way."""
    place = folder / f"{what}-{user}"
    place.mkdir()
    os.chown(place, user, user)
    words = [str(Path(sys.executable).resolve()), str(folder / "flooders.py"), what, str(place)]
    process = subprocess.Popen(words, user=user, group=user, extra_groups=[], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout and process.stdout.readline() == b"ready\n"
    return process


def report(folder: Path, steady: dict[int, int]) -> None:
    """`steady`: when each began, by process; ns since 1970."""
    trace = pytrace_ebpf.open(folder / "profile")
    profile = trace.profile().merge(trace.functions()[["func_id", "name"]], on="func_id", how="left")
    windows = profile[["start_ns", "end_ns"]].drop_duplicates()
    print(f"windows {len(windows)}, the longest {(windows['end_ns'] - windows['start_ns']).max() / 1e9:.1f} s; functions {len(trace.functions())}")
    for pid, began in steady.items():
        own = profile[(profile["pid"] == pid) & (profile["samples"] > 0)]
        named = own[own["name"] == STEADY]
        late = (named["end_ns"].min() - began) / 1e9 if len(named) else float("nan")
        possible = len(windows[windows["end_ns"] > began])
        seen, unnamed = named["start_ns"].nunique(), own[own["func_id"] < 0]["samples"].sum()
        print(f"steady {pid}: in {seen} windows of {possible}, its first one ended after {late:.1f} s; {unnamed} samples without a name")


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--flooders", nargs="*", default=["functions", "symbols", "starts"])
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="flood-"))
    folder.chmod(0o755)
    shutil.copy(ROOT / "tests/hostile/flooders.py", folder)
    (folder / "flooders.py").chmod(0o644)
    places = "".join(f'{key} = "{folder / name}"\n' for key, name in (("directory", "profile"), ("recordings", "rec"), ("run_directory", "run")))
    (folder / "daemon.toml").write_text(f'{places}window = "{WINDOW_S}s"\n')
    started = [start(folder, "steady", FIRST_USER)]
    steady = {started[0].pid: time.time_ns()}
    try:
        words = [sys.executable, "-m", "pytrace_ebpf", "daemon", "--config", str(folder / "daemon.toml")]
        daemon = subprocess.Popen(words, cwd=ROOT, stderr=(folder / "log").open("w"))
        while not (folder / "run/status.json").exists():
            assert daemon.poll() is None, (folder / "log").read_text()
            time.sleep(0.1)
        time.sleep(3 * WINDOW_S)
        started += [start(folder, what, FIRST_USER + at) for at, what in enumerate(args.flooders, 1)]
        time.sleep(args.seconds / 2)
        started.append(start(folder, "steady", FIRST_USER + 99))
        steady[started[-1].pid] = time.time_ns()
        time.sleep(args.seconds / 2)
        status = json.loads((folder / "run/status.json").read_text())
        began_s = time.monotonic()
        daemon.send_signal(signal.SIGTERM)
        daemon.wait(PATIENCE_S)
        print(f"SIGTERM took {time.monotonic() - began_s:.1f} s")
    finally:
        for process in started:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    report(folder, steady)
    print({key: status.get(key) for key in ("uptime_s", "cpu_s", "rss_bytes", "sampled", "lost_by_class")})
    for user in status.get("users", []):
        print(user)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
