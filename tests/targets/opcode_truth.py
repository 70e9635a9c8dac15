"""Counts the instructions that a program's own functions execute, as the interpreter reports them. Prints JSON: {"function:first line:line:number": count}.

Up to 3.11 those are the events `opcode` of sys.settrace, from 3.12 on INSTRUCTION of sys.monitoring.
"""

import json
import sys
import threading
from collections import Counter, defaultdict

places = defaultdict(Counter)  # of each thread its own: one may interrupt another between reading a count and writing it
program = sys.argv[1]


def on_event(frame, event, _argument):
    if frame.f_code.co_filename != program:
        return None
    frame.f_trace_opcodes = True
    if event == "opcode":
        places[threading.get_ident()][frame.f_code, frame.f_lasti] += 1
    return on_event


def on_instruction(code, offset):
    if code.co_filename == program:
        places[threading.get_ident()][code, offset] += 1


def lines_of(code):
    if hasattr(code, "co_lines"):
        return {at: line for start, end, line in code.co_lines() for at in range(start, end, 2)}
    import dis

    found, line = {}, code.co_firstlineno
    starts = dict(dis.findlinestarts(code))
    for at in range(0, len(code.co_code), 2):
        line = found[at] = starts.get(at, line)
    return found


with open(program) as file:
    compiled = compile(file.read(), program, "exec")
names = {"__name__": "__main__"}
if sys.version_info >= (3, 12):
    events = sys.monitoring.events
    sys.monitoring.use_tool_id(4, "truth")
    sys.monitoring.register_callback(4, events.INSTRUCTION, on_instruction)
    sys.monitoring.set_events(4, events.INSTRUCTION)
    exec(compiled, names)
    sys.monitoring.set_events(4, 0)
else:
    threading.settrace(on_event)
    sys.settrace(on_event)
    exec(compiled, names)
    sys.settrace(None)
counts = Counter()
known = {}
for (code, at), count in sum(places.values(), Counter()).items():
    lines = known.setdefault(code, lines_of(code))
    counts["%s:%d:%d:%d" % (code.co_name, code.co_firstlineno, lines.get(at) or 0, code.co_code[at])] += count
print(json.dumps(counts))
