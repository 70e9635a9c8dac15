/* Begins a session, looks for its end, and takes everything down again; a forked child begins one of its own. */
#define _GNU_SOURCE
#include "session.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "build.h"
#include "errands.h"
#include "frames.h"
#include "functions.h"
#include "greenlets.h"
#include "interpreters.h"
#include "layers.h"
#include "left_out.h"
#include "memory.h"
#include "objects.h"
#include "opcodes.h"
#include "options.h"
#include "qualnames.h"
#include "sources.h"
#include "stacks.h"
#include "threads.h"
#include "world.h"

#define LOOK_NS 500000000 /* from one look whether the tracer is there to the next */

/* INHERITED: a forked child whose parent had hooks on; its first event, or a new session, settles it. */
enum { IDLE, STARTING, ACTIVE, ENDING, INHERITED };
static int phase = IDLE;
static bool hooks_on, parent_was_ending, watches_interpreter, looking;
static uint64_t sessions, tracer_seen;
static char next_directory[PATH_MAX]; /* of the session that is asked for; "" = none */
static PyObject *exit_function;
static const struct source *hooks;
void (*session_interpreter_gone)(const char *directory);

/* The tracer's keeper holds the lock as long as the tracer lives. Opened anew each time: the program may close a descriptor of ours. Asked
 * for who holds it rather than tried: only a write lock counts, which no other user's process can take. */
static bool tracer_is_gone(void)
{
    char path[PATH_MAX + 8];
    snprintf(path, sizeof path, "%s/lock", options.directory);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT;
    struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
    bool gone = !fcntl(fd, F_OFD_GETLK, &lock) && lock.l_type == F_UNLCK;
    close(fd);
    return gone;
}

static void remove_file(const char *directory, const char *name)
{
    char path[PATH_MAX + 16];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    unlink(path);
}

/* All of it is this user's, and the keeper may have been killed with the tracer. */
static void remove_session_files(void)
{
    static const char *const names[] = {"agent.so", "options", "begin.py", "lock"};
    arena_unlink();
    remove_file(options.arenas, "failure");
    rmdir(options.arenas); /* by the last of the processes */
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        remove_file(options.directory, names[i]);
    rmdir(options.directory);
}

static void call_atexit(const char *method)
{
    PyObject *type, *value, *traceback;
    py.PyErr_Fetch(&type, &value, &traceback);
    PyObject *module = py.PyImport_ImportModule("atexit");
    PyObject *result = module ? py.PyObject_CallMethod(module, method, "O", exit_function) : NULL;
    if (result)
        py.Py_DecRef(result);
    if (module)
        py.Py_DecRef(module);
    py.PyErr_Clear();
    py.PyErr_Restore(type, value, traceback);
}

/* GIL held. */
static void unhook(void)
{
    memory_stop();
    opcodes_stop();
    greenlets_stop();
    hooks->stop();
    collections_stop();
    world_leaves_agent();
    functions_end();
    arena_lock();
    hooks_on = false;
    arena_unlock();
}

/* GIL held. */
static void take_down(void)
{
    unhook();
    if (exit_function) {
        call_atexit("unregister");
        py.Py_DecRef(exit_function);
        exit_function = NULL;
    }
}

static void stop_recording(void)
{
    __atomic_store_n(&recording, 0, __ATOMIC_SEQ_CST);
    interpreters_end();
    if (!arena->stopped) {
        arena->interpreters = interpreters_made();
        arena->stopped = stamp_of(arena->clock);
    }
}

/* Only who runs Python writes, so while nobody does the end is exact. */
static void stop_counting(void)
{
    memory_flush();
    opcodes_flush();
    arena->threads_taken = hooks->taken ? hooks->taken() : 0;
    writers_close(); /* one of them may wait within the agent, with an event to write */
    stop_recording();
}

/* The arena's last word. From then on the next session may begin: a tracer that has read it may ask for one at once. */
static void last_word(uint32_t state, const char *message)
{
    struct ended ended = arena_detach();
    __atomic_store_n(&phase, IDLE, __ATOMIC_SEQ_CST);
    arena_end(ended, state, message);
}

/* Other interpreters, each of which may wait for the GIL. */
static bool others_left(void)
{
    if (interpreters_made() <= 1)
        return true;
    void *state = py.PyEval_SaveThread();
    bool left = interpreters_left();
    py.PyEval_RestoreThread(state);
    return left;
}

/* GIL held, hooks on. `down`: what takes the hooks off; why: where the program has it leave, else NULL. */
static void end(bool tracer_gone, void (*down)(void), const char *why)
{
    int active = ACTIVE;
    if (!__atomic_compare_exchange_n(&phase, &active, ENDING, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        return;
    arena_wait_no_more();
    world_claim();
    world_stopped(stop_counting);
    stop_recording();
    down();
    world_release();
    if (tracer_gone)
        remove_session_files();
    if (others_left())
        last_word(why ? ARENA_REFUSED : ARENA_QUIET, why);
    else /* a thread may still be writing its last event: it stays mapped */
        arena_say(arena, ARENA_QUIET);
}

static void no_tool_left(void)
{
    end(false, take_down, "The program has taken every tool id of sys.monitoring for itself: from then on its calls are not recorded.");
}

static PyObject *at_exit(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self, (void)arguments, (void)count;
    if (hooks_on && arena)
        end(tracer_is_gone(), unhook, NULL);
    py.Py_IncRef(py.none);
    return py.none;
}

static struct method at_exit_method = {"pytrace_at_exit", at_exit, 0, NULL};

/* CPython's last word. */
static void interpreter_gone(void)
{
    watches_interpreter = false;
    exit_function = NULL;
    interpreters_forget();
    monitoring_forget();
    functions_end();
    qualnames_forget();
    if (!tracer_is_gone())
        session_interpreter_gone(options.directory);
}

static bool joins; /* a program that runs, on a thread of its own */

static void begin_recording(void)
{
    recording = ++sessions;
    frames_verify();
    keep_open_frames(joins);
}

/* GIL held, arena open. NULL, or why it cannot be. */
static const char *switch_on(bool here)
{
    hooks = py.version >= 0x030c0000 ? &monitoring : &profile;
    function_seen = hooks->function_seen;
    stacks_unseen = hooks->runs;
    const char *failure = cpython_unfit();
    qualnames_forget(); /* code ran since the last session, if there was one */
    if (!failure)
        failure = functions_begin();
    if (!failure) {
        left_out_begin(NULL);
        opcodes_begin(hooks->report);
        objects_verify();
        if ((exit_function = new_function(&at_exit_method)))
            call_atexit("register");
        py.PyErr_Clear();
        collections_start();
        failure = hooks->start(here);
        if (failure)
            take_down();
    }
    if (failure)
        return failure;
    hooks_on = true;
    watches_interpreter = watches_interpreter || !py.Py_AtExit(interpreter_gone);
    memory_start();
    greenlets_begin();
    if (!world_stopped(begin_recording)) {
        take_down();
        return "The threads of this program, which has no GIL, could not be stopped for a moment: it may have no memory left.";
    }
    phase = ACTIVE;
    interpreters_begin();
    arena_say(arena, ARENA_ACTIVE);
    return NULL;
}

/* Whether Python has a new thread, or a new state for an old one, as where C code calls it (mod_wsgi): the newest state is the first. */
static bool threads_came(void)
{
    static void *newest;
    static uint64_t number;
    void *first = py.PyInterpreterState_ThreadHead(py.PyInterpreterState_Main());
    if (first == newest && thread_number_of(first) == number)
        return false;
    newest = first;
    number = thread_number_of(first);
    return true;
}

/* Asks the tracer's lock but twice a second. */
static bool is_over(bool *gone)
{
    bool stop = __atomic_load_n(&arena->command, __ATOMIC_ACQUIRE) == COMMAND_STOP;
    uint64_t now = clock_ns();
    if (stop || now - tracer_seen >= LOOK_NS) {
        tracer_seen = now;
        *gone = tracer_is_gone();
    }
    return stop || *gone;
}

static bool nobody_there(void)
{
    bool gone = false;
    return is_over(&gone);
}

/* The main interpreter's GIL held, on a thread of the program's or within errands.c. */
static void look(void)
{
    bool gone = false;
    if (!hooks_on || __atomic_load_n(&phase, __ATOMIC_SEQ_CST) != ACTIVE || __atomic_exchange_n(&looking, true, __ATOMIC_SEQ_CST))
        return;
    if (is_over(&gone)) {
        end(gone, take_down, NULL);
    } else {
        if (left_out_asked() && !py.free_threaded) /* which the tracer does not ask for, then */
            left_out_follow(hooks);
        if (hooks->look && threads_came())
            hooks->look();
        if (interpreters_came())
            interpreters_look();
    }
    __atomic_store_n(&looking, false, __ATOMIC_SEQ_CST);
}

/* Within a callback. */
static void look_here(void)
{
    PyObject *type, *value, *traceback;
    bool gone = false;
    if (owner_here) { /* the GIL is another interpreter's */
        if (is_over(&gone))
            errands_ask();
        return;
    }
    py.PyErr_Fetch(&type, &value, &traceback);
    look();
    py.PyErr_Clear();
    py.PyErr_Restore(type, value, traceback);
}

/* GIL held. A child's hooks without a session. */
static void drop_inherited(void)
{
    arena_forget();
    take_down();
}

static void settle_inherited(void);

static void child_of_fork(void)
{
    recording = 0;
    parent_was_ending = phase == ENDING;
    phase = hooks_on ? INHERITED : IDLE;
    looking = false;
    errands_after_fork();
    settle_child = hooks_on ? settle_inherited : NULL;
    world_after_fork();
    interpreters_forget();
    writers_after_fork();
}

static void before_fork(void)
{
    errands_before_fork();
    arena_lock();
}

/* To STARTING, from where a session may begin. */
static bool claim(void)
{
    static bool watches_forks;
    int idle = IDLE, inherited = INHERITED;
    if (!__atomic_compare_exchange_n(&phase, &idle, STARTING, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST) &&
        !__atomic_compare_exchange_n(&phase, &inherited, STARTING, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        return false;
    if (!watches_forks)
        watches_forks = __register_atfork && !__register_atfork(before_fork, arena_unlock, child_of_fork, &__dso_handle);
    return watches_forks;
}

/* GIL held; here: on a thread of the program's. A forked child has its hooks already. */
static bool begin(uint32_t forked_from, bool here)
{
    const char *failure = NULL;
    look_around = look_here;
    nobody_reads = nobody_there;
    monitoring_taken = no_tool_left;
    if (tracer_is_gone() || !arena_open(py.version, forked_from)) {
        phase = IDLE;
        return false;
    }
    tracer_seen = clock_ns();
    if (!forked_from)
        failure = switch_on(here);
    else if (!(failure = functions_begin())) {
        left_out_begin(hooks);
        opcodes_begin_child();
        memory_start();
        greenlets_begin();
        recording = ++sessions;
        phase = ACTIVE;
        interpreters_begin();
        arena_say(arena, ARENA_ACTIVE);
    }
    if (failure && forked_from)
        take_down();
    if (failure)
        last_word(ARENA_REFUSED, failure);
    return !failure;
}

static void settle_inherited(void)
{
    settle_child = NULL;
    if (phase != INHERITED) /* a new session has begun meanwhile */
        return;
    uint32_t parent = arena->pid;
    phase = STARTING;
    arena_forget();
    if (!parent_was_ending && options.follow && begin(parent, true))
        return;
    if (hooks_on)
        take_down();
    phase = IDLE;
}

static void begin_in(const char *directory, bool here)
{
    world_claim();
    if (hooks_on)
        drop_inherited();
    if (options_read(directory))
        begin(0, here);
    else
        phase = IDLE;
    world_release();
}

void session_begin_here(const char *directory)
{
    if (cpython_find() && claim())
        begin_in(directory, true);
}

/* What was asked for. A session whose tracer is gone makes way for the next one. */
static void do_errands(bool here)
{
    char directory[PATH_MAX];
    if (cpython_finalizing() || !cpython_is_main())
        return;
    arena_lock();
    memcpy(directory, next_directory, sizeof directory);
    *next_directory = 0;
    arena_unlock();
    if (*directory)
        tracer_seen = 0;
    look();
    if (*directory && claim()) {
        joins = here;
        begin_in(directory, here);
        joins = false;
    }
}

bool session_look(bool pending)
{
    errands_do = do_errands;
    if (!cpython_find())
        return false;
    if (!pending)
        return errands_ask();
    errands_now();
    return true;
}

bool session_begin(const char *directory, bool pending)
{
    if (__atomic_load_n(&phase, __ATOMIC_SEQ_CST) == ACTIVE && !tracer_is_gone())
        return false;
    arena_lock();
    snprintf(next_directory, sizeof next_directory, "%s", directory);
    arena_unlock();
    return session_look(pending);
}
