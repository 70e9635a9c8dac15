/* Has threads of the program's do what the agent has to do.
 *
 * While Python runs, a thread does it between two instructions: as a pending call, which any thread of the main interpreter makes from 3.12 on, and
 * the main thread before. Where none runs, a thread of the agent's takes the GIL after 20 ms, does it, and ends. A program that
 * goes on meanwhile comes to the pending call first, and waits there for the end of that thread: so it is not there when the program forks. */
#define _GNU_SOURCE
#include "errands.h"

#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "build.h"
#include "cpython.h"

#define PAUSE_NS 50000
#define PATIENCE 20000 /* pauses: a second or more */
#define GRACE 400      /* pauses in which Python may do it by itself: 20 ms */

void (*errands_do)(bool here);

EXPORT uint32_t pytrace_acting; /* a thread of the program's does it: see leave_pending() */
static bool asked;       /* it is not done yet */
static bool pending;     /* a pending call was left, and has not ended: see leave_pending() */
static uint32_t left_by; /* id of the thread that left it */
static bool handed_over; /* the thread that lives for it need not wait for Python: see on_pending() */
static uint32_t runner;  /* id of the thread that lives for it; 0 = there is none, STARTING = it has none yet */
static bool leaves;      /* it wants no GIL any more */
#define STARTING UINT32_MAX

/* What the agent has Python do is seen by no tool of the program's: a debugger takes a thread for one of the program's once it sees code run
 * there. Up to 3.10 tools are of single threads, and there is no such function. */
static void unseen(bool begins)
{
    void (*act)(void *) = begins ? py.PyThreadState_EnterTracing : py.PyThreadState_LeaveTracing;
    if (act)
        act(py.PyThreadState_Get());
}

/* Once: who comes later finds nothing to do. */
static void act(bool here)
{
    if (!__atomic_exchange_n(&asked, false, __ATOMIC_SEQ_CST))
        return;
    PyObject *type, *value, *traceback;
    py.PyErr_Fetch(&type, &value, &traceback);
    unseen(true);
    errands_do(here);
    unseen(false);
    py.PyErr_Clear();
    py.PyErr_Restore(type, value, traceback);
}

/* A thread that comes to take the GIL allocates before it has it. While tracemalloc is at work, and the program ends that meanwhile, CPython up to 3.13
 * then writes to what is gone. So it comes only where Python does not run. */
static void wait_for_python(void)
{
    struct timespec pause = {0, PAUSE_NS};
    for (int n = 0; n < GRACE && __atomic_load_n(&asked, __ATOMIC_SEQ_CST) && !__atomic_load_n(&handed_over, __ATOMIC_SEQ_CST); n++)
        nanosleep(&pause, NULL);
}

static void *run(void *unused)
{
    (void)unused;
    __atomic_store_n(&runner, (uint32_t)syscall(SYS_gettid), __ATOMIC_SEQ_CST);
    prctl(PR_SET_NAME, "pytrace-agent");
    wait_for_python();
    if (!cpython_finalizing() && __atomic_load_n(&asked, __ATOMIC_SEQ_CST)) {
        int state = py.PyGILState_Ensure();
        act(false);
        py.PyGILState_Release(state);
    }
    __atomic_store_n(&leaves, true, __ATOMIC_SEQ_CST);
    return NULL;
}

/* Whether there is one; it is gone when the kernel counts it no more. */
static bool is_there(void)
{
    uint32_t id = __atomic_load_n(&runner, __ATOMIC_SEQ_CST);
    if (!id)
        return false;
    if (id == STARTING || cpython_is_thread(id))
        return true;
    __atomic_compare_exchange_n(&runner, &id, 0, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    return false;
}

static void wait_for_its_end(void)
{
    struct timespec pause = {0, PAUSE_NS};
    for (int n = 0; n < PATIENCE && is_there(); n++)
        nanosleep(&pause, NULL);
}

static void start_one(void)
{
    uint32_t none = 0;
    sigset_t all, before;
    pthread_t thread;
    if (!pthread_create || is_there() || !__atomic_compare_exchange_n(&runner, &none, STARTING, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        return;
    leaves = handed_over = false;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before);
    bool done = !pthread_create(&thread, NULL, run, NULL);
    sigprocmask(SIG_SETMASK, &before, NULL);
    if (done)
        pthread_detach(thread);
    else
        __atomic_store_n(&runner, 0, __ATOMIC_SEQ_CST);
}

bool errands_own_thread(void)
{
    return __atomic_load_n(&runner, __ATOMIC_SEQ_CST) == (uint32_t)syscall(SYS_gettid);
}

/* The thread that lives for it may need the GIL for that. */
static void let_it_end(void)
{
    void *state = py.PyEval_SaveThread();
    wait_for_its_end();
    py.PyEval_RestoreThread(state);
}

static bool leave_pending(void);

/* At a place where the interpreter lets other threads go first. */
static void act_here(void)
{
    __atomic_store_n(&pytrace_acting, 1, __ATOMIC_SEQ_CST);
    act(true);
    __atomic_store_n(&pytrace_acting, 0, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&asked, __ATOMIC_SEQ_CST)) /* again, meanwhile */
        leave_pending();
    if (is_there() && !errands_own_thread()) /* where Python runs on that thread, it makes the call itself */
        let_it_end();
}

/* 3.11 makes a call that was left within another one right after that, while it still looks for calls: as in leave_pending(). */
static bool is_within_another(void)
{
    return py.version >> 16 == 0x030b && left_by == (uint32_t)syscall(SYS_gettid);
}

static int on_pending(void *unused)
{
    (void)unused;
    if (is_within_another() && is_there() && !errands_own_thread()) {
        __atomic_store_n(&handed_over, true, __ATOMIC_SEQ_CST);
        let_it_end();
    } else
        act_here();
    __atomic_store_n(&pending, false, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&asked, __ATOMIC_SEQ_CST)) /* again, meanwhile */
        leave_pending();
    return 0;
}

/* One at a time. While one is made, another one that is left only makes the interpreter look for what it does not do yet, and Python 3.11 then does
 * nothing else for ever, where what the agent has it do runs while probes are at its lines: it comes back to the same instruction. So who makes one from
 * outside asks pytrace_acting first. */
static bool leave_pending(void)
{
    if (__atomic_load_n(&pytrace_acting, __ATOMIC_SEQ_CST) || __atomic_exchange_n(&pending, true, __ATOMIC_SEQ_CST))
        return true;
    left_by = (uint32_t)syscall(SYS_gettid);
    bool left = py.version >= 0x030c0000 && py._PyEval_AddPendingCall
                    ? !py._PyEval_AddPendingCall(py.PyInterpreterState_Main(), on_pending, NULL, 0)
                    : !py.Py_AddPendingCall(on_pending, NULL);
    if (!left)
        __atomic_store_n(&pending, false, __ATOMIC_SEQ_CST);
    return left;
}

bool errands_ask(void)
{
    __atomic_store_n(&asked, true, __ATOMIC_SEQ_CST);
    bool left = leave_pending();
    start_one();
    return left || is_there();
}

void errands_now(void)
{
    __atomic_store_n(&asked, true, __ATOMIC_SEQ_CST);
    act_here();
}

void errands_before_fork(void)
{
    if (__atomic_load_n(&leaves, __ATOMIC_SEQ_CST))
        wait_for_its_end();
}

void errands_after_fork(void)
{
    runner = pytrace_acting = 0;
    leaves = asked = pending = false; /* a call that was left is in the child too, and one that another thread was making is not */
}
