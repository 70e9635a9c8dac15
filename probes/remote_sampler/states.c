/* The interpreters' lists of threads: whose each thread state is, and where it has its frames. */
#include <stdlib.h>
#include <string.h>

#include "../processor.h"
#include "threads.h"

static int by_own(const void *one, const void *other)
{
    return ((const struct thread *)one)->own - ((const struct thread *)other)->own;
}

struct thread *thread_of(struct remote_sampler *self, int32_t own)
{
    struct thread wanted = {.own = own};

    return self->count ? bsearch(&wanted, self->threads, self->count, sizeof wanted, by_own) : NULL;
}

static uint64_t u64(const char *bytes, int32_t offset)
{
    uint64_t value;

    memcpy(&value, bytes + offset, sizeof value);
    return value;
}

/* Whether all thread states that were known are there still, and no others; they are read. */
static int are_the_same(struct remote_sampler *self, uint64_t head)
{
    int count = self->states_count;

    if (!count || self->several || self->states[0].address != head)
        return 0;
    for (int i = 0; i < count; i++)
        self->from[i] = self->states[i].address;
    reader_scatter(self->reader, self->from, self->state_bytes, STATE_BYTES, count, self->taken);
    for (int i = 0; i < count; i++)
        if (!self->taken[i] || u64(self->state_bytes[i], self->place.thread_next) != (i + 1 < count ? self->states[i + 1].address : 0))
            return 0;
    return 1;
}

/* The threads that are to be looked at this time; whether the list of thread states is, too. */
static int choose(struct remote_sampler *self)
{
    int many = self->count > FEW;

    for (int i = 0; i < self->count; i++)
        self->threads[i].is_due = !many || self->threads[i].still < SELDOM || (self->looks + i) % SELDOM == 0;
    return !many || !self->states_count || self->looks % SELDOM == 0;
}

/* Whether a thread state is the one that its thread used last, of those that it has in several interpreters. */
static int is_used(const struct remote_sampler *self, int at)
{
    return self->place.thread_status == ABSENT || u64(self->state_bytes[at], self->place.thread_status) & LAST_USED;
}

static void list_states(struct remote_sampler *self)
{
    const struct place *place = &self->place;
    uint64_t interpreter = 0, next, head;
    int count = 0, interpreters = 0;

    reader_take(self->reader, place->first, &interpreter, sizeof interpreter);
    for (; interpreter && interpreters < MOST_INTERPRETERS && count < MOST_STATES; interpreter = next) {
        next = 0;
        if (!reader_take(self->reader, interpreter + place->interpreter_threads, &head, sizeof head)
            || (place->interpreter_next != ABSENT && !reader_take(self->reader, interpreter + place->interpreter_next, &next, sizeof next)))
            break;
        if (!interpreters++ && !next && are_the_same(self, head))
            return;
        while (head && count < MOST_STATES && reader_take(self->reader, head, self->state_bytes[count], STATE_BYTES)) {
            self->states[count] = (struct state){.address = head};
            head = u64(self->state_bytes[count], place->thread_next);
            count++;
        }
    }
    self->several = interpreters > 1;
    self->states_count = count;
}

/* Whose each thread state is. */
void name_states(struct remote_sampler *self)
{
    static const int32_t places[] = {PTHREAD_TID, PTHREAD_TID_MUSL}; /* where struct pthread keeps the thread id */
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
        else if (state->pthread != pthread)
            state->own = 0;
        for (int at = 0; !state->own && at < 2; at++)
            if (!reader_take(self->reader, pthread + places[at], &state->own, sizeof state->own) || !thread_of(self, state->own))
                state->own = 0;
        state->pthread = pthread;
        thread = state->own ? thread_of(self, state->own) : NULL;
        if (thread && (thread->state < 0 || is_used(self, i)))
            thread->state = i;
        self->strangers += !thread;
    }
}

/* Reads a word at an offset from what was read before; 0 where there is none. */
static void read_words(struct remote_sampler *self, int count, int32_t offset)
{
    for (int i = 0; i < count; i++)
        self->from[i] = self->words[i] ? self->words[i] + offset : 0;
    reader_scatter(self->reader, self->from, self->words, sizeof(uint64_t), count, self->taken);
    for (int i = 0; i < count; i++)
        self->words[i] = self->taken[i] ? self->words[i] : 0;
}

/* The innermost frame of each thread that is due, and the instruction that it is at. */
static void find_innermost(struct remote_sampler *self)
{
    int count = 0, at = 0;

    for (int i = 0; i < self->count; i++)
        if (self->threads[i].is_due && self->threads[i].state >= 0)
            self->words[count++] = self->states[self->threads[i].state].address;
    read_words(self, count, self->place.thread_frame);
    if (self->place.cframe_frame != ABSENT)
        read_words(self, count, self->place.cframe_frame);
    for (int i = 0; i < self->count; i++)
        if (self->threads[i].is_due && self->threads[i].state >= 0)
            self->states[self->threads[i].state].innermost = self->words[at++];
    read_words(self, count, self->place.frame_position);
    for (int i = at = 0; i < self->count; i++)
        if (self->threads[i].is_due && self->threads[i].state >= 0)
            self->states[self->threads[i].state].position = self->words[at++];
}

/* Finds where the threads are that are to be looked at. */
void find_states(struct remote_sampler *self)
{
    if (choose(self)) {
        list_states(self);
        name_states(self);
    }
    find_innermost(self);
}
