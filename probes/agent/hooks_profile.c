/* Function events from the profile function of each thread, and lines from its trace function, CPython 3.8 to 3.11.
 *
 * The program may have a trace function of its own, now or later on: then its thread's lines are not known, and its frames are said to
 * stand at line 0 from where that was seen. */
#include <string.h>

#include "c_calls.h"
#include "calls.h"
#include "cpython.h"
#include "errands.h"
#include "frames.h"
#include "functions.h"
#include "generators.h"
#include "layers.h"
#include "left_out.h"
#include "objects.h"
#include "qualnames.h"
#include "raised.h"
#include "sources.h"
#include "threads.h"
#include "timing.h"

/* After c_profilefunc: c_tracefunc, then the object that a profile function of Python's own is. */
#define PROFILE_OBJECT 16
#define TRACE 8 /* from c_profilefunc to c_tracefunc */
#define THREAD_INTERPRETER 16 /* in PyThreadState, up to 3.11 */
#define SUSPENDED (-1) /* 3.10 and 3.11 */

static bool paused;
static uint64_t newest_watched; /* number of the newest thread when all were watched */
static uint32_t taken_before;   /* threads that another profiler had for a time */
static PyObject *bootstrap, *displaced; /* of threading: our object, and the program's own before it */

static int find_line(PyObject *frame, int unused)
{
    (void)unused;
    return py.PyFrame_GetLineNumber(frame);
}

/* Had the frame yielded before it was entered now? */
static bool resumes(const void *frame, const void *code)
{
    if (at->code_start < 0)
        return *(int32_t *)((char *)frame + at->frame_position) >= 0;
    return is_behind_start(code, (char *)pointer_at(frame, at->frame_position) - (char *)code - at->code_start);
}

/* Is the frame, of a generator or coroutine, left by yielding? */
static bool yields(const void *frame)
{
    if (at->frame_stacktop >= 0)
        return pointer_at(frame, at->frame_stacktop) != NULL;
    return *((signed char *)frame + at->generator_state) == SUSPENDED;
}

/* What function_of leaves out and is not written all the same: of no interest, or an import. */
static __attribute__((noinline)) void not_written(struct writer *w, const void *shown, PyObject *object, PyObject *code, uint64_t kind)
{
    struct function_entry *function = function_importing(code);
    if (function)
        import_event(w, function, shown, kind == CALL_ENTRY ? 0 : py.PyFrame_GetLineNumber(object), kind);
}

/* The frame of CPython's frame object. */
static void *frame_of(PyObject *object)
{
    return at->object_frame >= 0 ? pointer_at(object, at->object_frame) : object;
}

static __attribute__((noinline)) void on_c_event(void *frame, int what, PyObject *callable)
{
    struct writer *w = writer_here(frame, false);
    if (!w || !function_of(pointer_at(frame, at->frame_code)))
        arena_passed();
    else if (what == PROFILE_C_CALL)
        c_call_begins(w, callable, frames_known ? frame : NULL);
    else
        c_call_ends(w, callable, frames_known ? frame : NULL, what == PROFILE_C_RETURN ? CALL_RETURN : CALL_UNWIND);
}

/* Its instructions are wanted: from now on the frame reports them. */
static __attribute__((noinline)) void on_instruction(PyObject *object, int what)
{
    void *frame = frame_of(object);
    if (UNLIKELY(settle_child != NULL))
        writer_here(frame, what == PROFILE_CALL);
    if (!recording)
        return;
    if (UNLIKELY(!frames_known)) {
        arena->opcodes_dropped++;
        return;
    }
    struct function_entry *function = function_of(pointer_at(frame, at->frame_code));
    if (!function || !function->executes)
        return;
    if (what == TRACE_OPCODE)
        opcodes_count(writes_to(this_writer, recording) ? this_writer : NULL, function, opcodes_unit_of(frame));
    else
        *((char *)object + at->frame_trace_opcodes) = 1;
}

static int on_trace(PyObject *self, PyObject *object, int what, PyObject *argument)
{
    (void)self, (void)argument;
    if (UNLIKELY(options.opcodes) && (what == PROFILE_CALL || what == TRACE_LINE || what == TRACE_OPCODE))
        on_instruction(object, what);
    if (what != TRACE_LINE || !options.lines)
        return 0;
    void *frame = frame_of(object);
    struct writer *w = writer_here(frame, false);
    struct function_entry *function = w ? function_of(pointer_at(frame, at->frame_code)) : NULL;
    if (function && function->lined && frames_known)
        write_line(w, function, frame, line_of(frame), CALL_LINE);
    return 0;
}

static bool traced_by(void *state, void *function)
{
    return pointer_at(state, at->thread_profile + TRACE) == function;
}

#define TRACING (-20)   /* from c_profilefunc to tracing, how many callbacks the thread is in: 3.11 */
#define ALL_OPCODES 255 /* of use_tracing in 3.11, a byte */

/* use_tracing stands before c_profilefunc; from 3.10 on a pointer to the C frame that begins with it. */
static void *use_tracing(char *profile)
{
    return py.version < 0x030a0000 ? profile - 8 : *(void **)(profile - 8);
}

/* What use_tracing has to be. */
static int uses_tracing(const char *profile)
{
    bool hooked = *(void *const *)profile || *(void *const *)(profile + TRACE);
    if (py.version < 0x030b0000)
        return hooked;
    return hooked && *(const int *)(profile + TRACING) <= 0 ? ALL_OPCODES : 0;
}

/* Whether use_tracing is where that is expected, and what it has to be. */
static bool keeps_use_tracing(void *state)
{
    char *profile = (char *)state + at->thread_profile;
    void *place = use_tracing(profile);
    return (py.version < 0x030b0000 ? *(int *)place : *(uint8_t *)place) == uses_tracing(profile);
}

#define TRACED_THREADS_3_8 588 /* tracing_possible: in _PyRuntime */
#define TRACED_THREADS_3_9 68  /* in PyInterpreterState */

/* Up to 3.9 the number of threads that have a trace function: where that is 0 CPython looks for none. NULL = it does not count them. */
static int *traced_threads(void *state)
{
    if (py.version >= 0x030a0000)
        return NULL;
    return (int *)(py.version < 0x03090000 ? (char *)py.runtime + TRACED_THREADS_3_8 : (char *)pointer_at(state, THREAD_INTERPRETER) + TRACED_THREADS_3_9);
}

/* As CPython's own functions do, but without what they ask the program's audit hooks before: these may let other threads run, and one end, whose
 * state they would write to then. `hook`: 0 or TRACE. */
static void set_hook(void *state, int hook, profile_function function)
{
    char *profile = (char *)state + at->thread_profile;
    PyObject **object = (PyObject **)(profile + hook + PROFILE_OBJECT), *before = *object;
    profile_function *place = (profile_function *)(profile + hook);
    int *count = hook == TRACE ? traced_threads(state) : NULL;
    if (count)
        *count += (function != NULL) - (*place != NULL);
    *place = function;
    *object = NULL;
    if (py.version < 0x030b0000)
        *(int *)use_tracing(profile) = uses_tracing(profile);
    else
        *(uint8_t *)use_tracing(profile) = (uint8_t)uses_tracing(profile);
    if (before)
        py.Py_DecRef(before);
}

static void set_trace(void *state, profile_function function)
{
    set_hook(state, TRACE, function);
}

/* CPython's own function is tried on the current thread, which has none: does it count where that is expected? */
static bool counts_traced_threads(void *state)
{
    if (py.version >= 0x030a0000 || !(options.lines || options.opcodes))
        return true;
    if (!py.runtime)
        return false;
    const int *count = traced_threads(state);
    int before = *count;
    py.PyEval_SetTrace(on_trace, NULL);
    bool counted = *count == before + 1;
    py.PyEval_SetTrace(NULL, NULL);
    return counted && *count == before;
}

/* After an event: does the thread's trace function report lines to us? `frame` is innermost now, NULL = none; `what` the event. */
static __attribute__((noinline)) void watch_tracing(void *frame, int what)
{
    void *state = py._PyThreadState_UncheckedGet();
    struct writer *w = writer_here(frame, false); /* which may wait for a place in the arena, without the GIL */
    if (!recording)
        return;
    if (traced_by(state, NULL))
        set_trace(state, on_trace);
    bool was = w && w->unlined;
    if (!w || !(w->unlined = !traced_by(state, on_trace)))
        return;
    if (options.opcodes)
        arena->opcodes_dropped++;
    if (!frame || !frames_known)
        return;
    struct function_entry *function = function_of(pointer_at(frame, at->frame_code));
    if (function && function->lined && (!was || what == PROFILE_CALL || what == PROFILE_RETURN))
        write_line(w, function, frame, 0, EVENT_STANDS);
}

static void on_call_or_return(PyObject *object, void *frame, int what, PyObject *argument, PyObject *const *stack);

static int on_event(PyObject *self, PyObject *object, int what, PyObject *argument)
{
    (void)self;
    __builtin_unwind_init(); /* keeps the registers of the caller, for leave_raising() */
    uint64_t began = timing_begun();
    void *frame = frame_of(object), *next = what == PROFILE_RETURN ? pointer_at(frame, at->frame_previous) : frame;
    if (what == PROFILE_CALL || what == PROFILE_RETURN)
        on_call_or_return(object, frame, what, argument, __builtin_frame_address(0));
    else if (options.c_calls && what >= PROFILE_C_CALL)
        on_c_event(frame, what, argument);
    else
        arena_passed();
    if (UNLIKELY(options.lines || options.opcodes) && recording)
        watch_tracing(next, what);
    if (UNLIKELY(began != 0))
        timing_ends(began, what != PROFILE_C_CALL);
    return 0;
}

/* What `--args` named is left by raising: by what, and from which line, where that is found. */
static __attribute__((noinline)) void leave_raising(struct writer *w, struct function_entry *function, PyObject *object, const void *shown, uint32_t line, PyObject *const *stack)
{
    struct raised raised;
    bool found = raised_find(&raised, stack, object);
    if (found)
        line = traceback_line(raised.traceback, function->code);
    if (left(w, function, shown, line, CALL_UNWIND))
        write_raised(w, function, found ? raised.type : NULL, raised.value);
}

static void on_call_or_return(PyObject *object, void *frame, int what, PyObject *argument, PyObject *const *stack)
{
    PyObject *code = pointer_at(frame, at->frame_code);
    struct writer *w = writer_here(frame, what == PROFILE_CALL);
    if (UNLIKELY(!w))
        return;
    const void *shown = LIKELY(frames_known) ? frame : NULL;
    struct function_entry *function = function_of(code);
    if (UNLIKELY(!function) && !(function = left_out_written(code, shown, what == PROFILE_CALL))) {
        arena_passed();
        not_written(w, shown, object, code, what == PROFILE_CALL ? CALL_ENTRY : argument ? CALL_RETURN : CALL_UNWIND);
        return;
    }
    if (what == PROFILE_CALL) {
        enter(w, function, shown, function->resumable && resumes(frame, code) ? CALL_RESUME : CALL_ENTRY);
        return;
    }
    /* f_lasti is an int; the instruction pointer is relative to the code's address, of which the low half is enough. */
    uint32_t position = *(uint32_t *)((char *)frame + at->frame_position) - (frame != object ? (uint32_t)(uintptr_t)code : 0);
    uint32_t line = line_at(function, position, find_line, object, 0);
    if (UNLIKELY(function->observed & OF_ARGS) && !argument)
        leave_raising(w, function, object, shown, line, stack);
    else
        leave(w, function, shown, line, !argument ? CALL_UNWIND : function->resumable && yields(frame) ? CALL_YIELD : CALL_RETURN, argument);
}

static bool profiled_by(void *state, void *function)
{
    return pointer_at(state, at->thread_profile) == function;
}

static void set_profile(void *state, profile_function function)
{
    set_hook(state, 0, function);
}

/* A thread's events come, or come no more. */
static void watch_thread(void *state, bool on)
{
    set_profile(state, on ? on_event : NULL);
    if (on ? (options.lines || options.opcodes) && traced_by(state, NULL) : traced_by(state, on_trace))
        set_trace(state, on ? on_trace : NULL);
}

static void *first_thread(void)
{
    return py.PyInterpreterState_ThreadHead(py.PyInterpreterState_Main());
}

/* threading asks in each new thread whether it has a profile function. We answer no, and watch the thread from then on: a yes would lead to
 * sys.setprofile, which runs audit hooks and, in 3.10 and 3.11, raises where another thread is within it; the thread would not begin. */
static int meets_thread(PyObject *self)
{
    (void)self;
    void *state = py._PyThreadState_UncheckedGet();
    if (recording && !paused && profiled_by(state, NULL)) {
        watch_thread(state, true);
        writer_here(innermost_frame(state), false);
    }
    return 0;
}

static struct type_slot bootstrap_slots[] = {{9 /* Py_nb_bool */, meets_thread}, {0}};
static struct type_spec bootstrap_type = {
    .name = "pytrace.thread",
    .size = sizeof(PyObject),
    .flags = 1 << 7 /* the program makes none */ | 1 << 18 /* as every type */,
    .slots = bootstrap_slots,
};

static PyObject *new_bootstrap(void)
{
    PyObject *type = py.PyType_FromSpec(&bootstrap_type), *made = type ? py.PyType_GenericAlloc(type, 0) : NULL;
    if (type)
        py.Py_DecRef(type);
    return made;
}

static PyObject *profile_of_threading(PyObject *threading)
{
    PyObject *hook = threading ? py.PyObject_GetAttrString(threading, "_profile_hook") : NULL;
    if (!hook)
        py.PyErr_Clear();
    return hook;
}

/* Not by importing threading: a program that has no use for it shall not have it, and imported from a thread that is
 * not the main one it takes that for the main one. */
static void arm_threading(void)
{
    PyObject *threading = imported_module("threading"), *before = profile_of_threading(threading);
    if (before && before != bootstrap && !py.PyObject_SetAttrString(threading, "_profile_hook", bootstrap)) {
        if (displaced)
            py.Py_DecRef(displaced);
        displaced = before;
        return;
    }
    if (before)
        py.Py_DecRef(before);
    py.PyErr_Clear();
}

static void look_for_threading(const char *file)
{
    const char *name = strrchr(file, '/');
    if (bootstrap && !displaced && name && !strcmp(name, "/threading.py"))
        arm_threading();
}

static void stop(void)
{
    for (void *state = first_thread(); state; state = py.PyThreadState_Next(state))
        if (profiled_by(state, on_event))
            watch_thread(state, false);
        else if (traced_by(state, on_trace))
            set_trace(state, NULL);
    if (!bootstrap)
        return;
    PyObject *threading = imported_module("threading"), *now = profile_of_threading(threading);
    if (now == bootstrap && py.PyObject_SetAttrString(threading, "_profile_hook", displaced ? displaced : py.none))
        py.PyErr_Clear();
    if (now)
        py.Py_DecRef(now);
    if (displaced)
        py.Py_DecRef(displaced);
    py.Py_DecRef(bootstrap);
    bootstrap = displaced = NULL;
}

/* The agent's own, that is: the program's may run this as well. */
static void *state_of_agent(void)
{
    return errands_own_thread() ? py._PyThreadState_UncheckedGet() : NULL;
}

static void pause(bool on)
{
    paused = on;
    qualnames_forget(); /* nobody sees what runs meanwhile */
    void *agent = state_of_agent();
    for (void *state = first_thread(); state; state = py.PyThreadState_Next(state))
        if (profiled_by(state, on ? on_event : NULL) && state != agent)
            watch_thread(state, !on);
}

/* Up to 3.8 they have no numbers that grow. */
static bool was_watched(void *state)
{
    return py.PyThreadState_GetID && thread_number_of(state) <= newest_watched;
}

static void look(void)
{
    if (paused)
        return;
    void *agent = state_of_agent();
    for (void *state = first_thread(); state; state = py.PyThreadState_Next(state))
        if (profiled_by(state, NULL) && state != agent) {
            taken_before += was_watched(state);
            watch_thread(state, true);
            keep_open_frames_of(state);
        }
    newest_watched = thread_number_of(first_thread());
    if (!displaced)
        arm_threading();
}

static uint32_t taken(void)
{
    uint32_t count = taken_before;
    for (void *state = first_thread(); state && !paused; state = py.PyThreadState_Next(state))
        if (!profiled_by(state, on_event))
            count += !profiled_by(state, NULL) || was_watched(state);
    return count;
}

static const char *start(bool here)
{
    paused = false;
    PyObject *threading = imported_module("threading"), *hook = profile_of_threading(threading);
    bool taken = hook && hook != py.none;
    if (hook)
        py.Py_DecRef(hook);
    bool lined = false;
    for (void *state = first_thread(); state; state = py.PyThreadState_Next(state)) {
        taken |= !profiled_by(state, NULL);
        lined |= (options.lines || options.opcodes) && !traced_by(state, NULL);
    }
    if (taken)
        return "Another profiler is at work in the program, and up to Python 3.11 there can be but one: end it.";
    if (lined)
        return "A debugger or a coverage tool traces the program's lines, and up to Python 3.11 only one can: end it, or leave out --lines and --opcodes.";
    generators_protect();
    if (!(bootstrap = new_bootstrap())) {
        py.PyErr_Clear();
        return "There is no memory for the agent's callback.";
    }
    void *self = py._PyThreadState_UncheckedGet();
    py.PyEval_SetProfile(on_event, NULL);
    bool known = profiled_by(self, on_event) && keeps_use_tracing(self);
    py.PyEval_SetProfile(NULL, NULL);
    if (!known || !keeps_use_tracing(self) || !counts_traced_threads(self))
        return "This CPython does not keep its profile and trace functions where its version has them: run the program with an ordinary build.";
    for (void *state = first_thread(); state; state = py.PyThreadState_Next(state))
        if (state != self)
            watch_thread(state, true);
    watch_thread(self, here);
    newest_watched = thread_number_of(first_thread());
    taken_before = 0;
    arm_threading();
    return NULL;
}

const struct source profile = {start, stop, look, pause, NULL, look_for_threading, NULL, NULL, taken};
