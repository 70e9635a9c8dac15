/* Function events from sys.monitoring, CPython 3.12 and later. */
#include <string.h>

#include "c_calls.h"
#include "calls.h"
#include "cpython.h"
#include "frames.h"
#include "functions.h"
#include "interpreters.h"
#include "layers.h"
#include "left_out.h"
#include "objects.h"
#include "sources.h"
#include "threads.h"
#include "timing.h"
#include "tools.h"

/* A callable without what a C function does about each call: 22 ns an event instead of 26 (3.14, fib(24), added CPU
 * time, least of 4 runs by turns). It has no recursion check either, so an event cannot raise in the program. */
struct callback {
    char object[LARGEST_OBJECT];
    fast_call call; /* as vectorcall has it, but for the keywords' names, of which there are none */
    fast_call act;  /* of an interpreter beside the main one: what `call` does once it has entered the agent */
    struct interpreter *of;
};
static struct type_member members[] = {
    {"__vectorcalloffset__", 19 /* Py_ssize_t */, offsetof(struct callback, call), 1 /* read only */, NULL}, {0}};
static struct type_slot slots[] = {{50 /* Py_tp_call */, NULL}, {72 /* Py_tp_members */, members}, {0}};
static struct type_spec callback_type = {
    .name = "pytrace.callback",
    .size = sizeof(struct callback),
    .flags = 1 << 7 /* the program makes none */ | 1 << 11 /* vectorcall */ | 1 << 18 /* as every type */,
    .slots = slots,
};

enum { EVENTS = 12 };
static PyObject *on_start(PyObject *, PyObject *const *, Py_ssize_t), *on_resume(PyObject *, PyObject *const *, Py_ssize_t),
    *on_throw(PyObject *, PyObject *const *, Py_ssize_t),
    *on_return(PyObject *, PyObject *const *, Py_ssize_t), *on_yield(PyObject *, PyObject *const *, Py_ssize_t), *on_unwind(PyObject *, PyObject *const *, Py_ssize_t),
    *on_c_call(PyObject *, PyObject *const *, Py_ssize_t), *on_c_return(PyObject *, PyObject *const *, Py_ssize_t), *on_c_raise(PyObject *, PyObject *const *, Py_ssize_t),
    *on_line(PyObject *, PyObject *const *, Py_ssize_t), *on_jump(PyObject *, PyObject *const *, Py_ssize_t),
    *on_instruction(PyObject *, PyObject *const *, Py_ssize_t);
static const struct {
    const char *event;
    fast_call call;
    const bool *wanted; /* NULL = always */
} callbacks[EVENTS] = {
    {"PY_START", on_start, NULL},            {"PY_RESUME", on_resume, NULL},            {"PY_THROW", on_throw, NULL},
    {"PY_RETURN", on_return, NULL},          {"PY_YIELD", on_yield, NULL},              {"PY_UNWIND", on_unwind, NULL},
    {"CALL", on_c_call, &options.c_calls},   {"C_RETURN", on_c_return, &options.c_calls}, {"C_RAISE", on_c_raise, &options.c_calls},
    {"LINE", on_line, &options.lines},       {"JUMP", on_jump, &options.lines},
    {"INSTRUCTION", on_instruction, &options.opcodes},
};
void (*monitoring_taken)(void);
static int tool = -1;
static long all_events, instructions, starts;
static PyObject *disable;
static PyObject *last[EVENTS]; /* the callbacks of the session before: CPython may have called one just now, by a reference that it does not hold */
static bool paused;

static inline void *current_frame(void)
{
    void *state = py._PyThreadState_UncheckedGet();
    void *frame = pointer_at(state, at->thread_frame);
    if (at->cframe_frame >= 0)
        frame = pointer_at(frame, at->cframe_frame);
    return LIKELY(frames_known) ? frame : NULL;
}

/* The lowest digit is all of it. */
static inline uint32_t position_of(PyObject *offset)
{
    return *(uint32_t *)((char *)offset + at->int_digit);
}

/* The answer for code that is not wanted: from then on this place costs nothing. None is immortal here. */
static PyObject *never_again(void)
{
    py.Py_IncRef(disable);
    return disable;
}

static inline uint32_t line_left(struct function_entry *function, PyObject *const *arguments)
{
    uint32_t position = position_of(arguments[1]);
    return line_at(function, position, py.PyCode_Addr2Line, arguments[0], position);
}

/* What a callback returns, which is timed now and then. */
#define TIMED(callback) \
    ({ \
        uint64_t began = timing_begun(); \
        PyObject *result = (callback); \
        if (UNLIKELY(began != 0)) \
            timing_ends(began, true); \
        result; \
    })

/* What function_of leaves out and is not written all the same, of a thread that has its writer. */
static __attribute__((noinline)) PyObject *not_written(PyObject *const *arguments, uint64_t kind)
{
    struct function_entry *function = function_importing(arguments[0]);
    if (function) {
        import_event(this_writer, function, current_frame(), kind == CALL_ENTRY ? 0 : line_left(function, arguments), kind);
        return py.none;
    }
    bool ends = kind != CALL_ENTRY && kind != CALL_RESUME;
    return ends && left_out_waits(arguments[0]) ? py.none : never_again();
}

static inline __attribute__((always_inline)) PyObject *on_entry(PyObject *const *arguments, uint64_t kind)
{
    void *frame = current_frame();
    struct writer *w = writer_here(frame, true);
    if (UNLIKELY(!w))
        return py.none;
    struct function_entry *function = function_of(arguments[0]);
    if (UNLIKELY(!function) && !(function = left_out_written(arguments[0], frame, true)))
        return not_written(arguments, kind);
    if (UNLIKELY(function->executes)) /* RESUME, which is not reported as an instruction */
        opcodes_count(w, function, position_of(arguments[1]) / 2);
    enter(w, function, frame, kind);
    return py.none;
}

static PyObject *on_start(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self, (void)count;
    return TIMED(on_entry(arguments, CALL_ENTRY));
}

static PyObject *on_resume(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self, (void)count;
    return TIMED(on_entry(arguments, CALL_RESUME));
}

/* From 3.14 on close() does not enter a generator that could do nothing about it, unless a tool watches for exceptions:
 * without the agent nothing of this would run. */
static bool only_for_us(PyObject *const *arguments)
{
    if (at->resume_depth1 < 0 || type_of(arguments[2]) != *py.generator_exit)
        return false;
    return ((uint8_t *)arguments[0])[at->code_start + position_of(arguments[1]) + 1] & at->resume_depth1;
}

static PyObject *on_throw(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self, (void)count;
    void *frame = current_frame();
    struct writer *w = writer_here(frame, true);
    struct function_entry *function = w ? function_of(arguments[0]) : NULL;
    if (w && UNLIKELY(!function))
        function = left_out_written(arguments[0], frame, true);
    if (function && frame && only_for_us(arguments))
        w->closing = frame;
    else if (function)
        enter(w, function, frame, is_behind_start(arguments[0], position_of(arguments[1])) ? CALL_RESUME : CALL_ENTRY);
    return py.none;
}

static inline __attribute__((always_inline)) PyObject *on_leave(PyObject *const *arguments, uint64_t kind)
{
    void *frame = current_frame();
    struct writer *w = writer_here(frame, false);
    if (UNLIKELY(!w))
        return py.none;
    struct function_entry *function = function_of(arguments[0]);
    if (UNLIKELY(!function) && !(function = left_out_written(arguments[0], frame, false)))
        return not_written(arguments, kind);
    leave(w, function, frame, line_left(function, arguments), kind, arguments[2]);
    return py.none;
}

static PyObject *on_return(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self, (void)count;
    return TIMED(on_leave(arguments, CALL_RETURN));
}

static PyObject *on_yield(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self, (void)count;
    return TIMED(on_leave(arguments, CALL_YIELD));
}

/* The line that an exception left from. Where it is raised anew, as at the end of `except` and `finally`, the instruction has none: then the
 * newest entry of its traceback has it, if that is of this frame. */
static uint32_t line_raised(struct function_entry *function, PyObject *const *arguments, const void *frame)
{
    uint32_t line = line_left(function, arguments);
    PyObject *traceback = line ? NULL : exception_traceback(arguments[2]);
    if (!traceback || pointer_at(traceback_frame(traceback), at->object_frame) != frame)
        return line;
    return traceback_line(traceback, arguments[0]);
}

static PyObject *on_unwind(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self, (void)count;
    void *frame = current_frame();
    struct writer *w = writer_here(frame, false);
    struct function_entry *function = w ? function_of(arguments[0]) : NULL;
    if (w && UNLIKELY(!function))
        function = left_out_written(arguments[0], frame, false);
    if (w && UNLIKELY(w->closing != NULL) && w->closing == frame)
        w->closing = NULL;
    else if (function)
        leave(w, function, frame, line_raised(function, arguments, frame), CALL_UNWIND, arguments[2]);
    else if (w && function_importing(arguments[0]))
        not_written(arguments, CALL_UNWIND);
    return py.none;
}

/* The writer of the calls that a function of the program's makes; NULL: they are not written. */
static inline struct writer *writer_of_calls(PyObject *code, void *frame)
{
    struct writer *w = writer_here(frame, false);
    return w && LIKELY(function_of(code) != NULL) ? w : NULL;
}

static PyObject *on_c_call(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self, (void)count;
    void *frame = current_frame();
    struct writer *w = writer_of_calls(arguments[0], frame);
    if (w)
        c_call_begins(w, arguments[2], frame);
    return py.none;
}

static inline __attribute__((always_inline)) PyObject *on_c_end(PyObject *const *arguments, uint64_t kind)
{
    void *frame = current_frame();
    struct writer *w = writer_of_calls(arguments[0], frame);
    if (w)
        c_call_ends(w, arguments[2], frame, kind);
    return py.none;
}

static PyObject *on_c_return(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self, (void)count;
    return on_c_end(arguments, CALL_RETURN);
}

static PyObject *on_c_raise(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self, (void)count;
    return on_c_end(arguments, CALL_UNWIND);
}

static PyObject *on_line(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self, (void)count;
    void *frame = current_frame();
    struct writer *w = writer_here(frame, false);
    if (UNLIKELY(!w))
        return py.none;
    struct function_entry *function = function_of(arguments[0]);
    if (!function || !function->lined)
        return never_again();
    write_line(w, function, frame, position_of(arguments[1]), CALL_LINE);
    return py.none;
}

/* Back to the beginning of the same line, as a loop does that is written on one: the line begins anew, without an event LINE. */
static PyObject *on_jump(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self, (void)count;
    uint32_t from = position_of(arguments[1]), to = position_of(arguments[2]);
    if (to >= from)
        return never_again();
    void *frame = current_frame();
    struct writer *w = writer_here(frame, false);
    if (UNLIKELY(!w))
        return py.none;
    struct function_entry *function = function_of(arguments[0]);
    uint32_t line = function && function->lined ? line_at(function, from, py.PyCode_Addr2Line, arguments[0], from) : 0;
    if (!line || line != line_at(function, to, py.PyCode_Addr2Line, arguments[0], to))
        return never_again();
    write_line(w, function, frame, line, CALL_LINE);
    return py.none;
}

static PyObject *on_instruction(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self, (void)count;
    struct writer *w = writer_here(current_frame(), false);
    if (UNLIKELY(!w))
        return py.none;
    struct function_entry *function = function_of(arguments[0]);
    if (UNLIKELY(!function || !function->executes))
        return never_again();
    opcodes_count(w, function, position_of(arguments[1]) / 2);
    return py.none;
}

/* Calls a method for its effect; false when it raised. */
static bool called(PyObject *result)
{
    if (result)
        py.Py_DecRef(result);
    else
        py.PyErr_Clear();
    return result != NULL;
}

static PyObject *on_foreign(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    struct callback *callback = (struct callback *)self;
    struct interpreter *in = callback->of;
    bool entering = callback->act == on_start || callback->act == on_resume || callback->act == on_throw;
    struct writer *w = interpreter_enters(in, self, current_frame(), entering);
    if (UNLIKELY(!w))
        return py.none;
    PyObject *result = callback->act(self, arguments, count);
    interpreter_leaves(in, w);
    return result;
}

static PyObject *new_callback(PyObject *type, fast_call call, struct interpreter *of)
{
    struct callback *callback = type ? (struct callback *)py.PyType_GenericAlloc(type, 0) : NULL;
    if (callback) {
        callback->call = of ? on_foreign : call;
        callback->act = call;
        callback->of = of;
    }
    return (PyObject *)callback;
}

void monitoring_forget(void)
{
    memset(last, 0, sizeof last);
}

static bool keep(int i, PyObject *callback)
{
    if (last[i])
        py.Py_DecRef(last[i]);
    last[i] = callback;
    return callback != NULL;
}

/* Registers all callbacks for a tool, or None for each; of calls alone for an interpreter beside the main one. The events, 0 when something was refused. */
static long register_callbacks(PyObject *module, PyObject *numbers, int number, bool on, struct interpreter *of)
{
    slots[0].value = py.vectorcall_call;
    PyObject *type = on ? py.PyType_FromSpec(&callback_type) : NULL;
    long events = 0;
    bool done = true;
    for (int i = 0; i < EVENTS && done; i++) {
        if (callbacks[i].wanted && (of || (on && !*callbacks[i].wanted)))
            continue;
        long event = long_attribute(numbers, callbacks[i].event);
        PyObject *callback = on ? new_callback(type, callbacks[i].call, of) : py.none;
        PyObject *before = callback && event ? py.PyObject_CallMethod(module, "register_callback", "ilO", number, event, callback) : NULL;
        done = on || of ? called(before) : keep(i, before);
        if (on && callback)
            py.Py_DecRef(callback);
        if (callbacks[i].call == on_instruction)
            instructions = event; /* asked for by code object */
        else
            events |= event;
        if (callbacks[i].call == on_start)
            starts = event;
    }
    if (type)
        py.Py_DecRef(type);
    py.PyErr_Clear();
    return done ? events : 0;
}

static void pause(bool on)
{
    paused = on;
    PyObject *module = py.PySys_GetObject("monitoring");
    if (module && tool >= 0)
        called(py.PyObject_CallMethod(module, "set_events", "il", tool, on ? 0 : all_events));
}

void monitoring_again(void)
{
    PyObject *type, *value, *traceback; /* of the program's, where a forked child begins at one of its events */
    py.PyErr_Fetch(&type, &value, &traceback);
    PyObject *module = py.PySys_GetObject("monitoring");
    if (module)
        called(py.PyObject_CallMethod(module, "restart_events", NULL));
    py.PyErr_Restore(type, value, traceback);
}

/* Gives a tool back, where there is one. */
static void give_back(int *number, struct interpreter *of)
{
    PyObject *module = py.PySys_GetObject("monitoring"), *numbers = module ? py.PyObject_GetAttrString(module, "events") : NULL;
    if (*number >= 0 && numbers) {
        called(py.PyObject_CallMethod(module, "set_events", "ii", *number, 0));
        monitoring_again(); /* who gets this tool's id next shall find no place where nothing is wanted */
        register_callbacks(module, numbers, *number, false, of);
        int id = *number;
        *number = -1; /* first: tools.c tells the program that it is free */
        called(py.PyObject_CallMethod(module, "free_tool_id", "i", id));
    }
    if (numbers)
        py.Py_DecRef(numbers);
    py.PyErr_Clear();
}

static void stop(void)
{
    tools_end();
    if (tool >= 0)
        py.Py_DecRef(disable);
    give_back(&tool, NULL);
}

void monitoring_leaves(struct interpreter *in)
{
    give_back(&in->tool, in);
}

static bool report(PyObject *code, bool on)
{
    PyObject *module = py.PySys_GetObject("monitoring");
    return module && tool >= 0 && called(py.PyObject_CallMethod(module, "set_local_events", "iOl", tool, code, on ? instructions : 0L));
}

/* The interpreter made frames report that were on a stack then, and makes others do when they are entered or loop. To ask for an event of this
 * code's that comes anyway has it look at once. */
static void runs(PyObject *code)
{
    PyObject *type, *value, *traceback;
    py.PyErr_Fetch(&type, &value, &traceback);
    PyObject *module = py.PySys_GetObject("monitoring"), *now = module && tool >= 0 ? py.PyObject_CallMethod(module, "get_local_events", "iO", tool, code) : NULL;
    if (now) {
        long events = py.PyLong_AsLong(now);
        called(py.PyObject_CallMethod(module, "set_local_events", "iOl", tool, code, events ^ starts));
        called(py.PyObject_CallMethod(module, "set_local_events", "iOl", tool, code, events));
        py.Py_DecRef(now);
    }
    py.PyErr_Clear();
    py.PyErr_Restore(type, value, traceback);
}

static bool positions_readable(void)
{
    PyObject *number = py.PyLong_FromLong(123456789);
    bool right = number && position_of(number) == 123456789;
    if (number)
        py.Py_DecRef(number);
    return right;
}

/* The events that the running interpreter reports to a tool of ours from now on; 0: it refuses, and `number` is below 0 where no tool was free. */
static long take_tool(PyObject *module, PyObject *numbers, int *number, struct interpreter *of)
{
    static const int tools[] = {4, 3, 5, 2, 1, 0};
    for (int i = 0; i < 6 && *number < 0; i++)
        if (called(py.PyObject_CallMethod(module, "use_tool_id", "is", tools[i], "pytrace-ebpf")))
            *number = tools[i];
    long events = *number < 0 ? 0 : register_callbacks(module, numbers, *number, true, of);
    bool done = events && called(py.PyObject_CallMethod(module, "restart_events", NULL)) && called(py.PyObject_CallMethod(module, "set_events", "il", *number, events));
    return done ? events : 0;
}

static _Thread_local bool moves __attribute__((tls_model("initial-exec"))); /* it takes another one, and asks for the one that it has, too */

static int ours(void)
{
    if (moves)
        return -1;
    const struct interpreter *in = cpython_is_main() ? NULL : interpreters_running();
    return cpython_is_main() ? tool : in ? in->tool : -1;
}

/* To another id of this interpreter's; false: there is none. */
static bool move(int *number, struct interpreter *of)
{
    PyObject *module = py.PySys_GetObject("monitoring"), *numbers = module ? py.PyObject_GetAttrString(module, "events") : NULL;
    int before = *number, next = -1;
    moves = true;
    bool done = numbers && take_tool(module, numbers, &next, of);
    moves = false;
    if (!of && done && paused)
        called(py.PyObject_CallMethod(module, "set_events", "ii", next, 0));
    if (done && !of)
        opcodes_report(false);
    if (done)
        *number = next;
    if (done && !of)
        opcodes_report(true);
    give_back(done ? &before : &next, of);
    if (numbers)
        py.Py_DecRef(numbers);
    py.PyErr_Clear();
    return done;
}

static void give_way(void)
{
    struct interpreter *in = cpython_is_main() ? NULL : interpreters_running();
    PyObject *type, *value, *traceback;
    py.PyErr_Fetch(&type, &value, &traceback);
    if (settle_child)
        settle_child();
    if (in && !move(&in->tool, in)) {
        in->over = true;
        monitoring_leaves(in);
    } else if (!in && !move(&tool, NULL)) {
        monitoring_taken();
    }
    py.PyErr_Restore(type, value, traceback);
}

static const char *start(bool here)
{
    paused = false;
    for (int i = 0; i < EVENTS; i++)
        keep(i, NULL);
    (void)here; /* it is for every thread at once, and the agent's own runs no code of the program's */
    PyObject *module = py.PySys_GetObject("monitoring"), *numbers = module ? py.PyObject_GetAttrString(module, "events") : NULL;
    if (!numbers || !positions_readable() || !(disable = py.PyObject_GetAttrString(module, "DISABLE"))) {
        py.PyErr_Clear();
        return "This CPython's sys.monitoring is not the one that its version has: run the program with an ordinary build.";
    }
    const char *failure = NULL;
    all_events = take_tool(module, numbers, &tool, NULL);
    if (tool < 0) {
        py.Py_DecRef(disable);
        failure = "Other tools have taken every tool id of sys.monitoring: end one of them (a debugger, coverage, a profiler).";
    } else if (!all_events) {
        stop();
        failure = "sys.monitoring refused the agent's callbacks: is another tool or an audit hook in the way?";
    }
    py.Py_DecRef(numbers);
    if (!failure) {
        tools_ours = ours;
        tools_give_way = give_way;
        tools_begin();
    }
    return failure;
}

bool monitoring_enters(struct interpreter *in)
{
    PyObject *module = py.PySys_GetObject("monitoring"), *numbers = module ? py.PyObject_GetAttrString(module, "events") : NULL;
    bool done = numbers && take_tool(module, numbers, &in->tool, in);
    if (numbers)
        py.Py_DecRef(numbers);
    if (!done)
        monitoring_leaves(in);
    py.PyErr_Clear();
    return done;
}

const struct source monitoring = {start, stop, NULL, pause, monitoring_again, NULL, runs, report, NULL};
