"""A real web service whose time goes to one planted cause after the other, and what is said of it: by pytrace-ebpf, py-spy and VizTracer.

It sets up what it needs, with gunicorn, uvicorn, PostgreSQL, redis and HTTP peers; plants each cause; attaches for 10 s, and reads what
`report` says first, `--by wait` and `--by request`. What was expected stands in causes.py. What one run finds takes the place of what an earlier one
found of the same cause in the same way. As root:

    scripts/service/run.py [CAUSE ...] [--busy 20] [--duration 10] [--only exact] [--keep DIR] [--page docs/service.md]
"""

import argparse
import contextlib
import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from backends import CACHE, HERE, PYTHON, Backends, free_port, listens, set_up, wait_for
from causes import CAUSES, USUAL, Cause
from table import write_page, write_table

OURS = (sys.executable, "-m", "pytrace_ebpf")
WARM_S, PATIENCE_S, VIZTRACER_S = 2.0, 120.0, 15.0
WAYS = ("exact", "sampled", "py-spy", "viztracer")
BUSY, SPIN = 20, "while True: pass"


class Service:
    """gunicorn with one of the programs, and its clients."""

    def __init__(self, backends: Backends, program: str) -> None:
        port = free_port()
        how = {"shop": ["-w", "2", "--threads", "8"], "suggest": ["-w", "1", "-k", "uvicorn_worker.UvicornWorker"]}[program]
        words = [PYTHON, "-m", "gunicorn", *how, "-b", f"127.0.0.1:{port}", "--log-level", "warning", "--timeout", "600", f"{program}:app"]
        self._backends, self.url = backends, f"http://127.0.0.1:{port}"
        self.process = backends.start(words, cwd=HERE / "programs", env=backends.environment)
        wait_for(lambda: listens(port) and len(self.workers) == int(how[1]), "gunicorn")
        self.clients: subprocess.Popen[str] | None = None

    @property
    def workers(self) -> list[int]:
        return [int(pid) for pid in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()]

    def ask(self, load: dict[str, int]) -> None:
        """Begin to."""
        words = [f"{self.url}{path}={clients}" for path, clients in load.items()]
        self.clients = self._backends.start(
            ["/usr/bin/python3", HERE / "programs" / "load.py", *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def answered(self) -> list[int]:
        """By path of the load, how often until now."""
        assert self.clients and self.clients.stdin and self.clients.stdout
        self.clients.stdin.write("\n")
        self.clients.stdin.flush()
        return [int(word) for word in self.clients.stdout.readline().split()]

    def __enter__(self) -> "Service":
        return self

    def __exit__(self, *_: object) -> None:
        if self.clients:
            self._backends.end(self.clients)
        self._backends.end(self.process)


def said(words: list[str], folder: Path, name: str, patience: float = PATIENCE_S) -> str:
    """What a command prints; kept in a file, too."""
    with (folder / name).open("w") as out, contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(words, stdout=out, stderr=out, stdin=subprocess.DEVNULL, timeout=patience, cwd=HERE.parents[1])
    return (folder / name).read_text()


def first_finding(text: str) -> str:
    """Of a report; empty for none."""
    found = re.search(r"^1\. (.*?)(?=^\d\. |^Left out|^\S|\Z)", text, re.MULTILINE | re.DOTALL)
    return " ".join(found[1].split()) if found else ""


def judged(cause: Cause, first: str) -> dict[str, Any]:
    """Which of the expected words a first finding has."""
    return {
        "cause": bool(re.search(cause.cause, first)),
        "what": bool(re.search(cause.what, first)),
        "line": next((kind for kind, lines in cause.lines.items() if any(f"({line})" in first for line in lines)), ""),
    }


def attached(cause: Cause, pid: int, duration: float, words: tuple[str, ...], folder: Path) -> dict[str, Any]:
    """attach, and the reports of its trace."""
    trace, began = folder / "trace", time.monotonic()
    shutil.rmtree(trace, ignore_errors=True)
    told = said([*OURS, "attach", "--pid", str(pid), "--duration", f"{duration:g}", *words, "-o", str(trace)], folder, "attach")
    if not trace.is_dir():
        raise SystemExit(f"nothing was recorded: {told}")
    first = first_finding(said([*OURS, "report", str(trace)], folder, "report"))
    found = {"seconds": time.monotonic() - began, "first": first} | judged(cause, first)
    for by in ("wait", "request"):
        expected = cause.by_wait if by == "wait" else cause.by_request
        found[f"by_{by}"] = bool(re.search(expected, said([*OURS, "report", str(trace), "--by", by], folder, f"by-{by}")))
    return found


def py_spy(cause: Cause, workers: list[int], folder: Path) -> dict[str, Any]:
    """`py-spy dump --locals` of each worker: whether it shows a line of the cause, and its locals name what is waited for."""
    began = time.monotonic()
    text = "".join(said([str(PYTHON.with_name("py-spy")), "dump", "--locals", "--pid", str(pid)], folder, f"py-spy-{pid}") for pid in workers)
    what = re.sub(r"^.*`|`.*$", "", cause.what)
    return {"seconds": time.monotonic() - began, "line": any(line in text for line in cause.lines["line"]), "what": bool(re.search(what, text))}


def viztracer(workers: list[int], folder: Path) -> dict[str, Any]:
    """`viztracer --attach` to the first worker: whether a function of the cause's lines has most of the time of those of the program."""
    began, out = time.monotonic(), folder / "viztracer.json"
    words = [str(PYTHON.with_name("viztracer")), "--attach", str(workers[0]), "-t", "2", "-o", str(out)]
    said(words, folder, "viztracer", VIZTRACER_S)
    if not out.exists():
        return {"seconds": None}
    total: dict[str, float] = {}
    for event in json.loads(out.read_text())["traceEvents"]:
        if event.get("ph") == "X" and f"{HERE}/programs/" in event["name"]:
            total[event["name"]] = total.get(event["name"], 0) + event["dur"]
    most = max(total, key=lambda name: total[name]) if total else ""
    return {"seconds": time.monotonic() - began, "first": most}


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    """Beside so many others that want a core."""
    others = [subprocess.Popen(["/usr/bin/python3", "-c", SPIN]) for _ in range(processes)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def tried(cause: Cause, backends: Backends, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """One cause, all ways."""
    found: dict[str, Any] = {"cause": cause.name, "busy": args.busy}
    with Service(backends, cause.program) as service, cause.plant(backends.environment, service.workers), busy(args.busy):
        service.ask({**USUAL[cause.program], **cause.load})
        time.sleep(WARM_S)
        for way in args.only:
            here = folder / cause.name / way
            here.mkdir(parents=True, exist_ok=True)
            if way == "py-spy":
                found[way] = py_spy(cause, service.workers, here)
            elif way == "viztracer":
                found[way] = viztracer(service.workers, here)
            else:
                found[way] = attached(cause, service.process.pid, args.duration, ("--sample",) if way == "sampled" else (), here)
    return found


def kept(file: Path, results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Results with those that the file has of other causes and ways, in the order of CAUSES; the file has them then, too."""
    of = {each["cause"]: each for each in (json.loads(file.read_text()) if file.exists() else [])}
    for each in results:
        of[each["cause"]] = of.get(each["cause"], {}) | each
    out = [of[cause.name] for cause in CAUSES if cause.name in of]
    file.write_text(json.dumps(out, indent=1))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [cause.name for cause in CAUSES]
    parser.add_argument("causes", nargs="*", metavar="CAUSE", help="some of: " + " ".join(names) + "; all without any")
    parser.add_argument("--busy", type=int, default=0, help="beside so many processes that compute")
    parser.add_argument("--duration", type=float, default=10.0)
    parser.add_argument("--only", type=lambda text: text.split(","), default=WAYS, help=f"some of {','.join(WAYS)}")
    parser.add_argument("--keep", type=Path, help="keep traces and reports in this folder")
    parser.add_argument("--page", type=Path, help=f"write the tables of all that was run, idle and beside {BUSY}, into this page, between its marks")
    args = parser.parse_args()
    if unknown := set(args.causes).difference(names):
        parser.error(f"no such cause: {' '.join(sorted(unknown))}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that nothing is left running
    set_up()
    chosen = [cause for cause in CAUSES if not args.causes or cause.name in args.causes]
    with tempfile.TemporaryDirectory(prefix="pytrace-service-") as folder, Backends(Path(folder)) as backends:
        keep, results = args.keep or Path(folder) / "kept", []
        for cause in chosen:
            results.append(tried(cause, backends, args, keep))
            print(json.dumps(results[-1], indent=1), flush=True)
    results = kept(CACHE / f"results-{args.busy}.json", results)
    write_table(results)
    if args.page:
        write_page(args.page, kept(CACHE / "results-0.json", []), kept(CACHE / f"results-{BUSY}.json", []))


if __name__ == "__main__":
    main()
