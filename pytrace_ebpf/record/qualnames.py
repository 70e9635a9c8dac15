"""Qualified names from source files, for Pythons whose code objects carry none (before 3.11).

A function is found again by the line its code object begins at (the first decorator's, if any) and its plain name.
The rules are those of https://docs.python.org/3/glossary.html#term-qualified-name
"""

import ast
import warnings
from collections.abc import Callable, Iterable
from itertools import takewhile
from pathlib import Path

_FROZEN = "<frozen "
_MAX_SIZE = 2_000_000  # bytes; parsing takes about 1 s per MB
_MAX_FILES = 4096

# (first line, plain name) -> the qualified names of the functions that begin there
Index = dict[tuple[int, str], set[str]]
_indexes: dict[tuple[int, int, int, int], Index] = {}  # by device, inode, size and time: processes share their files


def for_process(pid: int, library: str) -> Callable[[str, int, str], str | None]:
    """`qualname(file, first_line, name)` for a process, through its own root and working directory.

    `library` is its standard library's folder, where the sources of frozen modules are.

    Where its mount namespace is ours this goes on working after the process has ended.
    """
    root, directory = _places(pid)

    def path_of(file: str) -> Path:
        if file.startswith(_FROZEN):
            file = f"{library}/{file[len(_FROZEN) : -1].replace('.', '/')}"
            file += "/__init__.py" if Path(f"{root}/{file}").is_dir() else ".py"
        # Joined as text: a Path would let an absolute name throw the root away.
        return Path(f"{root if file.startswith('/') else directory}/{file}")

    return lambda file, first_line, name: qualname(path_of, file, first_line, name)


def qualname(path_of: Callable[[str], Path], file: str, first_line: int, name: str) -> str | None:
    """The qualified name of the function `name` whose code begins at `first_line` of `file`, or None.

    `path_of(file)` is where that file can be read. None when it cannot, does not parse, or holds no such function (it
    was edited meanwhile). Several functions there (two lambdas on a line) give what their names share.
    """
    if name == "<module>" or (file.startswith("<") and not file.startswith(_FROZEN)):
        return name if name == "<module>" else None
    found = _index(path_of(file)).get((first_line, name), set())
    return _shared(found, name) if found else None


def _shared(names: Iterable[str], name: str) -> str:
    columns = zip(*(each.split(".") for each in names), strict=False)
    parts = [column[0] for column in takewhile(lambda column: len(set(column)) == 1, columns)]
    return ".".join(parts if parts and parts[-1] == name else [*parts, name])


def _index(path: Path) -> Index:
    try:
        status = path.stat()
        identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        if identity not in _indexes:
            if len(_indexes) >= _MAX_FILES:
                _indexes.clear()
            _indexes[identity] = _parse(path.read_bytes()) if status.st_size <= _MAX_SIZE else {}
        return _indexes[identity]
    except OSError:
        return {}


def _parse(source: bytes) -> Index:
    collector = _Collector()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the file's own, such as invalid escapes
            collector.visit(ast.parse(source))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    return collector.index


class _Collector(ast.NodeVisitor):
    """Visits every expression in the scope that evaluates it, and notes each scope that has a code object."""

    def __init__(self) -> None:
        self.index: Index = {}
        self.prefix = ""  # what stands before the name of a function defined here
        self.global_names: set[str] = set()

    def visit_Global(self, node: ast.Global) -> None:
        self.global_names.update(node.names)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._visit_all(*node.decorator_list, *_outer_parts(node.args), node.returns)
        self._enter(node.name, _first_line(node), node.body, locals_suffix=True)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self.visit_FunctionDef(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._visit_all(*node.decorator_list, *node.bases, *(keyword.value for keyword in node.keywords))
        self._enter(node.name, _first_line(node), node.body, locals_suffix=False)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._visit_all(*_outer_parts(node.args))
        self._enter("<lambda>", node.lineno, [node.body], locals_suffix=True)

    def visit_ListComp(self, node: ast.ListComp) -> None:
        self._comprehension("<listcomp>", node, node.elt)

    def visit_SetComp(self, node: ast.SetComp) -> None:
        self._comprehension("<setcomp>", node, node.elt)

    def visit_DictComp(self, node: ast.DictComp) -> None:
        self._comprehension("<dictcomp>", node, node.key, node.value)

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> None:
        self._comprehension("<genexpr>", node, node.elt)

    def _comprehension(
        self, name: str, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp, *results: ast.expr
    ) -> None:
        first, *others = node.generators
        self._visit_all(first.iter)  # evaluated by the scope around it
        self._enter(name, node.lineno, [first.target, *first.ifs, *others, *results], locals_suffix=False)

    def _enter(self, name: str, line: int, body: Iterable[ast.AST], locals_suffix: bool) -> None:
        qualified = name if name in self.global_names else self.prefix + name
        self.index.setdefault((line, name), set()).add(qualified)
        outer = self.prefix, self.global_names
        self.prefix, self.global_names = qualified + (".<locals>." if locals_suffix else "."), set()
        self._visit_all(*body)
        self.prefix, self.global_names = outer

    def _visit_all(self, *nodes: ast.AST | None) -> None:
        for node in nodes:
            if node is not None:
                self.visit(node)


def _first_line(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> int:
    return node.decorator_list[0].lineno if node.decorator_list else node.lineno


def _outer_parts(arguments: ast.arguments) -> list[ast.expr | None]:
    """Defaults and annotations: evaluated where the function is defined."""
    every = [*arguments.posonlyargs, *arguments.args, arguments.vararg, *arguments.kwonlyargs, arguments.kwarg]
    return [*arguments.defaults, *arguments.kw_defaults, *(each.annotation for each in every if each is not None)]


def _places(pid: int) -> tuple[str, str]:
    """How we reach a process's root and working directory; by name where its mount namespace is ours."""
    root, directory, namespace = (Path(f"/proc/{pid}/{name}") for name in ("root", "cwd", "ns/mnt"))
    try:
        if namespace.readlink() == Path("/proc/self/ns/mnt").readlink():
            return str(root.readlink()), str(directory.readlink())
    except OSError:
        pass  # it has ended: nothing will be found
    return str(root), str(directory)
