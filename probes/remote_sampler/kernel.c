/* What the kernel says of a thread, in its folder of /proc. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/perf_event.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../processor.h"
#include "threads.h"

#define MOST_KEPT 256

static int kept; /* files that are open, of all processes */

/* Reads a file of a thread. Opening it takes most of the time, so it is kept open while there are not too many. */
static ssize_t take_file(struct remote_sampler *self, struct thread *thread, struct kept *file, const char *name, char *text, size_t size)
{
    int fd = file->fd;
    char path[40];
    ssize_t got;

    if (!fd) {
        snprintf(path, sizeof path, "%d/%s", thread->tid, name);
        fd = openat(self->place.task, path, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
            return -1;
        if (fd && kept < MOST_KEPT) {
            file->fd = fd;
            kept++;
        }
    }
    got = pread(fd, text, size - 1, 0);
    if (!file->fd)
        close(fd);
    text[got > 0 ? got : 0] = 0;
    return got;
}

static void let_go_of(struct kept *file)
{
    if (file->fd > 0) {
        close(file->fd);
        kept--;
    }
    file->fd = 0;
}

/* Closes what is kept of a thread. */
void let_go(struct thread *thread)
{
    let_go_of(&thread->times);
    let_go_of(&thread->call);
    let_go_of(&thread->clock);
}

/* Its time on a core up to this moment, as `schedstat` does not have it of a thread that has one, and 1 more; 0 = nobody says. */
uint64_t take_clock(const struct remote_sampler *self, struct thread *thread)
{
    struct perf_event_attr clock = {.type = PERF_TYPE_SOFTWARE, .size = sizeof clock, .config = PERF_COUNT_SW_TASK_CLOCK, .exclude_kernel = 1, .exclude_hv = 1};
    uint64_t spent;

    if (!thread->clock.fd && self->cores > 1 && !self->place.ns_per_tick && kept < MOST_KEPT) {
        thread->clock.fd = syscall(SYS_perf_event_open, &clock, thread->tid, -1, -1, PERF_FLAG_FD_CLOEXEC);
        kept += thread->clock.fd > 0;
    }
    return thread->clock.fd > 0 && read(thread->clock.fd, &spent, sizeof spent) == sizeof spent ? spent + 1 : 0;
}

/* Its CPU time and its time in the run queue; and from `stat` its state. 0 = it is gone. */
int take_times(struct remote_sampler *self, struct thread *thread, uint64_t *on, uint64_t *queued, uint16_t *state)
{
    unsigned long long user, system;
    char text[1024], *fields, letter;

    *queued = 0;
    *state = UNKNOWN;
    if (!self->place.ns_per_tick) {
        if (take_file(self, thread, &thread->times, "schedstat", text, sizeof text) <= 0 || sscanf(text, "%llu %llu", &user, &system) != 2)
            return 0;
        *on = user;
        *queued = system;
        return 1;
    }
    if (take_file(self, thread, &thread->times, "stat", text, sizeof text) <= 0 || !(fields = strrchr(text, ')')))
        return 0;
    if (sscanf(fields + 1, " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu %llu", &letter, &user, &system) != 3)
        return 0;
    *on = (user + system) * self->place.ns_per_tick;
    *state = letter == 'R' ? ON_CORE : UNKNOWN;
    return 1;
}

/* Whether it runs (or waits for a core), or what it waits for. `state`: what `stat` said, where that was read. */
uint16_t take_state(struct remote_sampler *self, struct thread *thread, uint16_t state)
{
    char text[256], *rest;
    uint64_t address;

    if (take_file(self, thread, &thread->call, "syscall", text, sizeof text) > 0) {
        if (text[0] == 'r')
            return ON_CORE;
        if (strtol(text, &rest, 10) != SYSCALL_FUTEX)
            return BLOCKED;
        address = strtoull(rest, NULL, 16);
        return address >= self->gil && address < self->gil_end ? GIL : BLOCKED;
    }
    let_go_of(&thread->call);
    if (!self->place.ns_per_tick && take_file(self, thread, &thread->call, "stat", text, sizeof text) > 0 && (rest = strrchr(text, ')')))
        state = rest[1] && rest[2] == 'R' ? ON_CORE : UNKNOWN;
    let_go_of(&thread->call);
    return state;
}
