/* The entry of LD_PRELOAD that brings the agent into the programs which this one executes.
 *
 * Where the library is not there for such a program, because its root is another one, its user may not read it, or the tracer was killed and it was
 * removed, the C library would say so on stderr. So it is looked for right before a program is executed, as that program would look for it, and where it
 * is not there its entry is not handed on. The functions below stand before the C library's only in a program that was started with the agent.
 * A child of vfork() calls them in its creator's memory, one of fork() where locks may be held for ever: they take none, and all is on the stack. */
#define _GNU_SOURCE
#include "preload.h"

#include <alloca.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "build.h"
#include "next.h"

#define NAME "LD_PRELOAD="
#define NAME_LENGTH (sizeof NAME - 1)
#define MOST_ROOM (32 << 10) /* of the stack, which may be a small thread's: a larger environment is handed on as it is */

typedef int executes(const char *, char *const[], char *const[]);
typedef int spawns(pid_t *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *, char *const[], char *const[]);
typedef int changes_root(const char *);

static char library[PATH_MAX];
static executes *next_execve, *next_execvpe;
static spawns *next_posix_spawn, *next_posix_spawnp;
static changes_root *next_chroot;

/* Before the constructor of another library calls one of them, that comes before the agent's. */
static inline void find_next(void)
{
    if (LIKELY(next_chroot != NULL))
        return;
    next_execve = next_of("execve");
    next_execvpe = next_of("execvpe");
    next_posix_spawn = next_of("posix_spawn");
    next_posix_spawnp = next_of("posix_spawnp");
    next_chroot = next_of("chroot");
}

void preload_is(const char *path)
{
    snprintf(library, sizeof library, "%s", path);
    find_next();
}

/* Where the library stands in a list; NULL = nowhere. */
static const char *entry_in(const char *list)
{
    size_t length = strlen(library);
    for (const char *at = list; length && (at = strstr(at, library)); at += length)
        if ((at == list || strchr(": ", at[-1])) && strchr(": ", at[length])) /* or at the end */
            return at;
    return NULL;
}

/* Which variable has the library; below 0: none. */
static int bringing(char *const variables[])
{
    for (int n = 0; variables && variables[n]; n++)
        if (!strncmp(variables[n], NAME, NAME_LENGTH))
            return entry_in(variables[n] + NAME_LENGTH) ? n : -1;
    return -1;
}

/* That variable without its entry, in a place as large; false: nothing is left of it. */
static bool without(char *rest, const char *variable)
{
    const char *list = variable + NAME_LENGTH, *entry = entry_in(list), *behind = entry + strlen(library);
    size_t before = entry - variable;
    if (*behind)
        behind++;
    else if (entry != list)
        before--;
    memcpy(rest, variable, before);
    strcpy(rest + before, behind);
    return rest[NAME_LENGTH];
}

void preload_leave(void)
{
    static char kept[PATH_MAX];
    int which = bringing(environ);
    if (which < 0 || strlen(environ[which]) >= sizeof kept)
        return;
    if (without(kept, environ[which]))
        environ[which] = kept;
    else
        for (char **at = environ + which; (*at = at[1]); at++)
            ;
}

/* For who looks for it here and now. */
static bool is_gone(void)
{
    int before = errno, fd = syscall(SYS_openat, AT_FDCWD, library, O_RDONLY | O_CLOEXEC), why = errno;
    if (fd >= 0)
        close(fd);
    errno = before;
    return fd < 0 && (why == ENOENT || why == ENOTDIR || why == ELOOP || why == EACCES || why == EPERM);
}

/* What it takes to hand them on without the library; 0: as they are. */
static size_t room_for(char *const variables[], int which)
{
    size_t count = 0;
    if (which < 0 || !is_gone())
        return 0;
    while (variables[count])
        count++;
    size_t room = (count + 1) * sizeof *variables + strlen(variables[which]) + 1;
    return room <= MOST_ROOM ? room : 0;
}

static char *const *cleaned(void *room, char *const variables[], int which)
{
    char **copy = room;
    int count = 0;
    while (variables[count])
        count++;
    char *rest = (char *)(copy + count + 1);
    bool stays = without(rest, variables[which]);
    memcpy(copy, variables, (count + 1) * sizeof *copy);
    if (stays)
        copy[which] = rest;
    else
        memmove(copy + which, copy + which + 1, (count - which) * sizeof *copy);
    return copy;
}

#define HANDED_ON(variables)                                                          \
    ({                                                                                \
        int which = bringing(variables);                                              \
        size_t room = room_for(variables, which);                                     \
        room ? cleaned(alloca(room), variables, which) : (char *const *)(variables);  \
    })

EXPORT int execve(const char *path, char *const arguments[], char *const variables[])
{
    find_next();
    return next_execve(path, arguments, HANDED_ON(variables));
}

EXPORT int execv(const char *path, char *const arguments[])
{
    return execve(path, arguments, environ);
}

EXPORT int execvpe(const char *file, char *const arguments[], char *const variables[])
{
    find_next();
    return next_execvpe(file, arguments, HANDED_ON(variables));
}

EXPORT int execvp(const char *file, char *const arguments[])
{
    return execvpe(file, arguments, environ);
}

EXPORT int posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions, const posix_spawnattr_t *attributes,
                       char *const arguments[], char *const variables[])
{
    find_next();
    return next_posix_spawn(pid, path, actions, attributes, arguments, HANDED_ON(variables));
}

EXPORT int posix_spawnp(pid_t *pid, const char *file, const posix_spawn_file_actions_t *actions, const posix_spawnattr_t *attributes,
                        char *const arguments[], char *const variables[])
{
    find_next();
    return next_posix_spawnp(pid, file, actions, attributes, arguments, HANDED_ON(variables));
}

/* What the C library executes by itself then, as for system(), gets the environment as it stands. */
EXPORT int chroot(const char *path)
{
    find_next();
    int failed = next_chroot(path);
    if (!failed && bringing(environ) >= 0 && is_gone())
        preload_leave();
    return failed;
}
