"""Counts the calls of what is written in C that a program's own functions make, by what the interpreter itself reports.

Prints JSON: {"function:line name": calls}. Up to 3.11 the interpreter reports functions and methods alone.
"""

import json
import sys
import types
from collections import Counter

HEAP_TYPE = 1 << 9
counts = Counter()
program = sys.argv[1]


def of_type(cls):
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def name_of(callable_):
    if type(callable_) is type:
        return of_type(callable_)
    if isinstance(callable_, (types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType, types.MethodWrapperType)):
        return f"{of_type(callable_.__objclass__)}.{callable_.__name__}"
    if not isinstance(callable_, types.BuiltinFunctionType):
        return of_type(type(callable_)) + ".__call__"
    self = callable_.__self__
    if isinstance(self, types.ModuleType) or self is None:
        return callable_.__name__ if callable_.__module__ == "builtins" else f"{callable_.__module__}.{callable_.__name__}"
    classes = self.__mro__ if isinstance(self, type) and callable_.__name__ in self.__dict__ else type(self).__mro__
    return f"{of_type(next(cls for cls in classes if callable_.__name__ in vars(cls)))}.{callable_.__name__}"


def count(code, line, callable_):
    if code.co_filename == program:
        counts[f"{code.co_name}:{line} {name_of(callable_)}"] += 1


def is_written_in_c(callable_):
    cls = callable_ if type(callable_) is type else type(callable_)
    return not isinstance(callable_, (types.FunctionType, types.MethodType)) and not cls.__flags__ & HEAP_TYPE


def on_event(frame, event, argument):
    if event == "c_call":
        count(frame.f_code, frame.f_lineno, argument)


def on_call(code, offset, callable_, argument):
    if is_written_in_c(callable_):
        lines = [line for start, end, line in code.co_lines() if start <= offset < end]
        count(code, lines[0], callable_)


with open(program) as file:
    compiled = compile(file.read(), program, "exec")
names = {"__name__": "__main__"}
if sys.version_info >= (3, 12):
    sys.monitoring.use_tool_id(0, "truth")
    sys.monitoring.register_callback(0, sys.monitoring.events.CALL, on_call)
    sys.monitoring.set_events(0, sys.monitoring.events.CALL)
else:
    sys.setprofile(on_event)
exec(compiled, names)
sys.setprofile(None)
if sys.version_info >= (3, 12):
    sys.monitoring.set_events(0, 0)
print(json.dumps(counts))
