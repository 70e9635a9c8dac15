/* The threads of one process, as they were when they were looked at. */
#ifndef PYTRACE_THREADS_H
#define PYTRACE_THREADS_H

#include "remote_sampler.h"

#define MOST_STATES 4096
#define MOST_INTERPRETERS 4096
#define LAST_USED 8 /* of a thread state's status: bound_gilstate */
#define KNOWN (1 << 16)
#define FEW 32 /* of more threads, those that have waited for SELDOM looks are looked at only each SELDOM-th time */
#define SELDOM 8

struct thread {
    uint64_t on_ns, queued_ns, looked_ns; /* by the kernel, at the last look; 0 = there was none */
    uint64_t credit_ns, queue_ns;         /* on a core, and waiting for one, not sampled yet */
    uint64_t off_ns, off_windows_ns;      /* of the interval that is open, see end_interval() */
    uint64_t innermost, position;         /* where it was at the last look */
    uint64_t off_stack;
    int32_t tid, own; /* here, and as the process itself calls it */
    int32_t state;    /* the index of its thread state; -1 = none */
    uint16_t off;     /* the state of that interval; ON_CORE = none is open */
    uint16_t off_opcode;
    uint16_t began_now; /* that interval did, at this look */
    uint16_t still;     /* looks that found it waiting there */
    uint16_t unmet;     /* looks that found it waiting for a core, since one found it on one */
    uint16_t met_opcode;
    uint64_t met_stack; /* where that one found it; 0 = there was none */
    uint16_t is_due;    /* to be looked at this time */
    struct kept { int fd; } times, call, clock; /* its files of /proc and its clock, open; 0 = not, -1 = the kernel refuses */
};

struct state {
    uint64_t address, pthread, innermost, position;
    int32_t own; /* the thread that has it; 0 = unknown */
};

struct remote_sampler {
    struct place place;
    struct reader *reader;
    uint64_t gil, gil_end;
    int cores;      /* that this process may run on */
    int step_aside; /* the next look is taken from another one */
    struct thread *threads; /* by `own` */
    int count, first;       /* where the last look stopped for want of time */
    uint32_t looks;
    int states_count, strangers, several; /* several: interpreters */
    struct state states[MOST_STATES];
    char state_bytes[MOST_STATES][STATE_BYTES];
    uint64_t from[MOST_STATES], words[MOST_STATES];
    uint8_t taken[MOST_STATES];
    uint64_t known[KNOWN]; /* hashes of stacks that were reported */
    int known_count;
    struct stack_read read;
};

/* states.c */
struct thread *thread_of(struct remote_sampler *self, int32_t own);
void find_states(struct remote_sampler *self);
void name_states(struct remote_sampler *self);

/* kernel.c */
int take_times(struct remote_sampler *self, struct thread *thread, uint64_t *on, uint64_t *queued, uint16_t *state);
uint16_t take_state(struct remote_sampler *self, struct thread *thread, uint16_t state);
uint64_t take_clock(const struct remote_sampler *self, struct thread *thread);
void let_go(struct thread *thread);

#endif
