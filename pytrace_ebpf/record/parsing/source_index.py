"""Where functions begin in the source of a Python module, and their qualified names there.

The rules are those of https://docs.python.org/3/glossary.html#term-qualified-name
Parsed in a process without rights (sandbox.py), as somebody else wrote the file.
"""

import ast
import os
import warnings
from collections.abc import Iterable
from typing import Any

LARGEST = 2_000_000  # bytes; parsing takes about 1 s per MB
_MOST_NAMES = 8 << 20  # characters

# (first line, plain name) -> the qualified names of the functions that begin there
Index = dict[tuple[int, str], set[str]]


def read(_: dict[str, Any], files: list[int]) -> list[tuple[int, str, list[str]]]:
    """What is asked for an open file: (first line, plain name, qualified names), by line."""
    with os.fdopen(files[0], "rb", closefd=False) as file:
        index = parse(file.read(LARGEST + 1))
    return [(line, name, sorted(names)) for (line, name), names in sorted(index.items())]


def parse(source: bytes) -> Index:
    """Every function of a source; {} for one that is too large or does not parse."""
    if len(source) > LARGEST:
        return {}
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
        self._length = 0

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

    def _comprehension(self, name: str, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp, *results: ast.expr) -> None:
        first, *others = node.generators
        self._visit_all(first.iter)  # evaluated by the scope around it
        self._enter(name, node.lineno, [first.target, *first.ifs, *others, *results], locals_suffix=False)

    def _enter(self, name: str, line: int, body: Iterable[ast.AST], locals_suffix: bool) -> None:
        qualified = name if name in self.global_names else self.prefix + name
        self._length += len(qualified)
        if self._length > _MOST_NAMES:  # deep nesting of long names
            raise ValueError
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
