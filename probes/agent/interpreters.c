/* Finds the interpreters beside the main one, and has each report its calls.
 *
 * How an interpreter is met: it executes code, which an audit hook hears on the thread that does, with its GIL held; or, where it was there
 * before, by a function that stands in for the interpreter's own evaluation of frames until a thread of it enters the next one. Only that
 * function's address is written into the state of an interpreter that another thread runs, under the lock without which none is freed. */
#include "interpreters.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "arena.h"
#include "frames.h"
#include "functions.h"
#include "pages.h"
#include "sources.h"
#include "threads.h"

#define PAIRS (1 << 15)
#define MOST_PAIRS (PAIRS / 4 * 3)
#define PAUSE_NS 100000
#define PATIENCE_NS 5000000000ull

bool interpreters_listen;
void (*interpreters_ask_to_hear)(void);

static bool wanted;
static uint64_t told; /* interpreters_made() when they were last told */
static struct interpreter *all, *spare;
static uint32_t numbers;
static struct {
    uint32_t writer, interpreter; /* numbers; 0 = empty */
} pairs[PAIRS]; /* which threads have written calls of which of them */
static uint32_t pairs_used;

static void set_free(PyObject **object)
{
    if (*object)
        py.Py_DecRef(*object);
    *object = NULL;
}

/* --- which there are --- */

static struct interpreter *known(const void *state, int64_t id)
{
    struct interpreter *in = all;
    while (in && !(in->state == state && in->id == id))
        in = in->next;
    return in;
}

/* NULL = there is no memory. */
static struct interpreter *take(void)
{
    struct interpreter *in = spare;
    if (!in)
        return pages(sizeof *in);
    spare = in->next;
    return in;
}

static struct interpreter *running(void)
{
    void *state = py.PyInterpreterState_Get();
    int64_t id = py.PyInterpreterState_GetID(state);
    arena_lock();
    struct interpreter *in = known(state, id);
    if (!in && (in = take())) {
        *in = (struct interpreter){.state = state, .id = id, .number = ++numbers, .tool = -1, .next = all};
        all = in;
    }
    arena_unlock();
    return in;
}

struct interpreter *interpreters_running(void)
{
    void *state = py.PyInterpreterState_Get();
    int64_t id = py.PyInterpreterState_GetID(state);
    arena_lock();
    struct interpreter *in = known(state, id);
    arena_unlock();
    return in;
}

/* The running one is being taken down. What has left may be another's next. */
static void goes(void)
{
    void *state = py.PyInterpreterState_Get();
    int64_t id = py.PyInterpreterState_GetID(state);
    arena_lock();
    struct interpreter *in = known(state, id), **at = &all;
    PyObject *last = in ? in->last : NULL;
    functions_generation++;
    if (in) {
        in->state = NULL;
        in->last = NULL;
        in->session = 0;
        in->over = true;
    }
    if (in && in->tool < 0 && !in->within) {
        while (*at != in)
            at = &(*at)->next;
        *at = in->next;
        in->next = spare;
        spare = in;
    }
    arena_unlock();
    set_free(&last);
}

void interpreters_forget(void)
{
    interpreter_here = NULL;
    owner_here = 0;
    wanted = false;
    told = 0;
    for (struct interpreter *in = all; in; in = in->next) {
        in->state = NULL;
        in->within = 0;
    }
}

/* --- entering and leaving one, on a thread of its own --- */

static void call_atexit(struct interpreter *in, const char *method)
{
    PyObject *module = import_unseen("atexit");
    PyObject *result = module && in->exit_function ? py.PyObject_CallMethod(module, method, "O", in->exit_function) : NULL;
    if (result)
        py.Py_DecRef(result);
    if (module)
        py.Py_DecRef(module);
    py.PyErr_Clear();
}

/* `callback`: the one that runs; NULL = none does. */
static void leave_it(struct interpreter *in, PyObject *callback)
{
    PyObject *type, *value, *traceback;
    py.PyErr_Fetch(&type, &value, &traceback);
    set_free(&in->last);
    if ((in->last = callback)) /* which CPython calls by a reference that it does not hold */
        py.Py_IncRef(callback);
    in->session = 0;
    monitoring_leaves(in);
    call_atexit(in, "unregister");
    set_free(&in->exit_function);
    py.PyErr_Clear();
    py.PyErr_Restore(type, value, traceback);
}

/* Before its modules are taken down. What runs from here on is not recorded. */
static PyObject *at_exit(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self, (void)arguments, (void)count;
    struct interpreter *in = running();
    if (in && in->tool >= 0) {
        in->over = true;
        leave_it(in, NULL);
        set_free(&in->last);
    }
    py.Py_IncRef(py.none);
    return py.none;
}

static struct method at_exit_method = {"pytrace_at_exit", at_exit, 0, NULL};

static void enter_it(struct interpreter *in, uint64_t session)
{
    PyObject *type, *value, *traceback;
    py.PyErr_Fetch(&type, &value, &traceback);
    in->entering = true;
    set_free(&in->last);
    in->session = session; /* whether or not it can be: it is not tried again */
    if (in->tool >= 0)
        monitoring_again();
    else if (monitoring_enters(in)) {
        in->exit_function = new_function(&at_exit_method);
        call_atexit(in, "register");
    }
    in->entering = false;
    py.PyErr_Clear();
    py.PyErr_Restore(type, value, traceback);
}

static void meet(void)
{
    uint64_t session = __atomic_load_n(&recording, __ATOMIC_ACQUIRE);
    struct interpreter *in = session && __atomic_load_n(&wanted, __ATOMIC_ACQUIRE) ? running() : NULL;
    if (in && in->session != session && !in->entering && !in->over)
        enter_it(in, session);
}

void interpreters_hear(const char *event)
{
    bool ends = !strcmp(event, "cpython.PyInterpreterState_Clear");
    if ((!ends && (!wanted || strcmp(event, "exec"))) || !py._PyThreadState_UncheckedGet() || cpython_is_main())
        return;
    if (ends)
        goes();
    else
        meet();
}

/* --- telling those that are there --- */

static PyObject *on_evaluation(void *state, void *frame, int thrown)
{
    void *in = py.PyInterpreterState_Get();
    if (py._PyInterpreterState_GetEvalFrameFunc(in) == on_evaluation)
        py._PyInterpreterState_SetEvalFrameFunc(in, py._PyEval_EvalFrameDefault);
    if (!cpython_is_main())
        meet();
    return py._PyEval_EvalFrameDefault(state, frame, thrown);
}

/* Of a JIT the code that it has made for another interpreter, which may run just now, would be discarded with it. */
static bool has_jit(void)
{
    PyObject *jit = py.PySys_GetObject("_jit"), *is_on = jit ? py.PyObject_CallMethod(jit, "is_enabled", NULL) : NULL;
    bool has = jit && is_on != py.false_;
    if (is_on)
        py.Py_DecRef(is_on);
    py.PyErr_Clear();
    return has;
}

/* The lock of the list of interpreters, without which none is freed, lies two words before the main one's address; from 3.13 on it is a byte. */
static bool lock_list(char **lock)
{
    char *at_it = (char *)py.runtime + at->runtime_main_interpreter - 2 * sizeof(void *);
    *lock = at_it;
    if (*(void **)(at_it + sizeof(void *)) != py.PyInterpreterState_Head())
        return false;
    if (py.version >= 0x030d0000)
        py.PyMutex_Lock(at_it);
    else if (!*(void **)at_it || !py.PyThread_acquire_lock(*(void **)at_it, 1))
        return false;
    return true;
}

static void unlock_list(char *lock)
{
    if (py.version >= 0x030d0000)
        py.PyMutex_Unlock(lock);
    else
        py.PyThread_release_lock(*(void **)lock);
}

static bool can_tell(void)
{
    bool locks = py.version >= 0x030d0000 ? py.PyMutex_Lock && py.PyMutex_Unlock : py.PyThread_acquire_lock && py.PyThread_release_lock;
    return locks && py.runtime && py.PyInterpreterState_Head && py.PyInterpreterState_Next && py._PyInterpreterState_GetEvalFrameFunc &&
           py._PyInterpreterState_SetEvalFrameFunc && py._PyEval_EvalFrameDefault && !has_jit();
}

static bool reports(void *state)
{
    int64_t id = py.PyInterpreterState_GetID(state);
    arena_lock();
    const struct interpreter *in = known(state, id);
    bool does = in && __atomic_load_n(&in->session, __ATOMIC_RELAXED) == recording;
    arena_unlock();
    return does;
}

void interpreters_look(void)
{
    char *lock;
    told = interpreters_made();
    if (told <= 1)
        return;
    interpreters_listen = true;
    interpreters_ask_to_hear();
    if (!can_tell())
        return;
    if (!lock_list(&lock)) {
        told = 0; /* one is just being made */
        return;
    }
    for (void *state = py.PyInterpreterState_Head(); state; state = py.PyInterpreterState_Next(state))
        if (state != py.PyInterpreterState_Main() && py._PyInterpreterState_GetEvalFrameFunc(state) == py._PyEval_EvalFrameDefault && !reports(state))
            py._PyInterpreterState_SetEvalFrameFunc(state, on_evaluation);
    unlock_list(lock);
}

bool interpreters_came(void)
{
    return wanted && interpreters_made() != told;
}

void interpreters_begin(void)
{
    if (py.version < 0x030c0000 || py.free_threaded || options.memory || options.opcodes || options.main_only || !py.PyInterpreterState_Get || !py.PyInterpreterState_GetID)
        return;
    memset(pairs, 0, sizeof pairs);
    pairs_used = 0;
    interpreters_listen = true;
    __atomic_store_n(&wanted, true, __ATOMIC_RELEASE); /* after the frames that are open were written for threads that may be in another interpreter now */
    interpreters_look();
}

void interpreters_end(void)
{
    __atomic_store_n(&wanted, false, __ATOMIC_RELEASE);
}

static bool somebody_within(void)
{
    bool within = false;
    arena_lock();
    for (const struct interpreter *in = all; in && !within; in = in->next)
        within = in->state && __atomic_load_n(&in->within, __ATOMIC_ACQUIRE);
    arena_unlock();
    return within;
}

bool interpreters_left(void)
{
    struct timespec pause = {0, PAUSE_NS};
    uint64_t since = clock_ns();
    while (somebody_within()) {
        if (clock_ns() - since > PATIENCE_NS)
            return false;
        nanosleep(&pause, NULL);
    }
    return true;
}

/* --- in a callback --- */

/* Whether this thread wrote none of this interpreter's calls before, as far as there is room to know. */
static bool is_new_pair(uint32_t writer, uint32_t interpreter)
{
    uint32_t i = (writer * 0x9e3779b1u ^ interpreter * 0x85ebca6bu) >> 17;
    while (pairs[i].writer && !(pairs[i].writer == writer && pairs[i].interpreter == interpreter))
        i = (i + 1) % PAIRS;
    if (pairs[i].writer || pairs_used == MOST_PAIRS)
        return false;
    pairs[i].writer = writer;
    pairs[i].interpreter = interpreter;
    pairs_used++;
    return true;
}

static bool tell_pair(const struct writer *w, const struct interpreter *in)
{
    char id[24];
    const char *const text[3] = {id, "", ""};
    size_t length[3] = {snprintf(id, sizeof id, "%lld", (long long)in->id), 0, 0};
    arena_lock();
    bool is_new = is_new_pair(w->number, in->number);
    if (is_new)
        arena_add_function(-INTERPRETER, w->tid, text, length);
    arena_unlock();
    return is_new;
}

/* The thread came to this interpreter from another one. */
static struct writer *arrive(struct interpreter *in, void *frame, bool entering)
{
    struct writer *w = writer_here(frame, entering);
    if (!w)
        return NULL;
    w->foreign = true;
    if (w->interpreter == in->number)
        return w;
    w->interpreter = in->number;
    if (tell_pair(w, in) && frame && frames_known)
        write_open_frames(w, entering ? frame_behind(frame) : frame);
    return w;
}

/* Not the session's: that of this interpreter is over, or was not its own. */
static void settle(struct interpreter *in, PyObject *callback)
{
    uint64_t session = __atomic_load_n(&recording, __ATOMIC_ACQUIRE);
    if (in->entering || !in->state)
        return;
    if (session && !in->over && __atomic_load_n(&wanted, __ATOMIC_ACQUIRE))
        enter_it(in, session);
    else
        leave_it(in, callback);
}

struct writer *interpreter_enters(struct interpreter *in, PyObject *callback, void *frame, bool entering)
{
    struct writer *w = this_writer;
    if (LIKELY(writes_to(w, in->session)))
        __atomic_store_n(&w->foreign, true, __ATOMIC_RELAXED);
    __atomic_store_n(&in->within, in->within + 1, __ATOMIC_SEQ_CST); /* before `recording` is looked at */
    if (UNLIKELY(in->session != __atomic_load_n(&recording, __ATOMIC_SEQ_CST) || settle_child)) {
        interpreter_leaves(in, w);
        settle(in, callback);
        return NULL;
    }
    interpreter_here = in;
    owner_here = in->number;
    if (UNLIKELY(w->session != in->session || w->interpreter != in->number))
        w = arrive(in, frame, entering);
    if (UNLIKELY(!w))
        interpreter_leaves(in, this_writer);
    return w;
}

void interpreter_leaves(struct interpreter *in, struct writer *w)
{
    interpreter_here = NULL;
    owner_here = 0;
    if (LIKELY(w->foreign))
        __atomic_store_n(&w->foreign, false, __ATOMIC_RELEASE);
    __atomic_store_n(&in->within, in->within - 1, __ATOMIC_RELEASE);
}
