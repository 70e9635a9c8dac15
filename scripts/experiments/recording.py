"""What the experiments share: a workload recorded from its "ready" on, and a report in Markdown with its pictures."""

import argparse
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

import pytrace_ebpf
from pytrace_ebpf.errors import PytraceError
from pytrace_ebpf.experiment.settings import Setting
from pytrace_ebpf.record.options import Options
from pytrace_ebpf.record.rights.user import as_caller, invoking_user
from pytrace_ebpf.record.session import Session
from pytrace_ebpf.trace.reader import Trace

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
WORKLOADS = REPOSITORY / "scripts" / "workloads"
TORCH = Path(os.environ.get("PYTRACE_TORCH", "/var/lib/pytrace-ebpf/torch")) / "bin" / "python"
COLOURS = ("#4063a8", "#c8553d", "#3f8f4f", "#8a5aa5", "#b8862b", "#4f9aa8", "#777777")
REPORT = "report.md"


def directory(name: str, description: str | None, options: argparse.ArgumentParser) -> tuple[argparse.Namespace, Path]:
    """The command line of an experiment, and an empty place for its report; exits where there is none, or no PyTorch."""
    options.description, options.formatter_class = description, argparse.ArgumentDefaultsHelpFormatter
    options.add_argument("-o", "--output", type=Path, default=REPOSITORY / ".build" / "experiments" / name, help="where the report is written")
    args = options.parse_args()
    if not TORCH.exists():
        sys.exit(f"{TORCH} is missing: run make torch, or name the folder of its environment in PYTRACE_TORCH.")
    folder: Path = args.output
    with as_caller():
        if folder.is_dir() and any(folder.iterdir()):
            if not (folder / REPORT).exists():
                sys.exit(f"{folder} holds something else; name another directory with -o.")
            shutil.rmtree(folder / "traces", ignore_errors=True)
        (folder / "traces").mkdir(parents=True, exist_ok=True)
        (folder / REPORT).touch()
    return args, folder


def record(
    program: Path,
    words: Sequence[str],
    folder: Path,
    *,
    setting: Setting | None = None,
    environment: Mapping[str, str] | None = None,
    layers: tuple[str, ...] = ("operator", "blas"),
    segment_s: float = 1.0,
    settle_s: float = 0.0,
    more: Mapping[str, Any] | None = None,
) -> tuple[Trace, dict[str, Any]]:
    """Record what a program of PyTorch's Python does from its "ready" to its end; the trace, and the JSON that it says last.

    Importing torch and making data are over by then. Every `segment_s` the memory of the process is sampled, too, from
    `settle_s` before it goes on. `more`: fields of Options that are other than these. Exits where the program or the recording fails.
    """
    setting, user = setting or Setting(), invoking_user()
    as_user: dict[str, Any] = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []} if user else {}
    command = setting.command([str(TORCH), str(program), "--wait", *words])
    say(f"recording {shlex.join(command[command.index('--wait') - 1 :])} into {folder}")
    variables = {**os.environ, **setting.environment, **(environment or {})}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables, **as_user)
    assert process.stdin and process.stdout
    try:
        if process.stdout.readline() != "ready\n":
            sys.exit(f"{program.name} did not become ready; what it said is above.")
        session = Session(
            Options(**{"output": folder, "source": "agent", "streams": {"layers": layers} if layers else {}, "segment_s": segment_s, **(more or {})}),
            sys.argv,
        )
        try:
            session.start(process.pid)
            go_on = threading.Timer(settle_s, process.stdin.close)  # the end of its input is as good as a line
            go_on.start()
            session.run(lambda: False, lambda _: None)
            session.finish()
        finally:
            session.close()
        said = process.stdout.read().splitlines()
        if process.wait():
            sys.exit(f"{program.name} ended with exit code {process.returncode}; what it said is above.")
    except PytraceError as error:
        sys.exit(str(error))
    finally:
        process.kill()
        process.wait()
    return pytrace_ebpf.open(folder), json.loads(said[-1])


def say(line: str) -> None:
    """Report progress."""
    print(line, file=sys.stderr, flush=True)


def named_calls(trace: Trace, names: Iterable[str], columns: Sequence[str] = ()) -> pd.DataFrame:
    """The calls of Python functions of these qualified names, in the order of call_id, with `qualname` and `columns` of schema.CALLS.

    Of several functions of one name those of the one with the most time.
    """
    functions = trace.functions().set_index("func_id")["qualname"]
    wanted = functions[functions.isin(list(names))]
    calls = trace.calls(columns=list(dict.fromkeys(("call_id", "tid", "func_id", "start_ns", "end_ns", "wall_ns", "on_cpu_ns", *columns))))
    calls = calls[calls["func_id"].isin(wanted.index)]
    time = calls.groupby("func_id")["wall_ns"].sum().sort_values()
    longest = dict(zip(time.index.map(wanted), time.index, strict=True))
    calls = calls.assign(qualname=calls["func_id"].map(wanted))
    return calls[calls["func_id"] == calls["qualname"].map(longest)].reset_index(drop=True)


def machine(trace: Trace) -> str:
    """A sentence on what this was measured with."""
    host = trace.manifest["host"]
    models = [line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    torch = subprocess.run(
        [str(TORCH), "-c", "from importlib.metadata import version; print(version('torch'))"], capture_output=True, text=True, check=True
    )
    kernel = ".".join(str(host["kernel"]).split(".")[:2])
    return (
        f"{host['cpus']} cores ({models[0] if models else platform.machine()}), Linux {kernel}, "
        f"CPython {trace.manifest['target']['python_version']}, PyTorch {torch.stdout.strip()}."
    )


def waiting(traces: Iterable[Trace]) -> str:
    """A sentence on how long the recorded threads waited for a core, which shows how quiet the machine was; and on events lost."""
    wall = queued = lost = 0
    for trace in traces:
        outer = trace.calls(columns=["wall_ns", "runq_wait_ns"], depth=0)
        wall, queued = wall + int(outer["wall_ns"].sum()), queued + int(outer["runq_wait_ns"].fillna(0).sum())
        lost += sum(map(int, trace.manifest["lost"].values()))
    share = queued / wall if wall else 0
    quiet = "the machine was quiet" if share < 0.02 else "other programs had them meanwhile, so wall times are longer than they need be"
    return f"The recorded threads waited for a core {share:.1%} of their time: {quiet}. " + (
        f"{lost:,} events were lost." if lost else "No event was lost."
    )


class Report:
    """A report in Markdown, a part at a time; pictures are next to it."""

    def __init__(self, folder: Path, title: str) -> None:
        self._folder, self._parts = folder, [f"# {title}"]

    def text(self, *sentences: str) -> None:
        """A paragraph."""
        self._parts.append(" ".join(sentences))

    def head(self, title: str) -> None:
        self._parts.append(f"## {title}")

    def points(self, lines: Iterable[str]) -> None:
        """A list."""
        self._parts.append("\n".join(f"* {line}" for line in lines))

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """A table, numbers to the right. None is shown as "-"."""
        cells = [["-" if cell is None else str(cell) for cell in row] for row in rows]
        right = [all(cell[:1].isdigit() or cell[:1] in "-+" for cell in column) for column in zip(*cells, strict=True)] or [False] * len(columns)
        lines = [columns, ["---:" if number else "---" for number in right], *cells]
        self._parts.append("\n".join(f"| {' | '.join(line)} |" for line in lines))

    def picture(self, figure: Figure, name: str, says: str) -> None:
        """Write the picture next to the report and show it there, with a sentence on what it shows."""
        with as_caller():
            figure.savefig(self._folder / f"{name}.png", dpi=110)
        self._parts.append(f"![{says}]({name}.png)\n\n*{says}*")

    def write(self) -> None:
        """Write it and say where."""
        path = self._folder / REPORT
        with as_caller():
            path.write_text("\n\n".join(self._parts) + "\n")
        print(path)


def ms(ns: float) -> str:
    """Milliseconds with three figures."""
    value = float(ns) / 1e6
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}" if value >= 0.0995 else f"{value:.3f}"


def plain(axes: Any) -> None:
    """Axes without a box around them, small figures along them, on a logarithmic y axis plain ones."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
    if axes.get_yscale() == "log":
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("")
