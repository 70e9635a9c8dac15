/* What the injector needs of an agent and nothing more: a session is begun by making the file begun.N in its directory.
 * Like the agent's, a session that has begun is not begun again.
 * The symbol versions let it load on glibc 2.31 wherever it was built. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../probes/processor.h"

__asm__(".symver dlsym,dlsym@" OLDEST_GLIBC);
__asm__(".symver dladdr,dladdr@" OLDEST_GLIBC);
__asm__(".symver pthread_create,pthread_create@" OLDEST_GLIBC);
__asm__(".symver pthread_detach,pthread_detach@" OLDEST_GLIBC);

int pytrace_acting; /* 0: no thread of the program's does anything for it */

static void *session(void *directory)
{
    static int sessions;
    char path[4096];
    int (*ensure)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "PyGILState_Ensure");
    void (*release)(int) = (void (*)(int))dlsym(RTLD_DEFAULT, "PyGILState_Release");
    int state = ensure();
    snprintf(path, sizeof path, "%s/begun.%d", (char *)directory, sessions++);
    close(open(path, O_CREAT | O_WRONLY, 0644));
    release(state);
    free(directory);
    return NULL;
}

int pytrace_begin(const char *directory)
{
    pthread_t thread;
    char path[4096];
    static char last[4096];
    snprintf(path, sizeof path, "%s/options", directory);
    if (!strcmp(last, directory))
        return 0;
    strcpy(last, directory);
    if (access(path, R_OK) == 0 && pthread_create(&thread, NULL, session, strdup(directory)) == 0)
        pthread_detach(thread);
    return 0;
}

int pytrace_begin_pending(void *directory)
{
    return pytrace_begin(directory);
}

__attribute__((constructor)) static void loaded(void)
{
    Dl_info info;
    if (dladdr((void *)loaded, &info)) {
        char *directory = strdup(info.dli_fname);
        *strrchr(directory, '/') = 0;
        pytrace_begin(directory);
        free(directory);
    }
}
