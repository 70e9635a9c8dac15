"""The words of a rule: `parsed` makes a Rule of them, or says which word is wrong. docs/rules.md has the grammar."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple, NoReturn, TypeVar

from pytrace_ebpf.errors import UsageError
from pytrace_ebpf.rules.rule import COROUTINE, REQUEST, Form, Group, Rule
from pytrace_ebpf.trace.schema import OF_THE_INTERPRETER, WAIT_KINDS
from pytrace_ebpf.trace.states import STATES
from pytrace_ebpf.units import nanoseconds

WAITS = tuple(kind for kind in WAIT_KINDS if kind not in ("preempted", *OF_THE_INTERPRETER))
"""What `no wait` is of, where it does not say: not what other threads do to this one."""
_OF_KINDS = {"io": ("io-read", "io-write", "net")}
SCOPES = ("thread", "task", "process")
_STATES = {state.name.replace("_", "-"): state.name for state in STATES} | {"wall": "wall"}
_RESERVED = frozenset(["never", "only", "within", "from", "before", "every", "then", "takes", "at", "raises", "gets", "no", "or", "in", "while"])
_WORD = re.compile(r"""'([^']*)'|"([^"]*)"|([^\s'"]+)""")
_RANGE = re.compile(r"(-?\d+(?:\.\d+)?)?\.\.(-?\d+(?:\.\d+)?)?", re.ASCII)

_Choice = TypeVar("_Choice")


class WrongWordError(UsageError):
    """A rule that is none; `column`: where in its text, from 0."""

    def __init__(self, said: str, column: int) -> None:
        super().__init__(said)
        self.column = column


class _Word(NamedTuple):
    text: str
    column: int
    is_quoted: bool


def parsed(name: str, text: str, groups: Mapping[str, Group]) -> Rule:
    """The rule of this text; `groups`: names that it may have for patterns. Raises WrongWordError."""
    return _Reader(name, text, groups).rule()


class _Reader:
    def __init__(self, name: str, text: str, groups: Mapping[str, Group]) -> None:
        self._text, self._groups, self._at = text, groups, 0
        self._words, self._rule = _words(text), Rule(name, text, Form.NEVER)

    def rule(self) -> Rule:
        first = self._peek()
        begins: dict[str, Callable[[], Rule]] = {"never": self._never, "every": self._every, "at": self._at_most, "no": self._no_wait}
        if first in begins:
            self._at += 1
            rule = begins[first]()
        else:
            rule = self._of_function()
        if self._at < len(self._words):
            self._fail(f"`{self._words[self._at].text}` follows a rule that is complete")
        return rule

    def _never(self) -> Rule:
        functions = self._group("a function")
        return replace(self._rule, form=Form.NEVER, functions=functions, others=self._group("a function") if self._take("within") else ())

    def _every(self) -> Rule:
        functions = self._group("a function")
        self._want("then")
        others = self._group("a function")
        self._want("within")
        limit = self._time()
        return replace(self._rule, form=Form.THEN, functions=functions, others=others, limit_ns=limit, scope=self._scope())

    def _at_most(self) -> Rule:
        self._want("most")
        most = self._number()
        functions = self._group("a function")
        self._want("in")
        self._want("one")
        others = (REQUEST,) if self._take("request") else self._group("a function")
        return replace(self._rule, form=Form.AT_MOST, most=most, functions=functions, others=others)

    def _no_wait(self) -> Rule:
        self._want("wait")
        kinds = self._kinds() if self._take("of") else WAITS
        limit = self._time() if self._take("above") else 0
        if self._take("while"):
            return replace(self._rule, form=Form.NO_WAIT, kinds=kinds, limit_ns=limit, locked=True, others=self._lock())
        others: Group = ()
        if self._take("in"):
            self._want("a")
            self._want("coroutine")
            others = (COROUTINE,)
        elif self._take("within"):
            others = self._group("a function")
        return replace(self._rule, form=Form.NO_WAIT, kinds=kinds, limit_ns=limit, others=others)

    def _lock(self) -> Group:
        self._want("a")
        self._want("lock")
        others = self._group("a function") if self._take("of") else ()
        self._want("is")
        self._want("held")
        return others

    def _of_function(self) -> Rule:
        rule = replace(self._rule, functions=self._group("never, every, at most, no wait, or a function"))
        word = self._next("only within, only from, before, takes, raises or gets")
        if word.text == "only":
            if self._take("within"):
                return replace(rule, form=Form.ONLY_WITHIN, others=self._group("a function"))
            self._want("from")
            return replace(rule, form=Form.ONLY_FROM, others=self._group("a module or function"))
        if word.text == "before":
            return replace(rule, form=Form.PRECEDES, others=self._group("a function"), scope=self._scope())
        if word.text == "takes":
            self._want("at")
            self._want("most")
            limit = self._time()
            state = self._choice(_STATES) if self._at < len(self._words) else "wall"
            return replace(rule, form=Form.TAKES, limit_ns=limit, state=state)
        if word.text == "raises":
            return replace(rule, form=Form.RAISES, exceptions=self._exceptions())
        if word.text == "gets":
            return self._gets(replace(rule, form=Form.GETS))
        self._at -= 1
        self._fail(f"`{word.text}` stands where only within, only from, before, takes, raises or gets does")

    def _gets(self, rule: Rule) -> Rule:
        rule = replace(rule, argument=self._next("the name of an argument").text)
        word = self._next("of type, in or matching")
        if word.text == "of":
            self._want("type")
            return replace(rule, type=self._next("a type").text)
        if word.text == "matching":
            return replace(rule, matching=self._next("a pattern").text)
        if word.text == "in":
            said = self._next("a range, as 1..10")
            found = _RANGE.fullmatch(said.text)
            if not found or not any(found.groups()):
                self._at -= 1
                self._fail(f"`{said.text}` is no range: give one as 1..10, 0.. or ..99")
            least, most = (None if each is None else float(each) for each in found.groups())
            return replace(rule, values=(least, most))
        self._at -= 1
        self._fail(f"`{word.text}` stands where of type, in or matching does")

    def _exceptions(self) -> Group:
        if self._take("nothing"):
            return ()
        self._want("only")
        found = [self._next("an exception").text]
        while self._take("or"):
            found.append(self._next("an exception").text)
        return tuple(found)

    def _kinds(self) -> Group:
        known = {kind: (kind,) for kind in WAIT_KINDS} | _OF_KINDS
        found = [*self._choice(known)]
        while self._take("or"):
            found += self._choice(known)
        return tuple(dict.fromkeys(found))

    def _scope(self) -> str:
        if not self._take("in"):
            return SCOPES[0]
        self._want("the")
        self._want("same")
        return self._choice({scope: scope for scope in SCOPES})

    def _group(self, what: str) -> Group:
        found = list(self._pattern(what))
        while self._take("or"):
            found += self._pattern("a function")
        return tuple(dict.fromkeys(found))

    def _pattern(self, what: str) -> Group:
        word = self._next(what)
        if word.is_quoted:
            return (word.text,)
        if word.text == "a" and self._peek() in ("coroutine", "request"):
            self._at += 1
            return (COROUTINE,) if self._words[self._at - 1].text == "coroutine" else (REQUEST,)
        if word.text in _RESERVED:
            self._at -= 1
            self._fail(f"`{word.text}` stands where {what} does; a function of that name is written '{word.text}'")
        return self._groups.get(word.text, (word.text,))

    def _time(self) -> int:
        word = self._next("a time, as 50ms")
        try:
            return nanoseconds(word.text, "one as 50ms, 2s or 1m30s")
        except UsageError as error:
            self._at -= 1
            self._fail(str(error).rstrip("."))

    def _number(self) -> int:
        word = self._next("a number")
        if not re.fullmatch(r"\d{1,15}", word.text, re.ASCII):
            self._at -= 1
            self._fail(f"`{word.text}` is no number")
        return int(word.text)

    def _choice(self, known: Mapping[str, _Choice]) -> _Choice:
        word = self._next(f"one of {', '.join(known)}")
        if word.text not in known:
            self._at -= 1
            self._fail(f"`{word.text}` is none of {', '.join(known)}")
        return known[word.text]

    def _peek(self) -> str:
        word = self._words[self._at] if self._at < len(self._words) else None
        return word.text if word and not word.is_quoted else ""

    def _take(self, word: str) -> bool:
        found = self._peek() == word
        self._at += found
        return found

    def _want(self, word: str) -> None:
        if not self._take(word):
            instead = f"`{self._words[self._at].text}` stands where" if self._at < len(self._words) else "it ends where"
            self._fail(f"{instead} `{word}` does")

    def _next(self, what: str) -> _Word:
        if self._at == len(self._words):
            self._fail(f"it ends where {what} follows")
        self._at += 1
        return self._words[self._at - 1]

    def _fail(self, said: str) -> NoReturn:
        column = self._words[self._at].column if self._at < len(self._words) else len(self._text)
        raise WrongWordError(said, column)


def _words(text: str) -> list[_Word]:
    found, at = [], 0
    while match := _WORD.match(text, at + len(text[at:]) - len(text[at:].lstrip())):
        single, double, plain = match.groups()
        quoted = single if single is not None else double
        found.append(_Word(plain if quoted is None else quoted, match.start(), quoted is not None))
        at = match.end()
    if text[at:].strip():
        raise WrongWordError("a quotation mark is not closed", at + len(text[at:]) - len(text[at:].lstrip()))
    return found
