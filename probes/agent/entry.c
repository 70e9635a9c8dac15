/* How the agent comes to life: preloaded, loaded into a running Python, or called. */
#define _GNU_SOURCE
#include "agent.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "arena.h"
#include "cpython.h"
#include "options.h"
#include "session.h"

static char library[PATH_MAX], directory[PATH_MAX];
static bool awaiting;

/* Python says that the program's own code is about to run: the interpreter is complete, and its lock is this thread's. */
static int on_audit(const char *event, PyObject *arguments, void *unused)
{
    (void)arguments, (void)unused;
    if (LIKELY(!awaiting) || strncmp(event, "cpython.run_", 12) || getpid() != syscall(SYS_gettid))
        return 0;
    awaiting = false;
    session_begin_here(directory);
    return 0;
}

/* Keep the agent out of the processes that the program starts. */
static void leave_environment(void)
{
    const char *preload = getenv("LD_PRELOAD");
    char rest[PATH_MAX] = "", *copy = preload ? strdup(preload) : NULL, *next = copy, *one;
    while ((one = strsep(&next, ": ")))
        if (*one && strcmp(one, library) && strlen(rest) + strlen(one) + 2 < sizeof rest)
            sprintf(rest + strlen(rest), "%s%s", *rest ? ":" : "", one);
    free(copy);
    if (*rest)
        setenv("LD_PRELOAD", rest, 1);
    else
        unsetenv("LD_PRELOAD");
}

__attribute__((constructor)) static void loaded(void)
{
    Dl_info self;
    if (!dladdr || !dladdr(&library, &self) || !self.dli_fname || !strchr(self.dli_fname, '/'))
        return;
    snprintf(library, sizeof library, "%s", self.dli_fname);
    snprintf(directory, sizeof directory, "%.*s", (int)(strrchr(library, '/') - library), library);
    if (!options_read(directory) || !cpython_find())
        return;
    if (py.Py_IsInitialized()) {
        session_begin(directory);
        return;
    }
    if (!options.follow)
        leave_environment();
    awaiting = !py.PySys_AddAuditHook(on_audit, NULL);
}

EXPORT int pytrace_begin(const char *where)
{
    return session_begin(where);
}

EXPORT int pytrace_begin_pending(void *where)
{
    session_begin(where);
    return 0;
}

EXPORT void pytrace_anchor(uint32_t clock, uint64_t moment[2])
{
    uint64_t best = UINT64_MAX;
    for (int i = 0; i < 16; i++) {
        uint64_t before = stamp_of(clock), ns = clock_ns(), after = stamp_of(clock);
        if (after - before >= best)
            continue;
        best = after - before;
        moment[0] = before + best / 2;
        moment[1] = ns;
    }
}
