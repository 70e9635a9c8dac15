/* Looks at the threads of one process: which of them run, which wait for what, and since when.
 *
 * A look is taken about once a period. The CPU time that a thread has spent since the last one is its credit: for each period of it a
 * thread that has a core when it is looked at gives a sample there. One that waits for a core stands where it lost that, which is not anywhere alike:
 * many lose it at a system call, where the kernel sees that their time is over. Such a thread keeps its credit until it is met on a core. One that is not running is off the core from the look that found
 * it so to the one that finds that it has run; that interval is one sample, with the stack that the thread stood at.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "threads.h"

#define EXPORT __attribute__((visibility("default")))
#define MOST_THREADS 32768
#define MOST_SAMPLES 16 /* on a core of one look; the rest of the credit waits for the next ones */
#define MOST_UNMET 256 /* looks in a row that find a thread waiting for a core; then where it was on a core is not known */
#define STEP_ASIDE 4   /* after so many of them this process tries another core: it may have been the one that took theirs, each time */
#define STILL 16       /* a thread that ran for less than this part of the time between two looks still waits for the same */

static uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ULL + now.tv_nsec;
}

/* How many cores this process may run on: where that is one, nobody else has one while it looks. */
static int cores(void)
{
    cpu_set_t allowed;

    return sched_getaffinity(0, sizeof allowed, &allowed) ? 2 : CPU_COUNT(&allowed);
}

/* Leaves the core that this thread has to who waits there. What it may run on stays the same. */
static void step_aside(void)
{
    cpu_set_t allowed, others;
    int core = sched_getcpu();

    if (core < 0 || core >= CPU_SETSIZE || sched_getaffinity(0, sizeof allowed, &allowed))
        return;
    others = allowed;
    CPU_CLR(core, &others);
    if (CPU_COUNT(&others) && !sched_setaffinity(0, sizeof others, &others))
        sched_setaffinity(0, sizeof allowed, &allowed);
}

EXPORT struct remote_sampler *remote_sampler_open(const struct place *place)
{
    struct remote_sampler *self = calloc(1, sizeof *self);

    if (!self)
        return NULL;
    self->place = *place;
    self->cores = cores();
    self->reader = reader_open(place);
    if (!self->reader) {
        free(self);
        return NULL;
    }
    return self;
}

EXPORT void remote_sampler_close(struct remote_sampler *self)
{
    for (int i = 0; i < self->count; i++)
        let_go(&self->threads[i]);
    reader_close(self->reader);
    free(self->threads);
    free(self);
}

/* Where the GIL's locks are: [gil, gil_end); 0, 0 = unknown. */
EXPORT void remote_sampler_gil(struct remote_sampler *self, uint64_t gil, uint64_t gil_end)
{
    self->gil = gil;
    self->gil_end = gil_end;
}

/* The threads that there are: (as the process calls it, here), in the order of the former. Returns how many that is. */
EXPORT int remote_sampler_threads(struct remote_sampler *self, const int32_t *own, const int32_t *tids, int count)
{
    struct thread *threads;

    count = count > MOST_THREADS ? MOST_THREADS : count;
    threads = calloc(count ? count : 1, sizeof *threads);
    if (!threads)
        return self->count;
    for (int i = 0; i < count; i++) {
        struct thread *before = thread_of(self, own[i]);

        if (before && before->tid == tids[i]) {
            threads[i] = *before;
            before->times.fd = before->call.fd = before->clock.fd = 0;
        } else
            threads[i] = (struct thread){.tid = tids[i], .own = own[i], .off = ON_CORE, .state = -1};
    }
    for (int i = 0; i < self->states_count; i++)
        self->states[i].own = 0;
    for (int i = 0; i < self->count; i++)
        let_go(&self->threads[i]);
    free(self->threads);
    self->threads = threads;
    self->count = count;
    self->first = 0;
    name_states(self);
    return count;
}

static int is_known(struct remote_sampler *self, uint64_t stack)
{
    uint32_t at = stack >> 8 & (KNOWN - 1);

    while (self->known[at] && self->known[at] != stack)
        at = (at + 1) & (KNOWN - 1);
    return self->known[at] != 0;
}

static void know(struct remote_sampler *self, uint64_t stack)
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
static uint64_t take_stack(struct remote_sampler *self, struct thread *thread, struct found *found)
{
    struct stack_read *read = &self->read;

    read->hash = NO_FRAMES;
    read->opcode = NO_OPCODE;
    if (thread->state < 0)
        return NO_FRAMES;
    reader_stack(self->reader, self->states[thread->state].address, self->states[thread->state].pthread, read);
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

static void give(struct remote_sampler *self, struct thread *thread, struct found *found, uint64_t ts, struct sample sample)
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
static void end_interval(struct remote_sampler *self, struct thread *thread, struct found *found, uint64_t ts)
{
    uint64_t length = thread->off_ns < thread->off_windows_ns ? thread->off_ns : thread->off_windows_ns;

    if (thread->off != ON_CORE && length)
        give(self, thread, found, ts, (struct sample){.stack = thread->off_stack, .off_ns = length, .opcode = thread->off_opcode, .state = thread->off});
    thread->off = ON_CORE;
}

/* Gives the credit of a thread that will not be looked at again: to what it was met at last. */
static void give_rest(struct remote_sampler *self, struct thread *thread, struct found *found, uint64_t ts)
{
    struct sample sample = {.state = ON_CORE, .stack = thread->met_stack ? thread->met_stack : TORN, .opcode = thread->met_stack ? thread->met_opcode : NO_OPCODE};

    for (; thread->credit_ns >= self->place.period_ns; thread->credit_ns -= self->place.period_ns)
        give(self, thread, found, ts, sample);
}

static void take_running(struct remote_sampler *self, struct thread *thread, struct found *found, uint64_t now, uint64_t window)
{
    uint64_t period = self->place.period_ns, count = thread->credit_ns / period, most = window / period + MOST_SAMPLES, began, before, after;
    struct sample sample = {.state = ON_CORE, .is_new = 1}, met;

    if (!count && thread->queue_ns < period)
        return;
    began = now_ns();
    before = take_clock(self, thread);
    sample.stack = take_stack(self, thread, found);
    sample.opcode = self->read.opcode;
    after = take_clock(self, thread);
    if (!after || 2 * (after - before) >= now_ns() - began) {
        thread->unmet = 0;
        thread->met_stack = sample.stack;
        thread->met_opcode = sample.opcode;
    } else if (thread->unmet < MOST_UNMET) {
        thread->unmet++;
        self->step_aside |= thread->unmet % STEP_ASIDE == 0;
        count = 0;
    }
    met = sample;
    if (thread->unmet == MOST_UNMET) {
        met.stack = TORN;
        met.opcode = NO_OPCODE;
    }
    for (count = count < most ? count : most; count; count--) {
        give(self, thread, found, now, met);
        thread->credit_ns -= period;
    }
    if (thread->queue_ns >= period) {
        sample.state = QUEUED;
        sample.off_ns = thread->queue_ns;
        give(self, thread, found, now, sample);
        thread->queue_ns = 0;
    }
}

static void take_waiting(struct remote_sampler *self, struct thread *thread, struct found *found, uint16_t state, uint64_t off, uint64_t window)
{
    thread->off_stack = take_stack(self, thread, found);
    thread->off_opcode = self->read.opcode;
    thread->off = state;
    thread->began_now = 1;
    thread->off_ns = off;
    thread->off_windows_ns = window;
}

/* Looks at one thread. */
static void look_at(struct remote_sampler *self, struct thread *thread, struct found *found, uint64_t now)
{
    const struct state *at = thread->state >= 0 ? &self->states[thread->state] : NULL;
    int stands = (at ? at->innermost : 0) == thread->innermost && (at ? at->position : 0) == thread->position;
    uint64_t on, queued, ran, waited, window, off;
    uint16_t state;

    if (!take_times(self, thread, &on, &queued, &state)) {
        end_interval(self, thread, found, now);
        give_rest(self, thread, found, now);
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
            thread->still += thread->still < SELDOM;
            return;
        }
        end_interval(self, thread, found, now);
    }
    thread->still = 0;
    if (state == ON_CORE)
        take_running(self, thread, found, now, window);
    else
        take_waiting(self, thread, found, state, off, window);
}

/* The program that was looked at is gone, and what has its place by now may have been read: forget the stacks of this look. */
static void forget_new(struct remote_sampler *self, struct found *found, const struct found *before)
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
EXPORT int remote_sampler_look(struct remote_sampler *self, struct found *found, uint64_t most_ns, int *strangers)
{
    struct found before = *found;
    uint64_t began = now_ns();

    *strangers = 0;
    if (!reader_is_alive(self->reader))
        return 0;
    if (self->step_aside)
        step_aside();
    self->step_aside = 0;
    self->looks++;
    find_states(self);
    *strangers = self->strangers;
    for (int i = 0; i < self->count; i++) {
        int index = (self->first + i) % self->count;
        uint64_t now = now_ns();

        if (now - began > most_ns) {
            self->first = index;
            break;
        }
        self->threads[index].began_now = 0;
        if (self->threads[index].is_due)
            look_at(self, &self->threads[index], found, now);
    }
    if (reader_is_alive(self->reader))
        return 1;
    forget_new(self, found, &before);
    return 0;
}

/* Gives the intervals that are still open, of at least a period: nobody will see their ends. `ended`: the threads have, some time after the last look. */
EXPORT void remote_sampler_finish(struct remote_sampler *self, struct found *found, int ended)
{
    uint64_t now = now_ns();

    for (int i = 0; i < self->count; i++) {
        struct thread *thread = &self->threads[i];
        uint64_t more = ended || !thread->looked_ns ? 0 : now - thread->looked_ns;

        thread->off_ns += more;
        thread->off_windows_ns += more;
        if (thread->off_ns >= self->place.period_ns)
            end_interval(self, thread, found, ended ? thread->looked_ns : now);
        give_rest(self, thread, found, ended ? thread->looked_ns : now);
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

EXPORT const char *remote_sampler_layout(void)
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
