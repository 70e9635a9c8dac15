/* Which descriptor a thread waits for in its system call, and which of several has made it return. */
#ifndef PYTRACE_DESCRIPTORS_H
#define PYTRACE_DESCRIPTORS_H

#include "resources.h"

/* settings.waits_on[number of a system call]: what its arguments say of what it waits for */
#define ON_NOTHING 0
#define ON_DESCRIPTOR 1 /* the first argument is the descriptor */
#define ON_EPOLL 2      /* the same: an epoll instance, of which the descriptor that became ready is meant */
#define ON_POLL 3       /* struct pollfds, and how many */
#define ON_SELECT 4     /* one more than the greatest descriptor, and three fd_sets */
#define ON_CHILD 5      /* no descriptor: for a child process to end */

#define MOST_POLLED 16 /* of poll()'s descriptors, its first */
#define READABLE 3     /* include/uapi/asm-generic/poll.h: POLLIN, POLLPRI */
#define SHUT 1         /* include/net/sock.h: RCV_SHUTDOWN */

/* What of several descriptors a thread waits for. */
struct polled {
    __u64 instance; /* of epoll, in the kernel; 0: it is another call */
    __u64 selected; /* by select: a bit for each of the first 64 descriptors that is to be read */
    __u32 count;    /* of those below */
    __u32 child;    /* 1: it waits for a child process */
    struct {        /* struct pollfd */
        __s32 descriptor;
        __u16 wanted, found;
    } of[MOST_POLLED];
};

#define SET_WORDS 16 /* of 64 descriptors */

/* The only descriptor in the sets that select() was given; -1: there are several, or greater ones. */
static __always_inline __s32 only_selected(__u64 greatest, struct pt_regs *regs)
{
    __u64 reading = KERNEL(__u64, &regs->REGS_SECOND), writing = KERNEL(__u64, &regs->REGS_THIRD), failing = KERNEL(__u64, &regs->REGS_FOURTH), word;
    __u32 descriptor = greatest - 1, i;

    if (descriptor >= 64 * SET_WORDS)
        return -1;
    /* It is in one of them: so it is the only one where no smaller one is there. */
    for (i = 0; i < SET_WORDS; i++) {
        word = TAKE(__u64, reading + 8 * i) | TAKE(__u64, writing + 8 * i) | TAKE(__u64, failing + 8 * i);
        if (i == descriptor / 64)
            return word & ((1ULL << descriptor % 64) - 1) ? -1 : descriptor;
        if (word)
            return -1;
    }
    return -1;
}

/* The descriptor that the current thread waits for in a system call of that kind with `first` as its first argument; -1: it is one of several. */
static __always_inline __s32 only_descriptor(__u8 on, __u64 first, struct pt_regs *regs)
{
    if (on == ON_POLL)
        return KERNEL(__u64, &regs->REGS_SECOND) == 1 ? TAKE(__s32, first) : -1;
    if (on == ON_SELECT)
        return only_selected(first, regs);
    return first;
}

/* What several descriptors the current thread waits for in poll() or select(). */
static __always_inline void take_polled(struct polled *polled, __u8 on, __u64 first, struct pt_regs *regs)
{
    __u64 second = KERNEL(__u64, &regs->REGS_SECOND);

    if (on == ON_SELECT) {
        polled->selected = TAKE(__u64, second);
        return;
    }
    polled->count = second > MOST_POLLED ? MOST_POLLED : second;
    bpf_probe_read_user(polled->of, (polled->count & (2 * MOST_POLLED - 1)) * sizeof(polled->of[0]), (void *)first);
}

/* Not 0: there is something to read or to accept, or no more will come. Without branches: the verifier would follow each for each descriptor. */
static __always_inline __u64 is_ready(__u64 file)
{
    __u64 data = KERNEL(__u64, file + SETTINGS->file_private), sock;
    __u32 type = KERNEL(__u16, KERNEL(__u64, file + SETTINGS->file_inode) + SETTINGS->inode_mode) & TYPE_OF_FILE;

    if (type == TYPE_SOCKET) {
        sock = KERNEL(__u64, data + SETTINGS->socket_sock);
        return (KERNEL(__u64, sock + SETTINGS->sock_queue) ^ (sock + SETTINGS->sock_queue)) | KERNEL(__u32, sock + SETTINGS->sock_accepted) |
               (KERNEL(__u8, sock + SETTINGS->sock_shut) & SHUT);
    }
    if (type == TYPE_FIFO)
        return (KERNEL(__u32, data + SETTINGS->pipe_head) ^ KERNEL(__u32, data + SETTINGS->pipe_tail)) | (KERNEL(__u32, data + SETTINGS->pipe_writers) - 1) >> 31;
    return 0;
}

/* The first of a task's descriptors that is ready, and its file; 0: none is. */
static __always_inline __u64 first_ready(__u64 task, const struct polled *polled, __s32 *descriptor)
{
    __u64 file, item;
    __u32 i;

    if (polled->instance) {
        item = KERNEL(__u64, polled->instance + SETTINGS->epoll_ready);
        if (!item || item == polled->instance + SETTINGS->epoll_ready)
            return 0;
        item += SETTINGS->item_file - SETTINGS->item_link;
        *descriptor = KERNEL(__s32, item + 8);
        return KERNEL(__u64, item);
    }
    for (i = 0; i < MOST_POLLED && i < polled->count; i++) {
        if (polled->of[i].descriptor < 0 || !(polled->of[i].wanted & READABLE))
            continue;
        file = file_behind(task, polled->of[i].descriptor);
        if (is_ready(file)) {
            *descriptor = polled->of[i].descriptor;
            return file;
        }
    }
    for (i = 0; i < 64 && polled->selected >> i; i++) {
        if (!(polled->selected >> i & 1))
            continue;
        file = file_behind(task, i);
        if (is_ready(file)) {
            *descriptor = i;
            return file;
        }
    }
    return 0;
}

#endif
