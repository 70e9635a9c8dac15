"""The layers: which package may import which, which may print, and how long a file or a function may be."""

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from pytrace_ebpf.cli.main import COMMANDS

PACKAGE = Path(__file__).parents[3] / "pytrace_ebpf"
MODULES = sorted(PACKAGE.rglob("*.py"))
NAMES = [str(path.relative_to(PACKAGE)) for path in MODULES]
# Packages that a package may import from, besides itself and the top (errors, version).
MAY_IMPORT = {
    "processors": set(),
    "trace": set(),
    "rebuild": {"processors", "trace"},
    "derive": {"processors", "trace", "rebuild"},
    "analyze": {"processors", "derive", "trace", "rebuild"},
    "rules": {"analyze", "derive", "trace", "rebuild"},
    "view": {"analyze", "derive", "trace"},
    "experiment": {"view", "analyze", "derive", "trace"},
    "diff": {"experiment", "view", "analyze", "derive", "trace"},
    "record": {"processors", "trace", "rebuild"},
    "daemon": {"record", "view", "analyze", "derive", "trace"},
    "terminal": {"trace", "record"},
    "options": {"view", "analyze", "trace", "record"},
    "runs": {"terminal", "options", "diff", "view", "trace", "record"},
    "cli": {"runs", "rules", "terminal", "options", "daemon", "diff", "experiment", "view", "analyze", "derive", "trace", "record"},
    "workers": {"cli", "options", "daemon", "view", "analyze", "derive", "trace", "record", "processors"},
}
PRINT = ("cli", "runs", "terminal", "options", "workers")
OF_A_MEMORY_MAP = "(?:mem|maps|smaps|smaps_rollup|numa_maps|pagemap|map_files|cmdline|environ)"  # of /proc/PID
LINES_OF_A_FILE = 400
LINES_OF_A_FUNCTION = 60


def every_module(rule: Callable[[Path], None]) -> Callable[[], None]:
    """A test that holds every module to a rule, and names all that break it: one for each module would cost more than what it looks at."""

    def test() -> None:
        broken = []
        for path in MODULES:
            try:
                rule(path)
            except AssertionError as error:
                broken.append(f"{path.relative_to(PACKAGE)}: {error}")
        assert not broken, "\n".join(broken)

    test.__name__, test.__doc__ = rule.__name__, rule.__doc__
    return test


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def room(path: Path) -> str:
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else ""


def imports(path: Path) -> Iterator[str]:
    """Dotted names of what a module imports, wherever in it; `from a import b` gives a.b."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}:{node.lineno}: relative import; write the whole name"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@every_module
def test_lower_layers_do_not_import_higher_ones(path: Path) -> None:
    if room(path) == "":
        return  # the top: `open` and `python -m` import the layers
    allowed = MAY_IMPORT[room(path)] | {room(path)}
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == PACKAGE.name and len(parts) > 1 and parts[1] in MAY_IMPORT:
            assert parts[1] in allowed, f"{room(path)} may not import {name}"


def runtime_imports(path: Path) -> set[str]:
    """Names as of imports(), but none that is there for types alone."""
    left_out = {
        id(below)
        for node in ast.walk(tree(path))
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for below in ast.walk(node)
    }
    found = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ImportFrom) and id(node) not in left_out:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
    return found


def test_modules_import_one_another_in_no_circle() -> None:
    """Also where they import it only as it is needed. A window is a trace, and a trace gives windows."""
    names = {".".join((PACKAGE.name, *path.relative_to(PACKAGE).with_suffix("").parts)): path for path in MODULES if path.name != "__init__.py"}
    uses = {name: runtime_imports(path) & names.keys() for name, path in names.items()}
    uses["pytrace_ebpf.trace.reader"].remove("pytrace_ebpf.trace.window")
    assert len(uses["pytrace_ebpf.record.session"]) > 10
    while free := [name for name, needed in uses.items() if not needed & uses.keys()]:
        for name in free:
            del uses[name]
    assert not uses, f"in circles, or above one: {sorted(uses)}"


@every_module
def test_only_one_module_touches_bcc(path: Path) -> None:
    if path.relative_to(PACKAGE) != Path("workers/compiling.py"):
        assert not [name for name in imports(path) if name.split(".")[0] == "bcc"]


@every_module
def test_only_processes_without_rights_decode_machine_code(path: Path) -> None:
    """record/parsing/disassembly.py is imported by what their modules, parsers.py, import; nothing else loads capstone."""
    if path.relative_to(PACKAGE) != Path("record/parsing/disassembly.py"):
        assert not [name for name in imports(path) if name.split(".")[0] == "capstone"]


@every_module
def test_what_a_program_can_make_wait_for_ever_is_read_in_one_place(path: Path) -> None:
    """Memory of a process, and the files for which the kernel takes the lock of its memory map: others ask these modules, which free what stands still."""
    if str(path.relative_to(PACKAGE)) in ("record/kernel/memory_map.py", "record/process/pinned.py"):
        return
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.JoinedStr):  # a path with the number of a process in it
            assert not re.search(rf"/proc/.*/{OF_A_MEMORY_MAP}\b", ast.unparse(node)), f"{path.name}:{node.lineno}"
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and isinstance(node.right, ast.Constant):
            assert not re.fullmatch(OF_A_MEMORY_MAP, str(node.right.value)), f"{path.name}:{node.lineno}"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "open" and node.args:  # of Pinned
            assert not re.fullmatch(f"'({OF_A_MEMORY_MAP})'", ast.unparse(node.args[0])), f"{path.name}:{node.lineno}"
        elif isinstance(node, ast.Attribute):
            assert node.attr != "process_vm_readv", f"{path.name}:{node.lineno}"


@every_module
def test_only_the_command_line_prints_and_exits(path: Path) -> None:
    if room(path) in PRINT or path.name in ("__main__.py", "notebook.py"):
        return
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in ("print", "exit", "quit", "sys.exit"), f"{path.name}:{node.lineno}: {called}"
        elif isinstance(node, ast.Raise) and node.exc is not None:
            assert "SystemExit" not in ast.unparse(node.exc), f"{path.name}:{node.lineno}: raises SystemExit"


@every_module
def test_a_module_says_its_one_idea_and_stays_short(path: Path) -> None:
    text = path.read_text()
    if not text:
        return  # an __init__.py that only marks a package
    docstring = ast.get_docstring(tree(path))
    assert docstring, "no docstring"
    assert docstring.splitlines()[0].endswith((".", ":")), "the first line of the docstring is no sentence"
    assert text.count("\n") <= LINES_OF_A_FILE, "too long: does it hold one idea?"
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or 0) - node.lineno + 1
            assert lines <= LINES_OF_A_FUNCTION, f"{node.name} has {lines} lines"


def test_there_is_a_file_for_each_command_and_no_other() -> None:
    assert {path.stem for path in (PACKAGE / "cli").glob("*.py")} == {*COMMANDS, "main", "__init__"}


def test_names_say_what_things_are() -> None:
    assert not [name for name in NAMES if any(word in name.lower() for word in ("util", "manager", "helper", "_v2"))]


def test_reading_needs_nothing_of_recording() -> None:
    """The read half imports where there is no bcc and no ELF reader, as on a laptop."""
    modules = [".".join(("pytrace_ebpf", *Path(n).with_suffix("").parts)) for n in NAMES]
    read = [name for name in modules if name.split(".")[1] in ("trace", "rebuild", "analyze", "view", "experiment", "diff")]
    program = (
        "import sys, importlib\n"
        "sys.modules['bcc'] = None\n"
        "for name in sys.argv[1:]: importlib.import_module(name.removesuffix('.__init__'))\n"
        "assert not [name for name in sys.modules if name.startswith('pytrace_ebpf.record')]\n"
    )
    subprocess.run([sys.executable, "-c", program, *read], check=True)


def test_the_agents_files_use_one_another_in_no_circle() -> None:
    """A file and its header are one."""
    folder = PACKAGE.parent / "probes" / "agent"
    uses: dict[str, set[str]] = {}
    for path in [*folder.glob("*.[ch]")]:
        included = re.findall(r'#include "(\w+)\.h"', path.read_text())
        uses.setdefault(path.stem, set()).update({name for name in included if name != path.stem})
    assert uses["session"] and uses["arena"]
    while free := [name for name, needed in uses.items() if not needed & uses.keys()]:
        for name in free:
            del uses[name]
    assert not uses, f"in circles, or above one: {sorted(uses)}"


@every_module
def test_the_c_library_is_loaded_in_one_place(path: Path) -> None:
    """And by what runs alone, with Python's own library."""
    if path.relative_to(PACKAGE) not in (Path("record/libc.py"), Path("record/rights/drop_privileges.py"), Path("workers/parsing.py")):
        assert "CDLL(None" not in path.read_text()
