/* Times one event in a thousand: how long the agent's callback takes, and soon after for how long Python's code runs from one event to the next, which a
 * profile function makes slower. The sums stand in the arena. */
#include "timing.h"

#define STRIDE_BITS 10
#define LEAST_STRIDE (1 << (STRIDE_BITS - 1)) /* from one to the next: 512 to 1535 events, 1023.5 in the mean */
#define LONGEST_NS 20000  /* what takes longer was interrupted, has lost its core, or waited: one such would be more than hundreds of others */
#define LONG_NS 20000     /* so is what takes so long between two events looked at by the thread's CPU clock, which is too coarse for what is shorter */
#define SETTLED 32        /* so many events later no trace of our system call is left in the caches */
#define TRIES 16

enum { CALLBACK, BEFORE_CODE, CODE }; /* writer.phase: a callback is timed; the next one begins the time of code, and the one after that ends it, so that no
                                        system call of ours is near what is timed */

static uint32_t clock_known = UINT32_MAX;
static uint64_t stamp_ticks; /* what it takes to look at the clock */
static uint64_t since, since_ns; /* one moment */

static uint64_t cpu_ns(void)
{
    struct timespec now = {0}; /* a seccomp filter may refuse it */
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void learn_clocks(void)
{
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < TRIES; i++) {
        uint64_t before = stamp_of(options.clock), took = stamp_of(options.clock) - before;
        least = took < least ? took : least;
    }
    stamp_ticks = least;
    since = stamp_of(options.clock);
    since_ns = clock_ns();
    clock_known = options.clock;
}

/* Knuth's generator, of which the high bits are used. */
static uint32_t random_bits(struct writer *w)
{
    w->random = w->random * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(w->random >> (64 - STRIDE_BITS));
}

/* Of a new writer: when its first event is timed, which is drawn so that a short thread has as much chance as a long one. */
static void begin(struct writer *w)
{
    if (clock_known != options.clock)
        learn_clocks();
    w->random = (stamp_of(options.clock) ^ (uint64_t)w->tid << 32) | 1;
    random_bits(w);
    w->untimed = 1 + random_bits(w);
}

static void go_on(struct writer *w)
{
    w->phase = CALLBACK;
    w->untimed = LEAST_STRIDE + random_bits(w);
}

static void add(uint64_t *sum, uint64_t value)
{
    __atomic_fetch_add(sum, value, __ATOMIC_RELAXED);
}

static uint64_t ns_since(uint64_t began, uint64_t now)
{
    uint64_t ticks = now - began;
    if (options.clock != CLOCK_IS_TSC)
        return ticks;
    return (uint64_t)((double)ticks * (double)(clock_ns() - since_ns) / (double)(now - since + 1));
}

/* The time until this event, since the one before. */
static void add_code(const struct writer *w)
{
    uint64_t ns = 0;
    if (w->code) {
        uint64_t now = stamp_of(options.clock), took = now - w->code_since;
        ns = ns_since(now - (took > stamp_ticks ? took - stamp_ticks : 0), now);
        if (ns > LONG_NS) {
            uint64_t on_core = cpu_ns() - w->code_since_ns;
            ns = on_core < ns ? on_core : ns;
        }
        add(&arena->timed_code_ns, ns);
    }
    add(&arena->timed_code, 1);
}

uint64_t timing_begins(void)
{
    struct writer *w = this_writer;
    if (!recording || !writes_to(w, recording) || !arena) {
        go_on(w);
        return 0;
    }
    if (!w->random) {
        begin(w);
        return 0;
    }
    if (w->phase != CODE) {
        w->passed = arena->passed;
        return stamp_of(options.clock);
    }
    add_code(w);
    go_on(w);
    return 0;
}

static void add_callback(uint64_t began, uint64_t now)
{
    uint64_t took = now - began;
    if (ns_since(began, now) > LONGEST_NS)
        return;
    add(&arena->timed, 1);
    add(&arena->timed_ticks, took > stamp_ticks ? took - stamp_ticks : 0);
}

void timing_ends(uint64_t began, bool code)
{
    uint64_t now = stamp_of(options.clock);
    struct writer *w = this_writer;
    if (!recording || !writes_to(w, recording) || !arena)
        return;
    w->untimed = 1;
    if (w->phase++ == CALLBACK) {
        if (arena->passed == w->passed) /* it was written */
            add_callback(began, now);
        w->code_since_ns = cpu_ns();
        w->untimed = SETTLED;
        return;
    }
    w->code = code;
    w->code_since = stamp_of(options.clock);
}
