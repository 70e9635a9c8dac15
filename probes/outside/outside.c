/* Looks at the threads of one process: which of them run, which wait for what, and since when.
 *
 * A look is taken about once a period. The CPU time that a thread has spent since the last one is its credit: for each period of it a
 * thread that is running when it is looked at gives a sample on a core. One that is not running is off the core from the look that found
 * it so to the one that finds that it has run; that interval is one sample, with the stack that the thread stood at.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "outside.h"

#define EXPORT __attribute__((visibility("default")))
#define MOST_STATES 4096
#define MOST_THREADS 32768
#define MOST_SAMPLES 4 /* on a core of one look; the rest of the credit waits for the next ones */
#define SELDOM 8       /* of many threads that wait, one that has not moved is looked at so seldom */
#define FEW 32
#define STILL 16       /* a thread that ran for less than this part of the time between two looks still waits for the same */
#define KNOWN (1 << 16)
#define FUTEX 202      /* x86-64 */

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
};

struct state {
    uint64_t address, pthread, innermost, position;
    int32_t own; /* the thread that has it; 0 = unknown */
};

struct outside {
    struct place place;
    struct reader *reader;
    uint64_t gil, gil_end;
    struct thread *threads; /* by `own` */
    int count, first;       /* where the last look stopped for want of time */
    uint32_t looks;
    int states_count, strangers;
    struct state states[MOST_STATES];
    char state_bytes[MOST_STATES][STATE_BYTES];
    uint64_t from[MOST_STATES], words[MOST_STATES];
    uint8_t taken[MOST_STATES];
    uint64_t known[KNOWN]; /* hashes of stacks that were reported */
    int known_count;
    struct stack_read read;
};

static uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ULL + now.tv_nsec;
}

EXPORT struct outside *outside_open(const struct place *place)
{
    struct outside *self = calloc(1, sizeof *self);

    if (!self)
        return NULL;
    self->place = *place;
    self->reader = reader_open(place);
    if (!self->reader) {
        free(self);
        return NULL;
    }
    return self;
}

EXPORT void outside_close(struct outside *self)
{
    reader_close(self->reader);
    free(self->threads);
    free(self);
}

/* Where the GIL's locks are: [gil, gil_end); 0, 0 = unknown. */
EXPORT void outside_gil(struct outside *self, uint64_t gil, uint64_t gil_end)
{
    self->gil = gil;
    self->gil_end = gil_end;
}

static int by_own(const void *one, const void *other)
{
    return ((const struct thread *)one)->own - ((const struct thread *)other)->own;
}

static struct thread *thread_of(struct outside *self, int32_t own)
{
    struct thread wanted = {.own = own};

    return self->count ? bsearch(&wanted, self->threads, self->count, sizeof wanted, by_own) : NULL;
}

/* The threads that there are: (as the process calls it, here), in the order of the former. Returns how many that is. */
EXPORT int outside_threads(struct outside *self, const int32_t *own, const int32_t *tids, int count)
{
    struct thread *threads;

    count = count > MOST_THREADS ? MOST_THREADS : count;
    threads = calloc(count ? count : 1, sizeof *threads);
    if (!threads)
        return self->count;
    for (int i = 0; i < count; i++) {
        struct thread *before = thread_of(self, own[i]);

        if (before && before->tid == tids[i])
            threads[i] = *before;
        else
            threads[i] = (struct thread){.tid = tids[i], .own = own[i], .off = ON_CORE};
    }
    for (int i = 0; i < self->states_count; i++)
        self->states[i].own = 0;
    free(self->threads);
    self->threads = threads;
    self->count = count;
    self->first = 0;
    return count;
}

/* -- the interpreter's list of threads ----------------------------------------------- */

static uint64_t u64(const char *bytes, int32_t offset)
{
    uint64_t value;

    memcpy(&value, bytes + offset, sizeof value);
    return value;
}

/* Whether all thread states that were known are there still, and no others; they are read. */
static int are_the_same(struct outside *self, uint64_t head)
{
    int count = self->states_count;

    if (!count || self->states[0].address != head)
        return 0;
    for (int i = 0; i < count; i++)
        self->from[i] = self->states[i].address;
    reader_scatter(self->reader, self->from, self->state_bytes, STATE_BYTES, count, self->taken);
    for (int i = 0; i < count; i++)
        if (!self->taken[i] || u64(self->state_bytes[i], self->place.thread_next) != (i + 1 < count ? self->states[i + 1].address : 0))
            return 0;
    return 1;
}

static void list_states(struct outside *self)
{
    const struct place *place = &self->place;
    uint64_t main, head;
    int count = 0;

    if (!reader_take(self->reader, place->main, &main, sizeof main) || !reader_take(self->reader, main + place->interpreter_threads, &head, sizeof head)) {
        self->states_count = 0;
        return;
    }
    if (are_the_same(self, head))
        return;
    while (head && count < MOST_STATES && reader_take(self->reader, head, self->state_bytes[count], STATE_BYTES)) {
        self->states[count] = (struct state){.address = head};
        head = u64(self->state_bytes[count], place->thread_next);
        count++;
    }
    self->states_count = count;
}

/* Whose each thread state is. */
static void name_states(struct outside *self)
{
    static const int32_t places[] = {0x2d0, 0x30}; /* where struct pthread keeps the thread id: glibc, musl (x86-64) */
    const struct place *place = &self->place;

    self->strangers = 0;
    for (int i = 0; i < self->count; i++)
        self->threads[i].state = -1;
    for (int i = 0; i < self->states_count; i++) {
        struct state *state = &self->states[i];
        uint64_t pthread = u64(self->state_bytes[i], place->thread_pthread);
        struct thread *thread = NULL;

        if (place->thread_native_id != ABSENT)
            state->own = u64(self->state_bytes[i], place->thread_native_id);
        for (int at = 0; place->thread_native_id == ABSENT && (!state->own || state->pthread != pthread) && at < 2; at++) {
            if (!reader_take(self->reader, pthread + places[at], &state->own, sizeof state->own) || !thread_of(self, state->own))
                state->own = 0;
            else
                state->pthread = pthread;
        }
        thread = state->own ? thread_of(self, state->own) : NULL;
        if (thread)
            thread->state = i;
        self->strangers += !thread;
    }
}

/* The innermost frame of each, and the instruction that it is at. */
static void find_innermost(struct outside *self)
{
    const struct place *place = &self->place;
    int count = self->states_count;

    for (int i = 0; i < count; i++)
        self->from[i] = self->words[i] = u64(self->state_bytes[i], place->thread_frame);
    if (place->cframe_frame != ABSENT) {
        for (int i = 0; i < count; i++)
            self->from[i] += self->from[i] ? place->cframe_frame : 0;
        reader_scatter(self->reader, self->from, self->words, sizeof(uint64_t), count, self->taken);
    }
    for (int i = 0; i < count; i++) {
        self->states[i].innermost = self->words[i];
        self->from[i] = self->words[i] ? self->words[i] + place->frame_position : 0;
    }
    reader_scatter(self->reader, self->from, self->words, sizeof(uint64_t), count, self->taken);
    for (int i = 0; i < count; i++)
        self->states[i].position = self->taken[i] ? self->words[i] : 0;
}

/* -- what the kernel says ---------------------------------------------------------- */

static ssize_t take_file(struct outside *self, int32_t tid, const char *name, char *text, size_t size)
{
    char path[40];
    ssize_t got;
    int fd;

    snprintf(path, sizeof path, "%d/%s", tid, name);
    fd = openat(self->place.task, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    got = read(fd, text, size - 1);
    close(fd);
    text[got > 0 ? got : 0] = 0;
    return got;
}

/* Its CPU time and its time in the run queue; and from `stat` its state. 0 = it is gone. */
static int take_times(struct outside *self, struct thread *thread, uint64_t *on, uint64_t *queued, uint16_t *state)
{
    unsigned long long user, system;
    char text[1024], *fields, letter;

    *queued = 0;
    *state = UNKNOWN;
    if (!self->place.ns_per_tick) {
        if (take_file(self, thread->tid, "schedstat", text, sizeof text) <= 0 || sscanf(text, "%llu %llu", &user, &system) != 2)
            return 0;
        *on = user;
        *queued = system;
        return 1;
    }
    if (take_file(self, thread->tid, "stat", text, sizeof text) <= 0 || !(fields = strrchr(text, ')')))
        return 0;
    if (sscanf(fields + 1, " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu %llu", &letter, &user, &system) != 3)
        return 0;
    *on = (user + system) * self->place.ns_per_tick;
    *state = letter == 'R' ? ON_CORE : UNKNOWN;
    return 1;
}

/* Whether it runs (or waits for a core), or what it waits for. `state`: what `stat` said, where that was read. */
static uint16_t take_state(struct outside *self, struct thread *thread, uint16_t state)
{
    char text[256], *rest;
    uint64_t address;

    if (take_file(self, thread->tid, "syscall", text, sizeof text) > 0) {
        if (text[0] == 'r')
            return ON_CORE;
        if (strtol(text, &rest, 10) != FUTEX)
            return BLOCKED;
        address = strtoull(rest, NULL, 16);
        return address >= self->gil && address < self->gil_end ? GIL : BLOCKED;
    }
    if (!self->place.ns_per_tick && take_file(self, thread->tid, "stat", text, sizeof text) > 0 && (rest = strrchr(text, ')')))
        return rest[1] && rest[2] == 'R' ? ON_CORE : UNKNOWN;
    return state;
}

/* -- samples ---------------------------------------------------------------------- */

static int is_known(struct outside *self, uint64_t stack)
{
    uint32_t at = stack >> 8 & (KNOWN - 1);

    while (self->known[at] && self->known[at] != stack)
        at = (at + 1) & (KNOWN - 1);
    return self->known[at] != 0;
}

static void know(struct outside *self, uint64_t stack)
{
    uint32_t at = stack >> 8 & (KNOWN - 1);

    if (self->known_count > KNOWN / 2) { /* they are reported again */
        memset(self->known, 0, sizeof self->known);
        self->known_count = 0;
    }
    while (self->known[at])
        at = (at + 1) & (KNOWN - 1);
    self->known[at] = stack;
    self->known_count++;
}

/* Reads the stack of a thread, and reports it if it is new. Returns its hash. */
static uint64_t take_stack(struct outside *self, struct thread *thread, struct found *found)
{
    struct stack_read *read = &self->read;

    read->hash = NO_FRAMES;
    read->opcode = NO_OPCODE;
    if (thread->state < 0)
        return NO_FRAMES;
    reader_stack(self->reader, self->states[thread->state].address, read);
    if (read->hash < FIRST_STACK || is_known(self, read->hash))
        return read->hash;
    found->deep += read->deep;
    if (found->stack_count == found->stack_room || found->frame_room - found->frame_count < read->count)
        return read->hash; /* reported the next time */
    ((struct stack *)found->stacks)[found->stack_count++] = (struct stack){read->hash, found->frame_count, read->count, read->deep};
    memcpy((struct frame *)found->frames + found->frame_count, read->frames, read->count * sizeof(struct frame));
    found->frame_count += read->count;
    know(self, read->hash);
    return read->hash;
}

static void give(struct outside *self, struct thread *thread, struct found *found, uint64_t ts, struct sample sample)
{
    if (found->sample_count == found->sample_room) {
        found->lost++;
        return;
    }
    found->torn += sample.stack == TORN;
    sample.ts = ts;
    sample.pid_tgid = (uint64_t)self->place.pid << 32 | (uint32_t)thread->tid;
    ((struct sample *)found->samples)[found->sample_count++] = sample;
}

/* Ends the open interval off the core. Found at n looks it counts at most the time before these: so what is between two looks counts by its share of
 * them, as it should. */
static void end_interval(struct outside *self, struct thread *thread, struct found *found, uint64_t ts)
{
    uint64_t length = thread->off_ns < thread->off_windows_ns ? thread->off_ns : thread->off_windows_ns;

    if (thread->off != ON_CORE && length)
        give(self, thread, found, ts, (struct sample){.stack = thread->off_stack, .off_ns = length, .opcode = thread->off_opcode, .state = thread->off});
    thread->off = ON_CORE;
}

static void take_running(struct outside *self, struct thread *thread, struct found *found, uint64_t now, uint64_t window)
{
    uint64_t period = self->place.period_ns, count = thread->credit_ns / period, most = window / period + MOST_SAMPLES;
    struct sample sample = {.state = ON_CORE, .is_new = 1};

    if (!count && thread->queue_ns < period)
        return;
    sample.stack = take_stack(self, thread, found);
    sample.opcode = self->read.opcode;
    for (count = count < most ? count : most; count; count--) {
        give(self, thread, found, now, sample);
        thread->credit_ns -= period;
    }
    if (thread->queue_ns >= period) {
        sample.state = QUEUED;
        sample.off_ns = thread->queue_ns;
        give(self, thread, found, now, sample);
        thread->queue_ns = 0;
    }
}

static void take_waiting(struct outside *self, struct thread *thread, struct found *found, uint16_t state, uint64_t off, uint64_t window)
{
    thread->off_stack = take_stack(self, thread, found);
    thread->off_opcode = self->read.opcode;
    thread->off = state;
    thread->began_now = 1;
    thread->off_ns = off;
    thread->off_windows_ns = window;
}

/* Looks at one thread. */
static void look_at(struct outside *self, struct thread *thread, int index, struct found *found, uint64_t now)
{
    const struct state *at = thread->state >= 0 ? &self->states[thread->state] : NULL;
    int stands = (at ? at->innermost : 0) == thread->innermost && (at ? at->position : 0) == thread->position;
    uint64_t on, queued, ran, waited, window, off;
    uint16_t state;

    if (stands && thread->off != ON_CORE && self->count > FEW && (self->looks + index) % SELDOM)
        return;
    if (!take_times(self, thread, &on, &queued, &state)) {
        end_interval(self, thread, found, now);
        return;
    }
    window = thread->looked_ns ? now - thread->looked_ns : 0;
    ran = thread->looked_ns ? on - thread->on_ns : 0;
    waited = thread->looked_ns ? queued - thread->queued_ns : 0;
    off = window > ran + waited ? window - ran - waited : 0;
    thread->credit_ns += ran;
    thread->queue_ns += waited;
    thread->on_ns = on;
    thread->queued_ns = queued;
    thread->looked_ns = now;
    if (thread->off == ON_CORE || !stands || ran || waited || self->place.ns_per_tick)
        state = take_state(self, thread, state);
    else
        state = thread->off;
    thread->innermost = at ? at->innermost : 0;
    thread->position = at ? at->position : 0;
    if (thread->off != ON_CORE) {
        thread->off_ns += off;
        if (state == thread->off && stands && ran < window / STILL) {
            thread->off_windows_ns += window;
            return;
        }
        end_interval(self, thread, found, now);
    }
    if (state == ON_CORE)
        take_running(self, thread, found, now, window);
    else
        take_waiting(self, thread, found, state, off, window);
}

/* The program that was looked at is gone, and what has its place by now may have been read: forget the stacks of this look. */
static void forget_new(struct outside *self, struct found *found, const struct found *before)
{
    struct sample *samples = (struct sample *)found->samples;
    uint32_t kept = before->sample_count;

    for (uint32_t i = kept; i < found->sample_count; i++)
        if (!samples[i].is_new)
            samples[kept++] = samples[i];
    found->sample_count = kept;
    found->stack_count = before->stack_count;
    found->frame_count = before->frame_count;
    found->torn = before->torn;
    for (int i = 0; i < self->count; i++)
        if (self->threads[i].began_now)
            self->threads[i].off = ON_CORE;
}

/* Looks at all threads, or as many as there is time for. Returns 1; 0 where the program that was to be looked at is gone. `strangers`: how many thread
 * states belong to no thread that is known. */
EXPORT int outside_look(struct outside *self, struct found *found, uint64_t most_ns, int *strangers)
{
    struct found before = *found;
    uint64_t began = now_ns();

    *strangers = 0;
    if (!reader_is_alive(self->reader))
        return 0;
    self->looks++;
    list_states(self);
    name_states(self);
    find_innermost(self);
    *strangers = self->strangers;
    for (int i = 0; i < self->count; i++) {
        int index = (self->first + i) % self->count;
        uint64_t now = now_ns();

        if (now - began > most_ns) {
            self->first = index;
            break;
        }
        self->threads[index].began_now = 0;
        look_at(self, &self->threads[index], index, found, now);
    }
    if (reader_is_alive(self->reader))
        return 1;
    forget_new(self, found, &before);
    return 0;
}

/* Gives the intervals that are still open, of at least a period: nobody will see their ends. `ended`: the threads have, some time after the last look. */
EXPORT void outside_finish(struct outside *self, struct found *found, int ended)
{
    uint64_t now = now_ns();

    for (int i = 0; i < self->count; i++) {
        struct thread *thread = &self->threads[i];
        uint64_t more = ended || !thread->looked_ns ? 0 : now - thread->looked_ns;

        thread->off_ns += more;
        thread->off_windows_ns += more;
        if (thread->off_ns >= self->place.period_ns)
            end_interval(self, thread, found, ended ? thread->looked_ns : now);
    }
}

/* -- what the compiler made of these structs, as text: one line a field --------------- */

#define KIND(type) _Generic((type)0, uint64_t : 'u', uint32_t : 'u', uint16_t : 'u', int32_t : 'i')
#define LINE(holder, type, name) \
    at += snprintf(text + at, sizeof text - at, "%s %s %c%zu %zu 1\n", #holder, #name, KIND(type), sizeof(type), offsetof(struct holder, name));
#define LINE_OF_PLACE(type, name) LINE(place, type, name)
#define LINE_OF_SAMPLE(type, name) LINE(sample, type, name)
#define LINE_OF_STACK(type, name) LINE(stack, type, name)
#define LINE_OF_FRAME(type, name) LINE(frame, type, name)
#define LINE_OF_FOUND(type, name) LINE(found, type, name)

EXPORT const char *outside_layout(void)
{
    static char text[4096];
    size_t at = 0;

    PLACE_FIELDS(LINE_OF_PLACE)
    SAMPLE_FIELDS(LINE_OF_SAMPLE)
    STACK_FIELDS(LINE_OF_STACK)
    FRAME_FIELDS(LINE_OF_FRAME)
    FOUND_FIELDS(LINE_OF_FOUND)
    return text;
}
