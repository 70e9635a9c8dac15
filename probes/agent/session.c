/* Begins a session, watches for its end, and takes everything down again; a forked child begins one of its own. */
#define _GNU_SOURCE
#include "session.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "build.h"
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

#define LOOK_MS 500
#define ENDING_MS 200 /* that the watching thread may take to see an interpreter's end */

/* INHERITED: a forked child whose parent had hooks on; its first event, or a new session, settles it. */
enum { IDLE, STARTING, ACTIVE, ENDING, INHERITED };
static int phase = IDLE;
static bool hooks_on, parent_was_ending, watches_interpreter;
static uint64_t sessions;
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

/* The interpreter ends: from here on its lock must not be asked for, so this thread, which has it, does all. */
static PyObject *at_exit(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self, (void)arguments, (void)count;
    world_claim();
    if (hooks_on && arena && phase != INHERITED) {
        uint32_t *watched = &arena->command;
        world_stopped(stop_counting);
        stop_recording();
        arena_say(arena, ARENA_QUIET);
        unhook(); /* from here on the watching thread may unmap the arena */
        syscall(SYS_futex, watched, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
        if (tracer_is_gone()) /* what that thread may have no time left to see */
            remove_session_files();
    }
    world_release();
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
    functions_end();
    qualnames_forget();
    if (!tracer_is_gone())
        session_interpreter_gone(options.directory);
}

/* The arena's last word. From then on the next session may begin: a tracer that has read it may ask for one at once. */
static void last_word(uint32_t state, const char *message)
{
    struct ended ended = arena_detach();
    __atomic_store_n(&phase, IDLE, __ATOMIC_SEQ_CST);
    arena_end(ended, state, message);
}

static void begin_recording(void)
{
    recording = ++sessions;
    frames_verify();
    keep_open_frames();
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

/* What this thread, the agent's own, has Python do is seen by no tool of the program's: a debugger takes a thread for one of the program's once it
 * sees code run there. Up to 3.10 tools are of single threads, and there is no such function. */
static void unseen(bool begins)
{
    void (*act)(void *) = begins ? py.PyThreadState_EnterTracing : py.PyThreadState_LeaveTracing;
    if (act)
        act(py.PyThreadState_Get());
}

static void end(bool tracer_gone)
{
    __atomic_store_n(&phase, ENDING, __ATOMIC_SEQ_CST);
    arena_wait_no_more();
    bool sure = !cpython_finalizing();
    if (sure) {
        int state = py.PyGILState_Ensure();
        unseen(true);
        world_claim();
        if (hooks_on)
            world_stopped(stop_counting);
        stop_recording();
        if (hooks_on)
            take_down();
        world_release();
        unseen(false);
        py.PyGILState_Release(state);
    }
    stop_recording();
    if (tracer_gone)
        remove_session_files();
    if (sure && interpreters_left())
        last_word(ARENA_QUIET, NULL);
    else /* a thread may still be writing its last event: it stays mapped */
        arena_say(arena, ARENA_QUIET);
}

/* Sum of the ids of the threads; read without malloc, whose lock another thread may have held at the moment of a fork. */
static uint64_t threads_now(void)
{
    struct {
        uint64_t inode, offset;
        unsigned short length;
        unsigned char type;
        char name[];
    } *entry;
    char buffer[4096] __attribute__((aligned(8)));
    uint64_t sum = 0;
    int fd = open("/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (long got; fd >= 0 && (got = syscall(SYS_getdents64, fd, buffer, sizeof buffer)) > 0;)
        for (long i = 0; i < got; i += entry->length) {
            entry = (void *)(buffer + i);
            sum += strtoul(entry->name, NULL, 10);
        }
    if (fd >= 0)
        close(fd);
    return sum;
}

/* The newest thread's state, which is the first; not to be looked into, for which it takes the GIL. NULL once the interpreter may be gone:
 * at its end it has the hooks taken off first, under the same lock. */
static void *newest_state(void)
{
    arena_lock();
    void *interpreter = hooks_on && !cpython_finalizing() ? py.PyInterpreterState_Main() : NULL;
    void *first = interpreter ? py.PyInterpreterState_ThreadHead(interpreter) : NULL;
    arena_unlock();
    return first;
}

/* Those of the program, and whether Python has a new state for one that was there before, as where C code calls it (mod_wsgi). */
static void look_for_threads(void)
{
    static uint64_t before;
    static void *newest;
    uint64_t now = threads_now();
    void *first = newest_state();
    if (!first || (now == before && first == newest))
        return;
    before = now;
    int state = py.PyGILState_Ensure();
    if (hooks_on)
        hooks->look();
    py.PyGILState_Release(state);
    newest = first;
}

static void leave_out(void)
{
    if (cpython_finalizing())
        return;
    int state = py.PyGILState_Ensure();
    if (hooks_on)
        left_out_follow(hooks);
    py.PyGILState_Release(state);
}

static void tell_interpreters(void)
{
    if (cpython_finalizing())
        return;
    int state = py.PyGILState_Ensure();
    unseen(true); /* to add an audit hook calls the program's */
    if (hooks_on)
        interpreters_look();
    unseen(false);
    py.PyGILState_Release(state);
}

static void watch(void)
{
    while (hooks_on) {
        struct timespec timeout = {LOOK_MS / 1000, LOOK_MS % 1000 * 1000000};
        syscall(SYS_futex, &arena->command, FUTEX_WAIT, COMMAND_RECORD, &timeout, NULL, 0);
        bool stop = __atomic_load_n(&arena->command, __ATOMIC_ACQUIRE) == COMMAND_STOP, gone = tracer_is_gone();
        if (!hooks_on)
            break;
        if (stop || gone) {
            end(gone);
            return;
        }
        if (left_out_asked() && !py.free_threaded) /* which the tracer does not ask for, then */
            leave_out();
        if (hooks->look)
            look_for_threads();
        if (interpreters_came())
            tell_interpreters();
    }
    if (interpreters_left())
        last_word(ARENA_QUIET, NULL); /* ended at the interpreter's exit */
}

static void *watching(void *unused)
{
    (void)unused;
    prctl(PR_SET_NAME, "pytrace-agent");
    watch();
    return NULL;
}

/* GIL held. A child's hooks without a session. */
static void drop_inherited(void)
{
    arena_forget();
    take_down();
}

static void *beginning(void *unused)
{
    (void)unused;
    prctl(PR_SET_NAME, "pytrace-agent");
    if (cpython_finalizing() || tracer_is_gone()) {
        phase = IDLE;
        return NULL;
    }
    int state = py.PyGILState_Ensure();
    unseen(true);
    world_claim();
    if (hooks_on)
        drop_inherited();
    bool open = arena_open(py.version, 0);
    const char *failure = open ? switch_on(false) : NULL;
    world_release();
    unseen(false);
    py.PyGILState_Release(state);
    if (!open)
        phase = IDLE;
    else if (failure)
        last_word(ARENA_REFUSED, failure);
    else
        watch();
    return NULL;
}

static bool spawn(void *(*function)(void *))
{
    sigset_t all, before;
    pthread_t thread;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before);
    bool done = pthread_create && !pthread_create(&thread, NULL, function, NULL);
    sigprocmask(SIG_SETMASK, &before, NULL);
    if (done)
        pthread_detach(thread);
    return done;
}

static void settle_inherited(void);

static void child_of_fork(void)
{
    recording = 0;
    parent_was_ending = phase == ENDING;
    phase = hooks_on ? INHERITED : IDLE;
    settle_child = hooks_on ? settle_inherited : NULL;
    world_after_fork();
    interpreters_forget();
    writers_after_fork();
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
        watches_forks = __register_atfork && !__register_atfork(arena_lock, arena_unlock, child_of_fork, &__dso_handle);
    return watches_forks;
}

/* GIL held, on a thread of the program. A forked child has its hooks already. */
static bool begin_here(uint32_t forked_from)
{
    static const char no_thread[] = "The agent could not start its thread: the process may have no more.";
    const char *failure = NULL;
    if (tracer_is_gone() || !arena_open(py.version, forked_from)) {
        phase = IDLE;
        return false;
    }
    if (!forked_from)
        failure = switch_on(true);
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
    if (!failure && !spawn(watching)) {
        failure = no_thread;
        stop_recording();
        take_down();
    }
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
    if (!parent_was_ending && options.follow && begin_here(parent))
        return;
    if (hooks_on)
        take_down();
    phase = IDLE;
}

void session_begin_here(const char *directory)
{
    struct timespec pause = {0, 1000000};
    if (!cpython_find())
        return;
    for (int n = 0; !claim(); n++, nanosleep(&pause, NULL))
        if (phase != ACTIVE || hooks_on || n == ENDING_MS) /* else the session of the interpreter before this one is just ending */
            return;
    if (options_read(directory))
        begin_here(0);
    else
        phase = IDLE;
}

int session_begin(const char *directory)
{
    if (!cpython_find() || !claim())
        return -1;
    if (!options_read(directory) || !spawn(beginning)) {
        phase = IDLE;
        return -1;
    }
    return 0;
}
