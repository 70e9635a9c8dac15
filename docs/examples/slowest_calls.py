"""With pandas: the slowest call of each function, what it waited for, and from where it was called. slowest_calls.py TRACE"""

import sys

import pandas as pd

import pytrace_ebpf

WAYS = ["on_cpu_ns", "runq_wait_ns", "gil_wait_ns", "blocked_ns"]

trace = pytrace_ebpf.open(sys.argv[1])
functions = trace.functions().set_index("func_id")[["qualname", "file"]]

# A frame of some hundred thousand calls at a time, so that a trace of any size can be asked.
slowest = pd.DataFrame()
for calls in trace.iter_calls(columns=["call_id", "tid", "func_id", "call_line", "wall_ns", *WAYS]):
    slowest = pd.concat([slowest, calls]).sort_values("wall_ns", ascending=False).drop_duplicates("func_id")

table = slowest.head(10).join(functions, on="func_id").join(trace.threads().set_index("tid")["name"].rename("thread"), on="tid")
times = ["wall_ns", *WAYS]
table[times] /= 1e6
print(table[["qualname", "thread", "call_line", *times]].rename(columns=lambda name: name.replace("_ns", "_ms")).round(3).to_string(index=False))
