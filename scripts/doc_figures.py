"""What shows each figure of README and the docs: of every section that has some a command, in the section itself or here.

    scripts/check_docs.py --list        prints the list, and which of them `make check-docs` compares itself

A figure is a number with a unit or a per cent; what stands as code is an option, not a figure. tests/unit/repository/test_doc_figures.py fails where a
section with figures has no command.
"""

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).parent.parent
_FIGURE = re.compile(r"(?<![\w.-])\d[\d.,]*(?:\s?%|\s(?:µs|ns|ms|s|MB|GB|MiB|GiB|KB|KiB|kB|times|bytes?|seconds?|minutes?|Hz)\b)")
_COMMAND = re.compile(
    r"scripts/(?:bench|experiments|suites|workloads)/\w+\.py|scripts/[\w/]+\.sh|make (?:bench|check-docs|demo|docs|experiments|test(?:-[a-z]+)?)\b"
)

CHECK, CODE = "make check-docs", "a default or a bound of the code: CONSTANTS has most"
HOW_TO = "the commands of the section, of its program beside the page: once, on two cores"
ONCE = "measured once, by hand"

SHOWN: dict[str, dict[str, str]] = {
    "README.md": {"": CHECK, "Record": CODE},
    "docs/comparison.md": {"Cost, honestly": "scripts/bench/options.py --rounds 3 --programs fib,orders"},
    "docs/columns.md": {"*": "make docs"},
    "docs/cost.md": {
        "The collector": "scripts/bench/record.py",
        "Where all cores are busy": CODE,
        "Who held the GIL, against a sampling profiler": ONCE,
    },
    "docs/daemon.md": {"How it works": "scripts/bench/daemon.py", "": CODE, "Users share what it takes": CODE, "Where others look": CODE},
    "docs/critical-path.md": {
        "": ONCE,
        "What it is": CODE,
        "In Python, and as JSON": CODE,
    },
    "docs/diagnosis.md": {"": CODE},
    "docs/dump.md": {"": ONCE, "Arguments and variables": CODE, "How sure": CODE},
    "docs/diff.md": {"A test suite against its last state": CODE},
    "docs/experiments.md": {"The report": "pytrace-ebpf experiment, as the page begins"},
    "docs/exports.md": {"": CODE},
    "docs/faults.md": {"*": "make test-faults"},
    "docs/findings.md": {"*": "make experiments"},
    "docs/flight-recorder.md": {"*": CODE},
    "docs/service.md": {
        "*": "scripts/service/run.py --page docs/service.md",
        "What recording costs there": "scripts/service/cost.py --rounds 7 --seconds 4",
    },
    "docs/format.md": {"*": "make docs"},
    "docs/how-it-works.md": {
        "": CHECK,
        "Which source a running program gets": CODE,
        "Every line": "scripts/bench/lines.py",
        "The source `usdt`": ONCE,
        "Every instruction": "scripts/bench/options.py --rounds 3 --programs fib",
        "What Python's allocators do": CODE,
        "What malloc does": CODE,
        "Samples instead of calls": CODE,
        "Without eBPF": CODE,
        "What a program can tell of it": ONCE,
    },
    "docs/how-to/convoy.md": {"*": HOW_TO},
    "docs/how-to/host.md": {"*": HOW_TO},
    "docs/how-to/loop.md": {"*": HOW_TO},
    "docs/how-to/service.md": {"*": HOW_TO},
    "docs/how-to/steps.md": {"*": HOW_TO},
    "docs/how-to/train.md": {"*": HOW_TO},
    "docs/install.md": {"As a Debian package": "make deb"},
    "docs/limits.md": {"Where it runs": CODE, "What recording changes": CODE, "What it does not see": ONCE},
    "docs/notebook.md": {"What does this cell do?": CODE},
    "docs/operators.md": {"Limits": ONCE},
    "docs/programs.md": {"Programs of every make": ONCE, "Interpreters in a process": ONCE},
    "docs/quick-start.md": {"Record": CODE},
    "docs/reading-a-report.md": {
        "The head": CODE,
        "The four states": CODE,
        "By request": CODE,
        "By task": CODE,
        "By wait": HOW_TO,
        "By memory": CODE,
        "By line, by opcode": "scripts/bench/agent.py",
        "By GIL": CODE,
        "Other views": "scripts/bench/export.py --calls 5000000",
    },
    "docs/security.md": {"Traces on request": CODE, "Processes": CODE, "Output": CODE, "What the daemon sends and serves": CODE, "Parsing": ONCE},
    "docs/top.md": {"*": ONCE},
}
"""By page and heading (a page's own beginning is ""; "*": any other section of the page)."""

CONSTANTS: tuple[tuple[str, str, str, float], ...] = (
    ("README.md", r"stacks, (\d+) times a second", "options.recording.HZ", 1),
    ("docs/notebook.md", r"sampled (\d+) times a second", "self_recording._SAMPLED", 1),
    ("docs/exports.md", r"more than (\d+) MB", "view.export.small.MOST", 1e6),
    ("docs/flight-recorder.md", r"up to (\d+) times; the first condition", "rebuild.triggers.MOST_CONDITIONS", 1),
    ("docs/flight-recorder.md", r"Without a size it is (\d+) GiB", "record.flight.held._MOST", 2**30),
    ("docs/daemon.md", r"six windows, and (\d+) MiB", "daemon.push.MOST_WAITING_BYTES", 2**20),
    ("docs/security.md", r"(\d+) MiB \(of a disk under 5 GB: 5 %\)", "record.output.writer._LEAST_FREE", 2**20),
    ("docs/security.md", r"a look after (\d+) ms", "record.sampling.remote_sampler._MOST_NS", 1e6),
    ("docs/how-it-works.md", r"a block of at least (\d+) KiB", "trace.streams.native_memory._SAMPLE_BYTES", 1024),
    ("docs/limits.md", r"The report warns above (\d+) %", "runs.recorded._MUCH", 0.01),
    ("docs/limits.md", r"(\d+) MiB the agent stays out", "record.agent.allowance._LEAST_LEFT", 2**20),
    ("docs/reading-a-report.md", r"Above (\d+) % the sentence is a warning", "runs.recorded._MUCH", 0.01),
    ("docs/reading-a-report.md", r"where that was (\d+) ms or more", "view.tasks._WORTH_SAYING_NS", 1e6),
    ("docs/reading-a-report.md", r"last hold was shorter than ([\d.]+) ms", "analyze.waits.gil.SHORT_HOLD_NS", 1e6),
    ("docs/diff.md", r"\*\*at most (\d+) % of comparisons", "diff.verdict.RATE", 0.01),
    ("docs/diff.md", r"It has the ([\d,]+) longest paths", "diff.page._MOST", 1),
    ("docs/diff.md", r"\(([\d,]+) of them where there are more\)", "diff.verdict._MOST", 1),
)
"""Page, what stands there, what the code has (below pytrace_ebpf; of several the last), and the unit that the page has it in."""


class Section(NamedTuple):
    """One that has figures; `commands`: what shows them."""

    page: str
    heading: str
    figures: list[str]
    commands: list[str]
    own: bool
    """Whether these stand in the section itself."""


def pages() -> list[Path]:
    """README and all of the docs."""
    return [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]


def sections() -> Iterator[Section]:
    """Of all pages."""
    for path in pages():
        page = str(path.relative_to(REPOSITORY))
        told = SHOWN.get(page, {})
        for heading, text in _parts(path.read_text()):
            figures = _FIGURE.findall(re.sub(r"`[^`]*`", "", text))
            if figures:
                own = list(dict.fromkeys(_COMMAND.findall(text)))
                elsewhere = told.get(heading, told.get("*"))
                yield Section(page, heading, figures, own or ([elsewhere] if elsewhere else []), bool(own))


def _parts(text: str) -> Iterator[tuple[str, str]]:
    """Headings, the page's own as "", each with its prose and tables, without blocks of code."""
    heading, lines, fenced = "", list[str](), False
    for line in [*text.splitlines(), "# "]:
        if line.startswith("```"):
            fenced = not fenced
        elif not fenced and line.startswith("#"):
            yield heading, "\n".join(lines)
            heading, lines = "" if line.startswith("# ") else line.lstrip("# "), []
        elif not fenced and not line.startswith("    "):
            lines.append(line)


def constants() -> Iterator[tuple[str, bool]]:
    """A sentence for each of CONSTANTS, and whether the page is right."""
    for page, pattern, name, unit in CONSTANTS:
        found = re.search(pattern, re.sub(r"\s+", " ", (REPOSITORY / page).read_text()))
        module, _, own = f"pytrace_ebpf.{name}".rpartition(".")
        value = getattr(importlib.import_module(module), own)
        number = float(value[-1] if isinstance(value, tuple) else value) / unit
        yield (
            f"{page}: {found.group() if found else pattern}; {name}: {number:g}",
            found is not None and abs(float(found[1].replace(",", "")) - number) < 1e-9,
        )
