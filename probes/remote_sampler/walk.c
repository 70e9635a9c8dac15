/* Reads the Python frames of a thread that runs on meanwhile.
 *
 * From 3.11 on most frames of a thread lie side by side in its data stack, which one system call copies within a microsecond, outer frames first. What is
 * copied is a stack of just then: to mix two the thread would have to return and call again while a frame's bytes are copied. All other
 * frames, and all of them up to 3.10, are read one by one, and count where a second look finds them as the first one did. In both cases each has to be
 * one that can be on a stack, and its code object one.
 */
#define _GNU_SOURCE
#include <string.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "remote_sampler.h"

#define AT_ONCE 512       /* pieces of memory in one system call; the kernel takes 1,024 */
#define HEADS (2 * FRAMES) /* of Python frames, and of entries from C between them */
#define TRIES 8
#define SNAPSHOT 65536  /* so much of a data stack is copied, its inner end */
#define BEHIND 1024     /* and of what is not in use, for frames that come meanwhile */
#define MOST_NS 50000   /* what a copy may take: this process may have been interrupted */
#define MOST_ADDRESS (1ULL << 47) /* a program's own */
#define OWNED_BY_GENERATOR 1
#define OWNED_BY_OBJECT 2
#define CODE_LENGTH 16 /* of a code object: its number of instructions, from 3.11 on */
#define BYTES_OF_BYTES 32
#define TYPE 8 /* of an object */
#define MIX 0x9e3779b97f4a7c15ULL

struct reader {
    struct place place;
    char heads[HEADS][HEAD], again[AT_ONCE][HEAD], codes[FRAMES][HEAD];
    uint64_t at[HEADS], code_at[FRAMES], name_at[FRAMES], names[FRAMES];
    uint8_t taken[HEADS];
    char snapshot[SNAPSHOT];
    uint64_t from, to; /* what it is a copy of */
};

struct reader *reader_open(const struct place *place)
{
    struct reader *reader = calloc(1, sizeof *reader);

    if (reader)
        reader->place = *place;
    return reader;
}

void reader_close(struct reader *reader)
{
    free(reader);
}

static int is_address(uint64_t address)
{
    return address && address < MOST_ADDRESS;
}

int reader_take(struct reader *reader, uint64_t from, void *to, size_t size)
{
    struct iovec there = {(void *)from, size}, here = {to, size};

    return is_address(from) && process_vm_readv(reader->place.pid, &here, 1, &there, 1, 0) == (ssize_t)size;
}

/* Reads `each` bytes at each address; taken: which of them could be read. */
void reader_scatter(struct reader *reader, const uint64_t *from, void *to, size_t each, size_t count, uint8_t *taken)
{
    struct iovec there[AT_ONCE];
    size_t at = 0, some, i;

    memset(taken, 0, count);
    while (at < count) {
        struct iovec here = {(char *)to + at * each, 0};
        ssize_t got;

        for (some = 0; some < AT_ONCE && at + some < count && is_address(from[at + some]); some++)
            there[some] = (struct iovec){(void *)from[at + some], each};
        here.iov_len = some * each;
        got = some ? process_vm_readv(reader->place.pid, &here, 1, there, some, 0) : 0;
        for (i = 0; got > 0 && i < (size_t)got / each; i++)
            taken[at + i] = 1;
        at += (got > 0 ? (size_t)got / each : 0);
        if (got <= 0 || (size_t)got < some * each || some < AT_ONCE)
            at += at < count && !taken[at]; /* the one that could not be read */
    }
}

int reader_is_alive(struct reader *reader)
{
    uint64_t ignored;

    return pread(reader->place.memory, &ignored, sizeof ignored, reader->place.first) == sizeof ignored;
}

static uint64_t u64(const char *head, int32_t offset)
{
    uint64_t value;

    memcpy(&value, head + offset, sizeof value);
    return value;
}

/* The innermost frame of a thread state that was read; 0 = none. */
uint64_t reader_innermost(struct reader *reader, const char *state)
{
    uint64_t frame = u64(state, reader->place.thread_frame);

    if (frame && reader->place.cframe_frame != ABSENT && !reader_take(reader, frame + reader->place.cframe_frame, &frame, sizeof frame))
        return 0;
    return frame;
}

static uint64_t mixed(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * MIX;
    return hash ^ hash >> 32;
}

static int is_entry(const struct place *place, const char *head)
{
    return place->frame_owner != ABSENT && (uint8_t)head[place->frame_owner] >= place->owner_shim;
}

/* Whether a frame can be on a stack. */
static int can_be(const struct place *place, const char *head)
{
    if (place->frame_owner != ABSENT && head[place->frame_owner] == OWNED_BY_OBJECT)
        return 0;
    return place->frame_running == ABSENT || (place->running_values >> (head[place->frame_running] & 31) & 1);
}

static int can_be_outermost(const struct place *place, const char *head)
{
    if (place->frame_owner == ABSENT)
        return 1;
    return place->ends_with_shim ? is_entry(place, head) : head[place->frame_owner] != OWNED_BY_GENERATOR;
}

/* Whether the frame has been left already: it lies in the unused part of the thread's data stack. */
static int is_left(const struct place *place, const char *state, uint64_t frame)
{
    uint64_t begin, used, end;

    if (place->thread_datastack == ABSENT)
        return 0;
    begin = u64(state, place->thread_datastack);
    used = u64(state, place->thread_datastack + 8);
    end = u64(state, place->thread_datastack + 16);
    return frame >= begin && frame < end && frame >= used;
}

/* Copies the data stack of the thread whose state was read, and reads that anew just before. Returns 0 where that cannot be. */
static int take_snapshot(struct reader *reader, uint64_t address, char *state)
{
    const struct place *place = &reader->place;
    uint64_t begin = u64(state, place->thread_datastack), end = u64(state, place->thread_datastack + 16), used = u64(state, place->thread_datastack + 8);
    struct iovec there[2], here[2];
    struct timespec before, after;

    reader->from = reader->to = 0;
    if (!begin) /* no frame yet */
        return 1;
    if (!is_address(begin) || used < begin || end < used || end >= MOST_ADDRESS)
        return 0;
    end = end - used > BEHIND ? used + BEHIND : end;
    begin = end - begin > SNAPSHOT ? end - SNAPSHOT : begin;
    there[0] = (struct iovec){(void *)address, STATE_BYTES};
    here[0] = (struct iovec){state, STATE_BYTES};
    there[1] = (struct iovec){(void *)begin, end - begin};
    here[1] = (struct iovec){reader->snapshot, end - begin};
    clock_gettime(CLOCK_MONOTONIC, &before);
    if (process_vm_readv(place->pid, here, 2, there, 2, 0) != (ssize_t)(STATE_BYTES + end - begin))
        return 0;
    clock_gettime(CLOCK_MONOTONIC, &after);
    reader->from = begin;
    reader->to = end;
    return (after.tv_sec - before.tv_sec) * 1000000000LL + after.tv_nsec - before.tv_nsec < MOST_NS;
}

static int is_copied(const struct reader *reader, uint64_t frame)
{
    return frame >= reader->from && frame + reader->place.frame_size <= reader->to;
}

/* Reads frames outwards; returns how many, -1 for what is no stack. `deep`: there are more. */
static int take_heads(struct reader *reader, uint64_t frame, uint16_t *deep)
{
    const struct place *place = &reader->place;
    int count = 0, of_python = 0;

    *deep = 0;
    for (; frame; count++) {
        char *head = reader->heads[count];

        if (of_python == FRAMES || count == HEADS) {
            *deep = 1;
            return count;
        }
        if (is_copied(reader, frame))
            memcpy(head, reader->snapshot + (frame - reader->from), place->frame_size);
        else if (!reader_take(reader, frame, head, place->frame_size))
            return -1;
        if (!can_be(place, head))
            return -1;
        reader->at[count] = frame;
        of_python += !is_entry(place, head);
        frame = u64(head, place->frame_previous);
        if (frame >= reader->at[count] && is_copied(reader, frame) && is_copied(reader, reader->at[count]))
            return -1; /* callers come before their callees there */
    }
    return can_be_outermost(place, reader->heads[count - 1]) ? count : -1;
}

/* Whether a frame is as it was; the innermost one may have gone on to another instruction. */
static int is_same(const struct place *place, const char *one, const char *other, int innermost)
{
    return u64(one, place->frame_previous) == u64(other, place->frame_previous) && u64(one, place->frame_code) == u64(other, place->frame_code) &&
           (place->frame_owner == ABSENT || one[place->frame_owner] == other[place->frame_owner]) && can_be(place, other) &&
           (innermost || !memcmp(one + place->frame_position, other + place->frame_position, place->code_start == ABSENT ? 4 : 8));
}

/* Whether the frames that were read one by one are as they were. */
static int are_same(struct reader *reader, uint64_t state, uint64_t innermost, int count)
{
    char now[STATE_BYTES];
    uint64_t again[AT_ONCE];
    int at = 0, some, i, which[AT_ONCE];

    while (at < count) {
        for (some = 0; at < count && some < AT_ONCE; at++)
            if (!is_copied(reader, reader->at[at])) {
                again[some] = reader->at[at];
                which[some++] = at;
            }
        reader_scatter(reader, again, reader->again, HEAD, some, reader->taken);
        for (i = 0; i < some; i++) {
            if (!reader->taken[i] && !reader_take(reader, again[i], reader->again[i], reader->place.frame_size)) /* near the end of what is mapped */
                return 0;
            if (!is_same(&reader->place, reader->heads[which[i]], reader->again[i], which[i] == 0))
                return 0;
        }
    }
    return reader->to || (reader_take(reader, state, now, STATE_BYTES) && reader_innermost(reader, now) == innermost);
}

static uint16_t opcode(struct reader *reader, const struct frame *frame)
{
    const struct place *place = &reader->place;
    uint64_t instruction = frame->code + place->code_start + frame->position;
    uint8_t read;

    if (frame->position < 0)
        return NO_OPCODE;
    if (place->code_bytes != ABSENT)
        instruction = u64(reader->codes[0], place->code_bytes) + BYTES_OF_BYTES + (uint64_t)frame->position * place->position_unit;
    return reader_take(reader, instruction, &read, 1) ? read : NO_OPCODE;
}

/* The code of each frame that was read; 0 where one is no code object, or the instruction is none of it. */
static int take_codes(struct reader *reader, int count, struct stack_read *read)
{
    const struct place *place = &reader->place;
    uint32_t i;

    read->count = 0;
    for (int at = 0; at < count; at++) {
        const char *head = reader->heads[at];

        if (is_entry(place, head))
            continue;
        reader->code_at[read->count] = u64(head, place->frame_code) & ~3ULL;
        memcpy(&read->frames[read->count].position, head + place->frame_position, 4);
        if (place->code_start != ABSENT) {
            int64_t position = u64(head, place->frame_position) - reader->code_at[read->count] - place->code_start;

            if (position < -2 || position > INT32_MAX)
                return 0;
            read->frames[read->count].position = position;
        }
        read->count++;
    }
    reader_scatter(reader, reader->code_at, reader->codes, HEAD, read->count, reader->taken);
    for (i = 0; i < read->count; i++) {
        const char *code = reader->codes[i];

        if (!reader->taken[i] || (place->code_type && u64(code, TYPE) != place->code_type))
            return 0;
        if (place->code_start != ABSENT && read->frames[i].position >= 2 * (int64_t)u64(code, CODE_LENGTH))
            return 0;
        reader->name_at[i] = u64(code, place->code_name) + place->string_hash;
    }
    reader_scatter(reader, reader->name_at, reader->names, sizeof(uint64_t), read->count, reader->taken);
    for (i = 0; i < read->count; i++) {
        const char *code = reader->codes[i];
        uint32_t first_line;

        if (!reader->taken[i])
            return 0;
        memcpy(&first_line, code + place->code_first_line, sizeof first_line);
        read->frames[i].code = reader->code_at[i];
        read->frames[i].identity =
            mixed(mixed(mixed(mixed(MIX, u64(code, place->code_file)), reader->names[i]), first_line), u64(code, CODE_LENGTH));
    }
    return 1;
}

/* The stack of a thread by its thread state, where that is still the thread's with this pthread_t. */
void reader_stack(struct reader *reader, uint64_t state, uint64_t pthread, struct stack_read *read)
{
    char head[STATE_BYTES];
    uint64_t innermost;
    int count;

    read->opcode = NO_OPCODE;
    read->deep = read->count = 0;
    for (int i = 0; i < TRIES; i++) {
        read->hash = TORN;
        if (!reader_take(reader, state, head, STATE_BYTES) || u64(head, reader->place.thread_pthread) != pthread)
            return;
        if (reader->place.thread_datastack != ABSENT && !take_snapshot(reader, state, head))
            continue;
        innermost = reader_innermost(reader, head);
        if (!innermost) {
            read->hash = NO_FRAMES;
            return;
        }
        if (is_left(&reader->place, head, innermost))
            continue;
        count = take_heads(reader, innermost, &read->deep);
        if (count < 0 || !are_same(reader, state, innermost, count) || !take_codes(reader, count, read))
            continue;
        read->hash = read->count ? mixed(MIX, read->deep) : NO_FRAMES;
        for (uint32_t at = 0; at < read->count; at++)
            read->hash = mixed(mixed(read->hash, read->frames[at].code), (uint64_t)read->frames[at].identity << 32 | (uint32_t)read->frames[at].position);
        if (read->count) {
            read->hash |= FIRST_STACK;
            read->opcode = opcode(reader, &read->frames[0]);
        }
        return;
    }
}
