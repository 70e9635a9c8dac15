/* Where CPython's structures keep what the tracer and the agent read: a row a field, a column a version.
 *
 * Offsets in bytes, from the headers of each version (gcc, offsetof, Py_BUILD_CORE; x86-64); NONE: that version has no such
 * field, or nobody needs it. The agent's C includes this file, and record/cpython/layout.py reads it as text. What to do for
 * a new version: docs/new-python.md. */
#ifndef PYTRACE_CPYTHON_OFFSETS_H
#define PYTRACE_CPYTHON_OFFSETS_H

#define CPYTHON_FIRST 8 /* minor version of the first column */
#define CPYTHON_LAST 15
#define CPYTHON_VERSIONS (CPYTHON_LAST - CPYTHON_FIRST + 1)

#define CPYTHON_OFFSETS(OFFSET) \
    /*                                  3.8   3.9  3.10  3.11  3.12  3.13  3.14  3.15 */ \
    OFFSET(object_type,                 8,    8,    8,    8,    8,    8,    8,    8) /* PyObject */ \
    OFFSET(int_digit,                  24,   24,   24,   24,   24,   24,   24,   24) /* PyLongObject: the lowest one */ \
    OFFSET(runtime_main_interpreter,   40,   40,   40,   48,   48,  640,  816,  944) /* _PyRuntimeState */ \
    OFFSET(runtime_initialized,        12,   12,   12,   16,   16,  600,  776,  904) /* an int: not 0 from before `site` is imported until it is finalized, as Py_IsInitialized() says */ \
    OFFSET(runtime_gil,              1168,  368,  368,  376, NONE, NONE, NONE, NONE) /* first byte of the GIL's locks, up to 3.11 */ \
    OFFSET(runtime_gil_end,          1360,  560,  560,  568, NONE, NONE, NONE, NONE) /* one behind the last */ \
    OFFSET(runtime_world,            NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE) /* stoptheworld; without a GIL alone, from here to thread_attached */ \
    OFFSET(interpreter_world,        NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE) /* the same of PyInterpreterState */ \
    OFFSET(thread_attached,          NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE) /* PyThreadState.state: an int */ \
    OFFSET(gil_holder,                 -8,   -8,   -8,   -8,    8,    8,    8,    8) /* from the GIL's first byte as Target.gil_range() has it: last_holder, with `locked` behind it */ \
    OFFSET(interpreter_next,         NONE, NONE, NONE, NONE,    0, 7264, 7272, 7264) /* PyInterpreterState: the one made before it; for who looks into others than the main one, from 3.12 on */ \
    OFFSET(interpreter_threads,         8,    8,    8,   16,   72, 7344, 7344, 7336) \
    OFFSET(interpreter_gil,          NONE, NONE, NONE, NONE,  384,   16,   16,   16) /* pointer to the GIL, from 3.12 on */ \
    OFFSET(interpreter_modules,        56,  856,  856,  888,  944, 7656, 7688, 7592) /* sys.modules */ \
    OFFSET(thread_next,                 8,    8,    8,    8,    8,    8,    8,    8) /* PyThreadState */ \
    OFFSET(thread_interpreter,       NONE, NONE, NONE, NONE,   16,   16,   16,   16) /* whose it is; it and the next one likewise */ \
    OFFSET(thread_status,            NONE, NONE, NONE, NONE,   24,   32,   32,   32) /* bits; 8: of the states that its thread has in several interpreters the last one that it used */ \
    OFFSET(thread_pthread,            176,  176,  176,  152,  136,  152,  152,  176) /* thread_id: the pthread_t */ \
    OFFSET(thread_native_id,         NONE, NONE, NONE,  160,  144,  160,  160,  184) \
    OFFSET(thread_frame,               24,   24,   24,   56,   56,   72,   72,   72) /* pointer to the innermost frame, or to the _PyCFrame of 3.11 and 3.12 */ \
    OFFSET(thread_profile,             56,   56,   56,   64, NONE, NONE, NONE, NONE) /* c_profilefunc, for the agent, up to 3.11 */ \
    OFFSET(thread_datastack,         NONE, NONE, NONE,  296,  232,  232,  232,  256) /* datastack_chunk; behind it where the chunk's frames end, and where it does itself */ \
    OFFSET(cframe_frame,             NONE, NONE, NONE,    8,    0, NONE, NONE, NONE) /* _PyCFrame.current_frame */ \
    OFFSET(frame_previous,             24,   24,   24,   48,    8,    8,    8,    8) /* PyFrameObject up to 3.10, then _PyInterpreterFrame */ \
    OFFSET(frame_code,                 32,   32,   32,   32,    0,    0,    0,    0) /* the low two bits are a tag on 3.14+ */ \
    OFFSET(frame_running,             116,  116,  108, NONE, NONE, NONE, NONE, NONE) /* a byte: on a stack while it is one of */ \
    OFFSET(running_values,              2,    2,    5, NONE, NONE, NONE, NONE, NONE) /* these: bit n stands for n */ \
    OFFSET(frame_stacktop,             72,   72, NONE, NONE, NONE, NONE, NONE, NONE) \
    OFFSET(frame_position,            104,  104,   96,   56,   56,   56,   56,   56) /* f_lasti (an int), then prev_instr or instr_ptr (a pointer) */ \
    OFFSET(frame_copy,               NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE) /* tlbc_index: which of code_copies frame_position is in; an int */ \
    OFFSET(frame_top,                NONE,   64, NONE,   64, NONE, NONE, NONE,   64) /* of its stack, where what was just returned still lies: f_valuestack, stacktop (an int: so many objects behind frame_locals), stackpointer */ \
    OFFSET(frame_globals,              48,   48,   48,    8,   24,   24,   24,   24) /* f_globals; it and the next two, and co_stacksize, co_names, co_freevars, co_exceptiontable for `dump` */ \
    OFFSET(frame_blocks,              112,  112,  104, NONE, NONE, NONE, NONE, NONE) /* f_iblock: an int, so many of f_blockstack, which begins 8 behind it */ \
    OFFSET(frame_suspended,            72,   72,   80,   64,   64,   64,   64,   64) /* where the stack of a suspended generator ends: f_stacktop, f_stackdepth (an int), stacktop (an int: so many objects behind frame_locals) */ \
    OFFSET(return_opcode,            NONE,   83, NONE,   83, NONE, NONE, NONE,   33) /* RETURN_VALUE's number, where its object is looked for */ \
    OFFSET(thread_exception,         NONE,   88, NONE,   96, NONE, NONE, NONE,  136) /* the one that is raised; NULL = none: curexc_type, and curexc_value behind it, then current_exception */ \
    OFFSET(object_frame,             NONE, NONE, NONE,   24,   24,   24,   24,   24) /* from the PyFrameObject to its interpreter frame */ \
    OFFSET(frame_owner,              NONE, NONE, NONE,   69,   70,   70,   74,   74) /* a char */ \
    OFFSET(owner_shim,                256,  256,  256,    3,    3,    3,    3,    3) /* owners from this value on are entries from C, no Python frames */ \
    OFFSET(code_file,                 104,  104,  104,  112,  112,  112,  112,  112) /* PyCodeObject */ \
    OFFSET(code_name,                 112,  112,  112,  120,  120,  120,  120,  120) \
    OFFSET(code_qualname,            NONE, NONE, NONE,  128,  128,  128,  128,  128) \
    OFFSET(code_first_line,            40,   40,   40,   72,   68,   68,   68,   68) \
    OFFSET(code_flags,                 36,   36,   36,   48,   48,   48,   48,   48) \
    OFFSET(code_start,               NONE, NONE, NONE,  184,  192,  200,  208,  208) /* co_code_adaptive */ \
    OFFSET(code_copies,              NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE) /* co_tlbc: without a GIL, from 3.14 on, each thread has the code in a copy of its own. Behind its size, pointers to all, code_start the first */ \
    OFFSET(code_traceable,           NONE, NONE, NONE,  168,  176,  184,  192,  192) /* _co_firsttraceable: an int, in code units */ \
    OFFSET(code_bytes,                 48,   48,   48, NONE, NONE, NONE, NONE, NONE) /* co_code: a bytes object, up to 3.10 */ \
    OFFSET(code_lines,                120,  120,  120,  136,  136,  136,  136,  136) /* co_lnotab up to 3.9, then co_linetable: a bytes object */ \
    OFFSET(code_arguments,             16,   16,   16,   56,   52,   52,   52,   52) /* co_argcount; from here to tuple_items for who reads arguments */ \
    OFFSET(code_keyword_only,          24,   24,   24,   64,   60,   60,   60,   60) /* co_kwonlyargcount */ \
    OFFSET(code_locals,                28,   28,   28, NONE, NONE, NONE, NONE, NONE) /* co_nlocals: the cells of variables are behind so many, up to 3.10 */ \
    OFFSET(code_variables,             72,   72,   72,   96,   96,   96,   96,   96) /* co_varnames, then co_localsplusnames: a tuple that begins with the arguments */ \
    OFFSET(code_kinds,               NONE, NONE, NONE,  104,  104,  104,  104,  104) /* co_localspluskinds: a bytes object */ \
    OFFSET(code_cells,                 88,   88,   88, NONE, NONE, NONE, NONE, NONE) /* co_cellvars */ \
    OFFSET(code_cell_arguments,        96,   96,   96, NONE, NONE, NONE, NONE, NONE) /* co_cell2arg: of each cell the argument that is in it, or -1; NULL = none is in any */ \
    OFFSET(code_stack,                 32,   32,   32,   68,   64,   64,   64,   64) /* co_stacksize */ \
    OFFSET(code_names,                 64,   64,   64,   32,   32,   32,   32,   32) /* co_names: a tuple */ \
    OFFSET(code_free,                  80,   80,   80, NONE, NONE, NONE, NONE, NONE) /* co_freevars: a tuple */ \
    OFFSET(code_exceptions,          NONE, NONE, NONE,   40,   40,   40,   40,   40) /* co_exceptiontable: a bytes object */ \
    OFFSET(frame_locals,              360,  360,  352,   72,   72,   72,   80,   80) /* f_localsplus; the low two bits of each are a tag on 3.14+ */ \
    OFFSET(tuple_items,                24,   24,   24,   24,   24,   24,   32,   32) \
    OFFSET(generator_state,          NONE, NONE,  108,   -5, NONE, NONE, NONE, NONE) /* from the frame to f_state or gi_frame_state: a char, -1 once it is suspended */ \
    OFFSET(yield_opcode,             NONE, NONE, NONE, NONE, NONE, NONE, NONE,  119) /* number of the instruction behind which a generator stands that yields */ \
    OFFSET(resume_depth1,            NONE, NONE, NONE, NONE, NONE, NONE,    4,    8) /* bit of RESUME's argument: no `try` of the program's is around it */ \
    OFFSET(resume_opcodes,           NONE, NONE, NONE,38806, NONE,  236,  245,  244) /* numbers, a byte each, of the forms of RESUME in which the GIL may be let go before its event: RESUME_QUICK and RESUME, then INSTRUMENTED_RESUME; on 3.12 the event comes first */ \
    OFFSET(counter_fresh,            NONE, NONE, NONE,    0,   17,   17,   17,    9) /* what stands behind an instruction that is specialized while it was not executed yet, from 3.12 on */ \
    OFFSET(frame_trace_opcodes,        89,   89,   85,   45, NONE, NONE, NONE, NONE) /* f_trace_opcodes: a char */ \
    OFFSET(type_cached_keys,          872,  864,  872,  872,  880,  880,  880,  888) /* PyHeapTypeObject.ht_cached_keys: the names of its instances' attributes */ \
    OFFSET(thread_task,              NONE, NONE, NONE, NONE, NONE, NONE,  872, 1032) /* asyncio_running_task; before, the dict _asyncio._current_tasks has it */ \
    OFFSET(thread_tasks,             NONE, NONE, NONE, NONE, NONE, NONE,  880, 1048) /* asyncio_tasks_head: a list of the tasks that were made there */ \
    OFFSET(interpreter_tasks,        NONE, NONE, NONE, NONE, NONE, NONE,10880,10856) /* the same, of threads that have ended */ \
    OFFSET(task_node,                NONE, NONE, NONE, NONE, NONE, NONE,  152,  152) /* its place in such a list: next, previous */ \
    OFFSET(task_coro,                 112,  152,  160,  136,  136,  120,  128,  128) /* TaskObj, of Modules/_asynciomodule.c */ \
    OFFSET(task_name,                 120,  160,  168,  144,  144,  128,  136,  136) /* a str, from 3.12 on an int until the name is asked for: N of Task-N */ \
    OFFSET(generator_frame,            16,   16,   16,   80,   72,   72,   72,   72) /* from a generator or coroutine: pointer to its frame, then the frame itself */ \
    OFFSET(string_length,              16,   16,   16,   16,   16,   16,   16,   16) /* str */ \
    OFFSET(string_state,               32,   32,   32,   32,   32,   32,   32,   32) \
    OFFSET(string_kind,                 2,    2,    2,    2,    2,    2,    2,    2) /* in string_state, a bit's number: three bits of kind, then compact and ascii */ \
    OFFSET(string_data,                48,   48,   48,   48,   40,   40,   40,   40) /* characters of an ASCII one */ \
    OFFSET(string_data_wide,           72,   72,   72,   72,   56,   56,   56,   56) /* of any other compact one */

/* What is elsewhere in builds without a GIL (--disable-gil). */
#define CPYTHON_FREE_THREADED_FIRST 13
#define CPYTHON_FREE_THREADED_LAST 14
#define CPYTHON_FREE_THREADED_OFFSETS(OFFSET) \
    /*                           3.13t 3.14t */ \
    OFFSET(object_type,                24,    24) \
    OFFSET(int_digit,                  40,    40) \
    OFFSET(interpreter_modules,      7664,  7712) \
    OFFSET(runtime_world,           10336, 10552) \
    OFFSET(interpreter_world,       10744, 10848) \
    OFFSET(thread_attached,            40,    44) \
    OFFSET(gil_holder,                 16,    16) \
    OFFSET(frame_owner,                70,    78) \
    OFFSET(frame_copy,               NONE,    72) \
    OFFSET(object_frame,               40,    40) \
    OFFSET(code_file,                 128,   128) \
    OFFSET(code_name,                 136,   136) \
    OFFSET(code_qualname,             144,   144) \
    OFFSET(code_first_line,            84,    84) \
    OFFSET(code_flags,                 64,    64) \
    OFFSET(code_start,                216,   232) \
    OFFSET(code_copies,              NONE,   224) \
    OFFSET(code_traceable,            200,   208) \
    OFFSET(code_lines,                152,   152) \
    OFFSET(code_arguments,             68,    68) \
    OFFSET(code_keyword_only,          76,    76) \
    OFFSET(code_variables,            112,   112) \
    OFFSET(code_kinds,                120,   120) \
    OFFSET(code_stack,                 80,    80) \
    OFFSET(code_names,                 48,    48) \
    OFFSET(code_exceptions,            56,    56) \
    OFFSET(tuple_items,                40,    48) \
    OFFSET(type_cached_keys,          896,   896) \
    OFFSET(thread_tasks,             NONE,   880) \
    OFFSET(interpreter_tasks,        NONE, 15608) \
    OFFSET(task_node,                NONE,   168) \
    OFFSET(task_coro,                 136,   144) \
    OFFSET(task_name,                 144,   152) \
    OFFSET(generator_frame,            88,    88) \
    OFFSET(string_length,              32,    32) \
    OFFSET(string_state,               48,    48) \
    OFFSET(string_kind,                 2,     8) \
    OFFSET(string_data,                56,    56) \
    OFFSET(string_data_wide,           72,    72)

/* From 3.13 on a process carries its own table, _Py_DebugOffsets at the start of _PyRuntime, which is right for every build: where
 * in it each offset stands. For the tracer alone. */
#define CPYTHON_DEBUG_OFFSETS(OFFSET) \
    /*                                  3.8   3.9  3.10  3.11  3.12  3.13  3.14  3.15 */ \
    OFFSET(interpreter_next,         NONE, NONE, NONE, NONE, NONE,   64,   64,   64) \
    OFFSET(interpreter_threads,      NONE, NONE, NONE, NONE, NONE,   72,   72,   72) \
    OFFSET(interpreter_gil,          NONE, NONE, NONE, NONE, NONE,  112,  120,  120) \
    OFFSET(interpreter_modules,      NONE, NONE, NONE, NONE, NONE,   88,   96,   96) \
    OFFSET(thread_next,              NONE, NONE, NONE, NONE, NONE,  168,  192,  192) \
    OFFSET(thread_interpreter,       NONE, NONE, NONE, NONE, NONE,  176,  200,  200) \
    OFFSET(thread_frame,             NONE, NONE, NONE, NONE, NONE,  184,  208,  208) \
    OFFSET(thread_datastack,         NONE, NONE, NONE, NONE, NONE,  208,  232,  256) \
    OFFSET(thread_pthread,           NONE, NONE, NONE, NONE, NONE,  192,  216,  240) \
    OFFSET(thread_native_id,         NONE, NONE, NONE, NONE, NONE,  200,  224,  248) \
    OFFSET(thread_status,            NONE, NONE, NONE, NONE, NONE,  216,  240,  264) \
    OFFSET(frame_previous,           NONE, NONE, NONE, NONE, NONE,  232,  256,  320) \
    OFFSET(frame_code,               NONE, NONE, NONE, NONE, NONE,  240,  264,  328) \
    OFFSET(frame_owner,              NONE, NONE, NONE, NONE, NONE,  264,  288,  352) \
    OFFSET(code_file,                NONE, NONE, NONE, NONE, NONE,  280,  320,  384) \
    OFFSET(code_name,                NONE, NONE, NONE, NONE, NONE,  288,  328,  392) \
    OFFSET(code_qualname,            NONE, NONE, NONE, NONE, NONE,  296,  336,  400) \
    OFFSET(code_first_line,          NONE, NONE, NONE, NONE, NONE,  312,  352,  416) \
    OFFSET(code_lines,               NONE, NONE, NONE, NONE, NONE,  304,  344,  408) \
    OFFSET(string_state,             NONE, NONE, NONE, NONE, NONE,  544,  624,  720) \
    OFFSET(string_length,            NONE, NONE, NONE, NONE, NONE,  552,  632,  728) \
    OFFSET(string_data,              NONE, NONE, NONE, NONE, NONE,  560,  640,  736) \
    OFFSET(runtime_interpreters_head,NONE, NONE, NONE, NONE, NONE,   40,   40,   40) /* what follows is next to fields of the table above */ \
    OFFSET(code_argcount,            NONE, NONE, NONE, NONE, NONE,  320,  360,  424) \
    OFFSET(interpreter_own_gil,      NONE, NONE, NONE, NONE, NONE,  120,  128,  128) /* the main interpreter's own */ \
    OFFSET(gil_last_holder,          NONE, NONE, NONE, NONE, NONE,  144,  152,  152) \
    OFFSET(generator_frame,          NONE, NONE, NONE, NONE, NONE, NONE,  680,  808) \
    OFFSET(debugger_support,         NONE, NONE, NONE, NONE, NONE, NONE,  712,  840) /* the first of six offsets: record/agent/inject/pep768.py */

/* From 3.14 on the file that `_asyncio` is in has such a table of its own, the section .AsyncioDebug. */
#define CPYTHON_TASK_OFFSETS(OFFSET) \
    /*                                  3.8   3.9  3.10  3.11  3.12  3.13  3.14  3.15 */ \
    OFFSET(task_name,                NONE, NONE, NONE, NONE, NONE, NONE,    8,    8) \
    OFFSET(task_coro,                NONE, NONE, NONE, NONE, NONE, NONE,   40,   40) \
    OFFSET(task_node,                NONE, NONE, NONE, NONE, NONE, NONE,   48,   48) \
    OFFSET(interpreter_tasks,        NONE, NONE, NONE, NONE, NONE, NONE,   64,   64) \
    OFFSET(thread_task,              NONE, NONE, NONE, NONE, NONE, NONE,   88,   88) \
    OFFSET(thread_tasks,             NONE, NONE, NONE, NONE, NONE, NONE,   96,   96)

#endif
