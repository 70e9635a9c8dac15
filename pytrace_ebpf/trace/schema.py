"""The trace format as data: every table and column with its type, unit and meaning.

The writer, the reader and docs/format.md are all made from TABLES. Times are
nanoseconds of CLOCK_MONOTONIC; the manifest's clock anchors lead to wall-clock time.
"""

from pytrace_ebpf.trace import identity, layers
from pytrace_ebpf.trace.declared import STREAMS
from pytrace_ebpf.trace.kinds import BEGINNINGS as BEGINNINGS
from pytrace_ebpf.trace.kinds import MEANINGS as MEANINGS
from pytrace_ebpf.trace.kinds import OBJECT_LOCK as OBJECT_LOCK
from pytrace_ebpf.trace.kinds import PAUSED as PAUSED
from pytrace_ebpf.trace.kinds import CallKind as CallKind
from pytrace_ebpf.trace.kinds import Effect as Effect
from pytrace_ebpf.trace.kinds import SchedKind as SchedKind
from pytrace_ebpf.trace.left_out import LEFT_OUT as LEFT_OUT
from pytrace_ebpf.trace.losses import CALL_LOSSES as CALL_LOSSES
from pytrace_ebpf.trace.losses import LOSS_CLASSES as LOSS_CLASSES
from pytrace_ebpf.trace.losses import LOSSES as LOSSES
from pytrace_ebpf.trace.losses import SCHED_LOSSES as SCHED_LOSSES
from pytrace_ebpf.trace.memory import MEMORY as MEMORY
from pytrace_ebpf.trace.observed import OBSERVED as OBSERVED
from pytrace_ebpf.trace.observed import VALUES as VALUES
from pytrace_ebpf.trace.profile import PROFILE as PROFILE
from pytrace_ebpf.trace.profile import PROFILE_WAITS as PROFILE_WAITS
from pytrace_ebpf.trace.requests import REQUESTS as REQUESTS
from pytrace_ebpf.trace.resources import RESOURCES as RESOURCES
from pytrace_ebpf.trace.sampled import SAMPLES as SAMPLES
from pytrace_ebpf.trace.sampled import STACKS as STACKS
from pytrace_ebpf.trace.states import SPLIT, STATES
from pytrace_ebpf.trace.states import SYSCALL_UNKNOWN as SYSCALL_UNKNOWN
from pytrace_ebpf.trace.steps import STEPS as STEPS
from pytrace_ebpf.trace.streams.clients import STATEMENTS as STATEMENTS
from pytrace_ebpf.trace.sums import CALL_SITES as CALL_SITES
from pytrace_ebpf.trace.sums import LINES as LINES
from pytrace_ebpf.trace.sums import THREAD_TIMES as THREAD_TIMES
from pytrace_ebpf.trace.sums import TREE as TREE
from pytrace_ebpf.trace.table import PID as _PID
from pytrace_ebpf.trace.table import TID as _TID
from pytrace_ebpf.trace.table import Column as Column
from pytrace_ebpf.trace.table import Table as Table

FORMAT = "pytrace-ebpf"
FORMAT_VERSION = 2
MANIFEST = "manifest.json"
CALLER = "caller"  # manifest.entry_line: whose line an entry has; traces that do not say so have the function's own first line there
SEGMENTS = "segments.jsonl"  # since version 2; in version 1 the manifest lists them


AGENT = "pytrace-agent"  # `threads.name` of our own thread in the program, as probes/agent/errands.c calls it
OTHER_GIL = 5  # the last three bits of the own GIL of an interpreter beside the main one

STATUSES = ("complete", "open_at_start", "open_at_end", "unwound", "repaired", "in_loss")
# Where two hold the later one is reported.
TASK_STATUSES = ("complete", "open_at_end", "open_at_start", "unwound", "abandoned", "in_loss")
LAYERS = tuple(layers.NUMBERS)
WAIT_KINDS = ("gil", "lock", "sleep", "io-read", "io-write", "net", "poll", "wait-child", "page-fault", "preempted", "other", "stop-the-world", "object-lock")
OF_THE_INTERPRETER = ("gil", "stop-the-world", "object-lock")  # for these a thread waits wherever it is, whatever the program called


_DICTIONARY = "dictionary of string"


def _ts(name: str, meaning: str, nullable: bool = False) -> Column:
    return Column(name, "int64", "ns", meaning, nullable)


EVENTS = Table(
    "events",
    "One row per function event. Within a segment rows are grouped by thread and in the thread's own order.",
    (),
    (
        _ts("ts", "when"),
        _PID,
        _TID,
        Column("kind", "int8", "", "0 entry, 1 return (or left by an exception, where the source cannot tell), 2 open when recording began (outermost first, before the thread's other rows), 3 reset: the program was replaced by exec, or another source records this thread from here on (its open calls come again as 2), 4 left by an exception, 5 entry of a generator or coroutine that had yielded (resumed, or thrown into), or of a call of a greenlet that was switched to, 6 yield, or its greenlet was switched away from; with `--lines exact` also 7 the innermost call came to a line, 8 it stands at a line that it had come to before (resumed, or open when recording began)"),
        Column("func_id", "int32", "", "joins functions; -1 unknown. On 1, 4 and 6 it may name a namesake in the same file: the entry's is the call's"),
        Column("frame", "int64", "", "tells activations apart: the same number on the entry and the end of one activation, and on all resumes of one generator or coroutine; 0 unknown"),
        Column("line", "int32", "", "entry, resume, open: the line of the caller that it was called from (source usdt: not of open); return, yield: the line that returned; left by an exception: the line it left from; 7 and 8: that line; -1 unknown. Where the manifest does not say `entry_line`: `caller`, that of an entry is the function's first line instead"),
    ),
    counted="call",
)

SCHED = Table(
    "sched",
    "One row per scheduling event of a traced thread, in the order of time.",
    (),
    (
        _ts("ts", "when"),
        _PID,
        _TID,
        Column("kind", "int8", "", "0 in (got a core), 1 out (left it), 2 waking (became runnable), 3 migrate, 4 fork (thread or process created), 5 exec, 6 exit, 7 snapshot (state when recording of the thread began)"),
        Column("cpu", "int16", "", "core; for waking and migrate the one it is queued on; -1 unknown"),
        Column("state", "int32", "", "out, snapshot: task state as the kernel reports it (source perf: 0 or 1); no bit of 0x7f set = still runnable (preempted, or runnable at the snapshot); waking: 1 a timer's interrupt, 2 a device's, 4 a softirq of timers or block devices, 0 a thread, or not known; fork: 1 = shares its creator's memory (a thread, vfork); exit: the process's status as wait() gives it, + 0x20000, and 0x10000 where the kernel killed it for want of memory; 0 not known; 0x40000 more of the agent's own thread"),
        Column("syscall", "int32", "", "out, snapshot: number of the system call the thread is in; -1 none (user code, page fault); -2 not recorded (source perf): then neither what it waits for nor when it is woken is known"),
        Column("address", "int64", "", "out, snapshot: first argument of that call: of futex its address or, where each waiter has a futex of its own, that of the Python lock it is for, and 1 for a stop-the-world pause, and where it is the own GIL of an interpreter beside the main one that GIL's address and 5; of read the descriptor; 0 for none; in: ns of the wait in the run queue that ends, for which the thread's control group had no CPU quota left; fork: id of the new thread in its own pid namespace, where that is another than the tracer's and is known, else 0"),
        Column("other_pid", "int32", "", "process of other_tid; 0 unknown"),
        Column("other_tid", "int32", "", "in: thread that left the core; out: thread that got it; waking: waker, 0 a timer or a device; migrate: core it came from; fork: creator; 0 idle or none"),
        Column("holder_tid", "int32", "", "out: the thread that held the main interpreter's GIL at that moment, or the one that this one waits for, which may be this one; 0 nobody; -1 not known. Else -1", absent=-1),
        Column("resource_id", "int64", "", "out: what it waits for behind a descriptor, in resources; waking, of a thread in epoll_wait, poll or select: what was ready first; 0 nothing, or not known", absent=0),
    ),
    counted="sched",
)

CPUTIME = Table(
    "cputime",
    "Samples of each thread's CPU time, where neither eBPF nor perf could report switches. Between two samples, and up to 1 s beyond the first and the last, calls get their share in proportion to time: an estimate.",
    (),
    (
        _ts("ts", "when"),
        _PID,
        _TID,
        Column("on_cpu_ns", "int64", "ns", "time on a core since the thread began"),
        Column("runq_wait_ns", "int64", "ns", "time in the run queue since the thread began", True),
    ),
    counted="sched",
)

FUNCTIONS = Table(
    "functions",
    "One row per function seen.",
    ("func_id",),
    (
        Column("func_id", "int32", "", "dense, from 0"),
        Column("file", "string", "", "co_filename; blas, cuda: path of the library; else empty"),
        Column("name", "string", "", "co_name; operator: without its overload"),
        Column("qualname", "string", "", "qualified name (Class.method), from the code object or the source; else the plain name. operator: with its overload, as aten::conv1d.padding; blas, cuda: the symbol"),
        Column("first_line", "int32", "", "co_firstlineno; -1 unknown"),
        Column("module", "string", "", "dotted module name derived from the file's path; <gc>, <import>, <operator>, <c>; blas, cuda: the library (MKL, oneDNN, OpenBLAS, BLAS, libcudart, libcuda)"),
        Column("flags", "int32", "", "co_flags: 0x20 a generator, 0x80 a coroutine, 0x200 an asynchronous generator; 0 unknown", absent=0),
        Column("function_layer", "string", "", "python; or what is no Python function: gc, a garbage collection (named gc generation 0, 1 or 2); import, of a module (named import MODULE); operator, of PyTorch; blas; cuda; c, a function, method or type that is written in C (named time.sleep, list.append, int); native, other native code, known by samples alone", absent="python"),
    ),
    counted="function",
)

THREADS = Table(
    "threads",
    "One row per thread of a traced process.",
    ("pid", "tid"),
    (
        _PID,
        _TID,
        Column("name", "string", "", "what Python's threading calls it; where that could not be read (another's thread, one that ended within some 20 ms, a program that does not use threading) its comm"),
        _ts("start_ns", "creation, where seen; else the start of the recording"),
        _ts("end_ns", "exit; null while it ran on", nullable=True),
        Column("comm", "string", "", "the kernel's name of the thread; empty = not recorded, then it is its name", absent=""),
        Column("interpreters", "string", "", "ids, as concurrent.interpreters has them, of the interpreters beside the main one whose calls it made, in the order of the first one of each, as 1 4; empty = none, or its calls were not recorded by the agent", absent=""),
    ),
)

PROCESSES = Table(
    "processes",
    "One row per traced process.",
    ("pid",),
    (
        _PID,
        Column("ppid", "int32", "", "parent process id"),
        Column("executable", "string", "", "path of the program, as its own mount namespace sees it"),
        Column("command", "string", "", "command line, shell-quoted; of a process that executed another program, as by exec, that of the last one"),
        Column("python_version", "string", "", "for example 3.11.2; empty = not a Python", nullable=True),
        Column("source", "string", "", "where its function events came from: usdt, agent; sample: none came, its stacks were sampled; null = none", nullable=True),
        Column("gil_start", "int64", "", "first address of the GIL's structure; a futex from here up to gil_end is a wait for the GIL; 0 unknown"),
        Column("gil_end", "int64", "", "first address behind it"),
        _ts("start_ns", "when its function events were first recorded"),
        _ts("end_ns", "exit; null while it ran on", nullable=True),
        Column("interpreters", "int32", "", "how many interpreters it had made when it was last looked at, the main one included; 0 not known", absent=0),
        Column("exit_code", "int32", "", "what it returned at its end; null while it ran on, where a signal ended it, and where that is not known (without eBPF, but for the program that was started)", True),
        Column("exit_signal", "int32", "", "number of the signal that ended it; 0 none; null while it ran on, and where that is not known", True),
        Column("oom_killed", "bool", "", "the kernel killed it for want of memory; null while it ran on, and where that is not known (without eBPF)", True),
        Column("memory_limit_bytes", "int64", "bytes", "of one that was killed for want of memory: the least limit of its control groups; null for none", True),
        Column("earlier_commands", "list of string", "", "command lines of the programs that it was before, each of which executed the next; of many the first and the last ones; null = not recorded", True),
        Column("rank", "int32", "", "of a distributed job, as its launcher said in the environment that the program was started with (torchrun, Open MPI, PMI, Slurm), which its children inherit; null where none did", True),
        Column("local_rank", "int32", "", "the same: on its host", True),
        Column("world_size", "int32", "", "how many ranks the job has", True),
        Column("job", "string", "", "its id: TORCHELASTIC_RUN_ID, PMIX_NAMESPACE, PMI_JOBID, SLURM_JOB_ID, RAY_JOB_ID, SPARK_APPLICATION_ID or DASK_SCHEDULER_ADDRESS; null for none", True),
        *identity.COLUMNS,
    ),
)

EXTERNAL_SWITCHES = Table(
    "external_switches",
    "One row each time a thread of another process, or the idle thread, left a core for which a traced thread waited, in the order of time. With the rows of sched by which traced threads left "
    "cores they say who had a core all the time that a thread waited for it.",
    (),
    (
        _ts("ts", "when it left the core"),
        Column("cpu", "int16", "", "core"),
        _PID,
        Column("tid", "int32", "", "thread, in neighbours; 0 the idle thread"),
        Column("name", _DICTIONARY, "", "the kernel's name of it (comm) at that moment"),
    ),
)

NEIGHBOURS = Table(
    "neighbours",
    "One row per thread of another process that took a core from a traced thread, had one that a traced thread waited for, or woke one.",
    ("tid",),
    (
        _TID,
        Column("pid", "int32", "", "its process"),
        Column("name", "string", "", "the kernel's name of the thread (comm), when it was first met"),
        Column("cgroup", "string", "", "path of its control group, of version 2 or else of the CPU controller; empty = the root, or not known", absent=""),
    ),
)

USAGE = Table(
    "usage",
    "psutil samples. A cumulative counter where the name says _s.",
    (),
    (
        _ts("ts", "when"),
        Column("kind", _DICTIONARY, "", "process, thread or core"),
        Column("pid", "int32", "", "process; -1 for a core"),
        Column("id", "int32", "", "pid, tid or core number"),
        Column("user_s", "float64", "s", "CPU time in user mode since its start"),
        Column("system_s", "float64", "s", "CPU time in the kernel since its start"),
        Column("idle_s", "float64", "s", "core only: idle since boot", nullable=True),
        Column("rss_bytes", "int64", "bytes", "process only: resident memory", nullable=True),
        Column("vms_bytes", "int64", "bytes", "process only: virtual memory", nullable=True),
        Column("threads", "int32", "", "process only: number of threads", nullable=True),
        Column("voluntary_switches", "int64", "", "process only: context switches by blocking", nullable=True),
        Column("involuntary_switches", "int64", "", "process only: context switches by preemption", nullable=True),
        Column("cpus", _DICTIONARY, "", "thread only: the cores that it may run on (its affinity) at that moment, for example 0-3,6", nullable=True),
    ),
    timed=False,
)

CALLS = Table(
    "calls",
    "One row per call; derived from the other tables and rebuildable. Where scheduling was not recorded its columns are null. How it was recorded stands in the manifest, `scheduling.source`: bpf (also where the key is missing), perf, cputime, or null for not at all. Where none of the four parts is null they sum to wall_ns exactly.",
    (),
    (
        Column("call_id", "int64", "", "unique in the trace; preorder within a thread: a call's descendants are the ids up to last_descendant_id"),
        Column("parent_id", "int64", "", "the calling call; -1 none"),
        Column("last_descendant_id", "int64", "", "id of the last call below this one; its own id where there is none"),
        Column("next_sibling_id", "int64", "", "next call of the same parent; -1 none"),
        Column("depth", "int32", "", "level of the call; 0 = outermost seen"),
        Column("layer", _DICTIONARY, "", "its function's: " + ", ".join(LAYERS)),
        _PID,
        _TID,
        Column("func_id", "int32", "", "joins functions; -1 unknown"),
        _ts("start_ns", "entry; for open_at_start the start of the recording"),
        _ts("end_ns", "return; for open_at_end the end of the recording"),
        Column("wall_ns", "int64", "ns", "end_ns - start_ns"),
        *(Column(f"{state.name}_ns", "int64", "ns", state.meaning, True) for state in STATES),
        Column("throttled_ns", "int64", "ns", "of runq_wait_ns: its control group had no CPU quota left. Null where runq_wait_ns is, and where that was not recorded", True),
        Column("self_wall_ns", "int64", "ns", "wall_ns without the children"),
        *(
            Column(f"self_{name}", "int64", "ns", f"{name} without the children; null also where it is not known of a child. Where none of these is null they sum to self_wall_ns", True)
            for name in SPLIT
        ),
        Column("worker_on_cpu_ns", "int64", "ns", "what threads without Python that this thread had woken (OpenMP, pools of torch or a BLAS) had of the cores meanwhile, all together; not part of the four, and may exceed wall_ns. Null without eBPF", True),
        Column("first_cpu", "int16", "", "core at the entry, or the first one after it; from here to waits: source cputime: null", True),
        Column("last_cpu", "int16", "", "core at the return, or the last one before it", True),
        Column("migrations", "int32", "", "times the thread came back on another core within the call", True),
        Column("preemptions", "int32", "", "times it lost the core while runnable", True),
        Column("waits", "int32", "", "times it blocked", True),
        Column("outermost", "bool", "", "no caller above is of the same function: the times of such calls add up without counting recursion twice. Those whose function is not known count as of one"),
        Column("frame", "int64", "", "of a generator's, coroutine's or greenlet's call that is not all of it, and of a repaired one: the same number on all of its resumes, and on those of later ones in its place; else 0"),
        Column("resumed", "bool", "", "a generator or coroutine went on in it that had yielded, or a call of a greenlet that had been switched away from"),
        Column("yielded", "bool", "", "it ended by yielding, or as its greenlet was switched away from"),
        Column("line", "int32", "", "line that returned, yielded or that an exception left from; -1 unknown"),
        Column("call_line", "int32", "", "line of the calling function that it was called from; null where that is not known (native layers; source usdt: of calls that were open when recording began), where no function of Python called it, and where functions between the two were not recorded", True),
        Column("status", _DICTIONARY, "", "complete; open_at_start: began before the recording; open_at_end: had not returned when the recording or the thread ended; unwound: an exception left it (where the source can tell: agent) or exec discarded it; repaired: one of its ends was not reported and was inferred; in_loss: events were lost while it ran"),
    ),
    derived=True,
)

WAITS = Table(
    "waits",
    "One row per interval in which a thread had no core; in each part those of which the calls turned out at about the same time, in the order of start_ns; derived from the other tables and rebuildable. Those within a call on its thread, cut at its start and end, add up to its runq_wait_ns + gil_wait_ns + blocked_ns. None where scheduling was not recorded; source perf: when it was woken, by whom and from what is null, and the kind preempted or other.",
    (),
    (
        _PID,
        _TID,
        Column("call_id", "int64", "", "innermost call open on the thread when the wait began; -1 none. A wait during which the calls of its process became known is two: of none before that, and then of the one that was open"),
        Column("func_id", "int32", "", "function of that call, in functions; -1 none or unknown"),
        _ts("start_ns", "it left its core (or was created, or recording began)"),
        _ts("blocked_until_ns", "it became runnable: from here to end_ns it waited for a core. start_ns of a preempted one; end_ns where it was still blocked then; null where the wake-up was not reported", nullable=True),
        _ts("end_ns", "it got a core; else when events were lost or the recording ended"),
        Column("kind", _DICTIONARY, "", "gil; without a GIL stop-the-world (until all threads, which one of them stops, have stopped or may go on) and object-lock (an object's own lock, as of a list or dict); lock (any other futex); sleep; io-read, io-write (by the system call: of a file, a pipe, a terminal, or a socket that is read like a file); net (calls only sockets have); poll (select, epoll); wait-child; page-fault; preempted (runnable all the time); other (see syscall; where that is null a new thread's wait for its first core, or not known)"),
        Column("syscall", _DICTIONARY, "", "name of the system call it was in; null for none, and for preempted", True),
        Column("lock_address", "int64", "", "gil, lock, object-lock: address of the futex, the same in all that wait for that lock of one process, but for the main interpreter's GIL, which is several; else null", True),
        Column("resource_id", "int64", "", "what it waited for behind a descriptor, in resources: of epoll_wait, poll and select what was ready first, else the epoll instance, or the descriptor where they were given one; null for none, and where it is not known", True),
        Column("waker_pid", "int32", "", "process of waker_tid", True),
        Column("waker_tid", "int32", "", "thread that made it runnable; preempted: that took its core; 0 none (a timer, a device, the idle thread) or not seen", True),
        Column("holder_tid", "int32", "", "gil: thread that held it when the wait began; 0 nobody; -1 not known, and for other kinds"),
        Column("holder_call_id", "int64", "", "innermost call open on that thread then; -1 none"),
        Column("holder_func_id", "int32", "", "function of that call; -1 none or unknown"),
        Column("primitive_func_id", "int32", "", "of a wait in threading, queue, multiprocessing or concurrent.futures the function of these that the program called (Queue.get, Event.wait); -1 for other waits, and where they called themselves, as an idle thread of a pool does"),
        Column("caller_func_id", "int32", "", "the function that called it; else as func_id"),
        Column("waker_func_id", "int32", "", "function of the innermost call on waker_tid when that ended the wait or took the core; -1 none or unknown, for another program's thread, and for gil"),
        Column("waker_primitive_func_id", "int32", "", "where that is in such a module, or in asyncio, the function of these that the program called (Queue.put, Event.set); else -1"),
        Column("waker_caller_func_id", "int32", "", "the function that called it; else as waker_func_id"),
        Column("slices", "int32", "", "1; more where it goes on with the wait before it on its thread, as of a library that waits a while at a time: which part of the whole wait it is. The one before was ended by a timer, both are for the same in the same function, and between them it only looked at the clock", absent=1),
        Column("throttled_ns", "int64", "ns", "of the time it waited for a core: its control group had no CPU quota left; null where that was not recorded", True),
        Column("own_func_id", "int32", "", "the innermost function of the program's own code that the call is of, or was made through; -1 none, or none since an event loop's"),
        Column("own_line", "int32", "", "line of that function that called what is of a library; null where it called nothing that is recorded, and where the line is not known", True),
        Column("own_called_func_id", "int32", "", "the function of a library that it called; -1 none"),
        Column("holder_own_func_id", "int32", "", "as own_func_id, of the call on holder_tid"),
        Column("waker_own_func_id", "int32", "", "as own_func_id, of the call of waker_func_id"),
        Column("cpu_before", "int16", "", "core it left; null where that was not seen", True),
        Column("cpu_after", "int16", "", "core it got", True),
    ),
    derived=True,
)

RIVALS = Table(
    "rivals",
    "One row per wait in the run queue and thread that had the core meanwhile, in the order of queued_ns; of a long wait there may be several, which add up. Derived from sched and external_switches, and "
    "rebuildable. Waits in which a thread had no CPU quota left, or switches were lost, have none.",
    (),
    (
        _PID,
        Column("tid", "int32", "", "thread that waited"),
        _ts("queued_ns", "since when: blocked_until_ns of its wait"),
        Column("rival_pid", "int32", "", "process of rival_tid"),
        Column("rival_tid", "int32", "", "thread that had the core: in threads, or in neighbours; 0 the idle thread, as while a core wakes up"),
        _ts("ns", "for how long it had it during the wait"),
    ),
    derived=True,
)

TASKS = Table(
    "tasks",
    "One row per coroutine or asynchronous generator, and per call of a greenlet that was switched away from meanwhile, its resumes joined, in the order of coroutine_id; derived from the calls and rebuildable. run_ns + awaited_ns = end_ns - start_ns.",
    (),
    (
        Column("coroutine_id", "int64", "", "the call_id of its first resume"),
        Column("task_id", "int64", "", "coroutine_id of the outermost coroutine that awaits it, which the event loop (or whatever drives coroutines) resumes; its own where nothing awaits it: then it is a task. Of a greenlet's calls the outermost one that was suspended"),
        Column("parent_id", "int64", "", "coroutine_id of the coroutine that awaits it, or of the greenlet's call that made it; -1 none"),
        _PID,
        Column("tid", "int32", "", "thread of its first resume"),
        Column("func_id", "int32", "", "joins functions, whose flags tell coroutines, asynchronous generators and plain functions, which greenlets run, apart"),
        _ts("start_ns", "first resume; of open_at_start when recording of its process began, or where calls were lost the first that was seen"),
        _ts("end_ns", "last return; of open_at_end the end of the recording or of the process; of abandoned its last yield"),
        Column("resumes", "int64", "", "calls that it consists of"),
        _ts("run_ns", "wall time of its resumes, all that they call or await without a pause included: what the loop was kept from others"),
        _ts("awaited_ns", "time suspended, between its resumes"),
        *(_ts(name, "of run_ns; as in calls, and null where that is of any resume", True) for name in SPLIT),
        _ts("longest_ns", "wall time of its longest resume"),
        Column("longest_call_id", "int64", "", "that resume, in calls"),
        Column("status", _DICTIONARY, "", "complete; open_at_end: suspended or running when the recording or its process ended; open_at_start: had begun before the recording; unwound: an exception left it, as cancelling does (where the source can tell: agent); abandoned: never resumed, and its place was taken; in_loss: events were lost while it ran"),
    ),
    derived=True,
)

OPERATORS = Table(
    "operators",
    "One row per call of native code (layer operator, blas or cuda), in the order of call_id; derived from the other tables and rebuildable. Its times are those in calls.",
    (),
    (
        Column("call_id", "int64", "", "the call, in calls"),
        Column("parent_id", "int64", "", "the calling call, which may be Python's; -1 none"),
        Column("layer", _DICTIONARY, "", "operator, blas or cuda"),
        _PID,
        _TID,
        Column("func_id", "int32", "", "joins functions"),
        Column("name", _DICTIONARY, "", "aten::conv1d, sgemm, cudaLaunchKernel"),
        Column("overload", _DICTIONARY, "", "of an operator, as in aten::conv1d.padding; empty = none"),
        Column("library", _DICTIONARY, "", "blas, cuda: MKL, oneDNN, OpenBLAS, BLAS, libcudart, libcuda; null of operators", True),
        _ts("start_ns", "entry"),
        _ts("end_ns", "return"),
        _ts("wall_ns", "end_ns - start_ns"),
        *(_ts(name, "of wall_ns, as in calls", True) for name in SPLIT),
        _ts("worker_on_cpu_ns", "what the threads that it set to work had of the cores", True),
        _ts("self_wall_ns", "wall_ns without the calls below"),
        Column("shapes", "list of list of int64", "", "of the tensors it was given, as in arguments; null not read", True),
        Column("dtypes", "list of string", "", "of the same", True),
        Column("result_shapes", "list of list of int64", "", "of the tensors it returned; null not read", True),
        Column("result_dtypes", "list of string", "", "of the same", True),
        Column("flops", "int64", "", "floating-point operations by its shapes, with all that it calls: so those of a call and of one below it are not to be added. Null not known. docs/operators.md says which are exact", True),
        Column("bytes", "int64", "bytes", "sizes of the tensors it was given and of those it returned; null not known", True),
        Column("error", "string", "", "message of the error that left it; null for none, or where that was not read", True),
        Column("status", _DICTIONARY, "", "as in calls; unwound: an error left it"),
    ),
    derived=True,
)

TABLES = {t.name: t for t in (EVENTS, SCHED, CPUTIME, FUNCTIONS, THREADS, PROCESSES, EXTERNAL_SWITCHES, NEIGHBOURS, RESOURCES, USAGE, LOSSES, LEFT_OUT, SAMPLES, STACKS, PROFILE, PROFILE_WAITS, *(table for stream in STREAMS for table in stream.tables), CALLS, TREE, CALL_SITES, LINES, THREAD_TIMES, WAITS, RIVALS, TASKS, REQUESTS, STEPS, OPERATORS, VALUES, STATEMENTS, MEMORY)}
# Of these a recorder merges parts as time goes by: a few rows in every segment, which are only ever read all together.
MERGED_TABLES = (*(t.name for t in TABLES.values() if t.key and not t.derived), "usage", "losses", PROFILE.name, PROFILE_WAITS.name)
