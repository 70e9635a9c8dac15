/* Creates the arena, hands its chunks to the threads, and takes in the functions' names. */
#include "arena.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "options.h"
#include "pages.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#define FUNCTIONS_STEP (256 << 10)
#define SMALL (16 << 20) /* an arena in which names take smaller steps */
#define WAIT_NS 200000
#define WINDOW_NS 10000000 /* a thread looks at the clock about so often */
#define WINDOW 256         /* events, after so many at the latest */
#define DUE_NS 50000000    /* and so often one thread of all looks whether something is to be done */
#define LOOK_EVERY 64 /* events, while there is no chunk */

struct arena *arena;
uint64_t recording;
bool (*nobody_reads)(void);

static struct writer nobody = {.session = NO_SESSION};
_Thread_local struct writer *this_writer __attribute__((tls_model("initial-exec"))) = &nobody;

static size_t arena_size, page_size;
static char arena_path[PATH_MAX + 64];
static uint64_t backed; /* functions: so many bytes of the file have memory */
static uint64_t used;   /* bytes of all of the file that have */
static uint32_t chunk_limit, function_ids, threads;
static uint64_t order, values_turned_away, allocations_turned_away, opcodes_turned_away;
static struct chunk *opcodes; /* the last one of their records; NULL = none yet */
static volatile bool may_wait;
static bool patient; /* the tracer came in time when it was last waited for */
static struct writer *writers;
static bool have_key;
static pthread_key_t key;
static int locked;
static struct arena *refused; /* its first page: the tracer may not have seen it yet, and believes it of who has it mapped */

void arena_lock(void)
{
    while (__atomic_exchange_n(&locked, 1, __ATOMIC_ACQUIRE))
        sched_yield();
}

void arena_unlock(void)
{
    __atomic_store_n(&locked, 0, __ATOMIC_RELEASE);
}

/* The tracer grants so many bytes more, of which some are left for names: without those nothing that is written says anything. */
static bool is_granted(uint64_t length, bool for_names)
{
    uint64_t granted = __atomic_load_n(&arena->granted, __ATOMIC_RELAXED);
    return !granted || used + length <= (for_names ? granted : granted - granted / 4);
}

/* Give part of the arena that nobody has written to its memory now, so that no later store can fail: on a full file system
 * that is a SIGBUS. Without a descriptor: the file may have lost its name by now. */
static bool back(uint64_t offset, uint64_t length)
{
    char *start = (char *)arena + offset;
    bool done = !madvise(start, length, MADV_POPULATE_WRITE);
    if (!done && errno != EINVAL)
        return false;
    /* Linux before 5.14: where the kernel itself is to store something, the call fails instead. */
    for (char *page = start; !done && page < start + length; page += page_size) {
        if (syscall(SYS_rt_sigprocmask, SIG_BLOCK, NULL, page, sizeof(uint64_t)))
            return false;
        memset(page, 0, sizeof(uint64_t));
    }
    __atomic_fetch_add(&used, length, __ATOMIC_RELAXED);
    return true;
}

bool arena_open(uint32_t python, uint32_t forked_from)
{
    page_size = sysconf(_SC_PAGESIZE);
    uint32_t chunk_bytes = (options.chunk_records * sizeof(struct event) + page_size - 1) / page_size * page_size;
    uint64_t chunks = options.arena_bytes / chunk_bytes;
    if (refused)
        munmap(refused, page_size);
    refused = NULL;
    chunk_limit = chunks < 1 ? 1 : chunks > MOST_CHUNKS ? MOST_CHUNKS : chunks;
    arena_size = CHUNKS_START + (size_t)chunk_limit * chunk_bytes;
    int fd = -1;
    for (int n = 0; fd < 0 && n < 1000; n++) {
        snprintf(arena_path, sizeof arena_path, "%s/%d.%d.arena", options.arenas, getpid(), n);
        fd = open(arena_path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (fd < 0 && errno != EEXIST)
            return false;
    }
    if (fd < 0)
        return false;
    void *at = MAP_FAILED;
    /* Not by ftruncate: programs are confined to calls that Python itself makes. */
    if (lseek(fd, arena_size - 1, SEEK_SET) >= 0 && write(fd, "", 1) == 1)
        at = mmap(NULL, arena_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    close(fd);
    arena = at == MAP_FAILED ? NULL : at;
    used = 0;
    if (!arena || !back(0, page_size)) {
        arena_unlink();
        if (arena)
            munmap(arena, arena_size);
        arena = NULL;
        return false;
    }
    madvise(arena, arena_size, MADV_DONTDUMP);
    backed = FUNCTIONS_START;
    function_ids = threads = 0;
    order = values_turned_away = allocations_turned_away = opcodes_turned_away = 0;
    opcodes = NULL;
    may_wait = patient = true;
    arena->pid = getpid();
    arena->python = python;
    arena->clock = options.clock;
    arena->chunk_bytes = chunk_bytes;
    arena->forked_from = forked_from;
    arena->functions_end = FUNCTIONS_START;
    arena->granted = options.arena_first;
    arena->started = stamp_of(options.clock);
    __atomic_store_n(&arena->magic, ARENA_MAGIC, __ATOMIC_RELEASE);
    return true;
}

void arena_say(struct arena *of, uint32_t state)
{
    __atomic_store_n(&of->state, state, __ATOMIC_RELEASE);
    syscall(SYS_futex, &of->state, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

struct ended arena_detach(void)
{
    arena_lock();
    struct ended ended = {arena, arena_size};
    arena = NULL;
    for (struct writer *w = writers; w; w = w->link) {
        w->session = NO_SESSION;
        w->over |= w->thread != 0; /* kept for a thread that never came */
    }
    arena_unlock();
    return ended;
}

void arena_end(struct ended ended, uint32_t state, const char *message)
{
    if (message)
        snprintf(ended.arena->message, sizeof ended.arena->message, "%s", message);
    arena_say(ended.arena, state);
    if (message)
        refused = ended.arena;
    munmap((char *)ended.arena + (message ? page_size : 0), ended.size - (message ? page_size : 0));
}

void writers_after_fork(void)
{
    locked = 0;
    for (struct writer *w = writers; w; w = w->link)
        w->over = w != this_writer;
}

void arena_forget(void)
{
    struct ended parents = arena_detach();
    munmap(parents.arena, parents.size);
}

void arena_unlink(void)
{
    unlink(arena_path);
}

const struct function *arena_function_at(uint64_t offset)
{
    return (const struct function *)((char *)arena + offset);
}

uint32_t arena_add_function(int32_t first_line, uint32_t flags, const char *const text[3], const size_t length[3])
{
    uint64_t start = arena->functions_end;
    uint32_t size = (sizeof(struct function) + length[0] + length[1] + length[2] + 3 + 7) & ~7u;
    if (function_ids == LAST_FUNCTION || start + size > CHUNKS_START)
        goto full;
    while (start + size > backed) {
        uint64_t step = arena->granted && arena->granted < SMALL ? FUNCTIONS_STEP / 4 : FUNCTIONS_STEP;
        if (backed + step > CHUNKS_START)
            step = CHUNKS_START - backed;
        if (!is_granted(step, true) || !back(backed, step))
            goto full;
        backed += step;
    }
    struct function *record = (struct function *)((char *)arena + start);
    *record = (struct function){.size = size, .id = ++function_ids, .first_line = first_line, .flags = flags};
    char *at = (char *)(record + 1);
    for (int i = 0; i < 3; i++) {
        memcpy(at, text[i], length[i]);
        at[length[i]] = 0;
        at += length[i] + 1;
    }
    __atomic_store_n(&arena->functions_end, start + size, __ATOMIC_RELEASE);
    return record->id;
full:
    arena->unnamed++;
    return 0;
}

static struct chunk *chunk_at(uint32_t number)
{
    return (struct chunk *)((char *)arena + CHUNK_TABLE) + number;
}

static uint64_t events_at(uint32_t number)
{
    return CHUNKS_START + (uint64_t)number * arena->chunk_bytes;
}

/* Give the next chunk its memory, and the page of the table that it is in. */
static bool back_next_chunk(void)
{
    uint32_t number = arena->chunks, in_a_page = page_size / CHUNK_SIZE;
    if (!is_granted(arena->chunk_bytes + page_size, false))
        return false;
    if (number % in_a_page == 0 && !back(CHUNK_TABLE + (uint64_t)number * CHUNK_SIZE, page_size))
        return false;
    return back(events_at(number), arena->chunk_bytes);
}

/* The lowest free chunk, so that no more memory is touched than needed; of one more than `most` chunks none is made. NULL = none. */
static struct chunk *free_chunk(uint32_t most)
{
    for (uint32_t i = 0; i < arena->chunks; i++)
        if (__atomic_load_n(&chunk_at(i)->state, __ATOMIC_ACQUIRE) == CHUNK_FREE)
            return chunk_at(i);
    if (arena->chunks >= most || !back_next_chunk())
        return NULL;
    struct chunk *fresh = chunk_at(arena->chunks);
    __atomic_store_n(&arena->chunks, arena->chunks + 1, __ATOMIC_RELEASE);
    return fresh;
}

/* The same, made this thread's for records of a stream, of which it has written `first`. */
static struct chunk *take_chunk(uint32_t most, const struct writer *w, uint32_t stream, uint32_t record_bytes, uint64_t first)
{
    arena_lock();
    struct chunk *chunk = free_chunk(most);
    if (chunk) {
        chunk->tid = w->tid;
        chunk->count = 0;
        chunk->order = ++order;
        chunk->stream = stream;
        chunk->record_bytes = record_bytes;
        chunk->first = first;
        chunk->thread = w->number;
        __atomic_store_n(&chunk->state, CHUNK_WRITING, __ATOMIC_RELEASE);
    }
    arena_unlock();
    return chunk;
}

static struct chunk *take_chunk_for_calls(const struct writer *w)
{
    return take_chunk(chunk_limit, w, STREAM_CALLS, sizeof(struct event), w->before);
}

void arena_wait_no_more(void)
{
    may_wait = false;
}

static struct chunk *wait_for_chunk(const struct writer *w)
{
    struct timespec pause = {0, WAIT_NS};
    uint64_t since = clock_ns();
    struct chunk *chunk = NULL;
    /* With the GIL: the program stands still until the tracer has read a chunk, but not again and again for one that does
     * not come. Without one it is this thread alone. */
    while (may_wait && patient && !nobody_reads() && !(chunk = take_chunk_for_calls(w)) && clock_ns() - since < options.wait_ns)
        nanosleep(&pause, NULL);
    patient = chunk != NULL;
    __atomic_fetch_add(&arena->waited_ns, clock_ns() - since, __ATOMIC_RELAXED);
    return chunk;
}

static void look_at_clock(struct writer *w)
{
    static uint64_t due;
    uint64_t now = clock_ns(), took = now - w->looked, most = w->window ? 2 * w->window : 1;
    uint64_t fit = (uint64_t)w->window * WINDOW_NS / (took + 1);
    w->looked = now;
    w->window = fit < 1 ? 1 : fit < most ? fit : most;
    if (w->window > WINDOW)
        w->window = WINDOW;
    if (now < __atomic_load_n(&due, __ATOMIC_RELAXED))
        return;
    __atomic_store_n(&due, now + DUE_NS, __ATOMIC_RELAXED);
    w->session |= DUE;
}

static void open_window(struct writer *w)
{
    look_at_clock(w);
    w->end = w->stop - w->next > w->window ? w->next + w->window : w->stop;
}

void writer_looks(void)
{
    if (this_writer->session == recording)
        look_at_clock(this_writer);
}

bool writer_make_room(struct writer *w)
{
    if (!recording || !(writes_to(w, recording) || w->session == AWAITING)) /* writers_close */
        return false;
    if (w->next != w->stop) {
        open_window(w);
        return true;
    }
    if (w->chunk) {
        w->before += w->chunk->count;
        __atomic_store_n(&w->chunk->state, CHUNK_FULL, __ATOMIC_RELEASE);
    }
    w->chunk = NULL;
    if (w->turned_away++ % LOOK_EVERY == 0) {
        w->chunk = take_chunk_for_calls(w);
        if (!w->chunk && options.wait_ns)
            w->chunk = wait_for_chunk(w);
        else if (w->chunk)
            patient = true;
    }
    if (!w->chunk) {
        w->next = w->end = w->stop = NULL;
        arena_dropped();
        return false;
    }
    w->turned_away = 0;
    w->next = (struct event *)((char *)arena + events_at(w->chunk - chunk_at(0)));
    w->stop = w->next + options.chunk_records;
    open_window(w);
    return true;
}

/* Who writes a call of another interpreter, which no GIL of ours keeps from it, has said so before it looked at `recording`: interpreters_left() waits for it. */
void writers_close(void)
{
    uint64_t ending = __atomic_exchange_n(&recording, 0, __ATOMIC_SEQ_CST);
    arena_lock();
    for (struct writer *w = writers; w; w = w->link)
        if (writes_to(w, ending) && !w->over && !__atomic_load_n(&w->foreign, __ATOMIC_SEQ_CST))
            w->end = w->next;
    arena_unlock();
}

/* Values never wait, and leave half of the chunks to the events. */
struct value *room_for_values(struct writer *w, uint32_t count)
{
    uint32_t most = arena->chunk_bytes / sizeof(struct value);
    if (UNLIKELY(!w->values || w->values->count + count > most)) {
        if (w->values) {
            w->values_before += w->values->count;
            __atomic_store_n(&w->values->state, CHUNK_FULL, __ATOMIC_RELEASE);
        }
        w->values = count > most || values_turned_away++ % LOOK_EVERY ? NULL : take_chunk(chunk_limit / 2, w, STREAM_VALUES, sizeof(struct value), w->values_before);
        if (!w->values) {
            arena->values_dropped += count;
            return NULL;
        }
        values_turned_away = 0;
    }
    struct value *values = (struct value *)((char *)arena + events_at(w->values - chunk_at(0))) + w->values->count;
    for (uint32_t i = 0; i < count; i++)
        values[i].event = w->before + w->chunk->count - 1;
    return values;
}

/* They never wait either. */
struct allocations *room_for_allocations(struct writer *w)
{
    uint32_t most = arena->chunk_bytes / sizeof(struct allocations);
    if (UNLIKELY(!w->allocations || w->allocations->count == most)) {
        if (w->allocations) {
            w->allocations_before += w->allocations->count;
            __atomic_store_n(&w->allocations->state, CHUNK_FULL, __ATOMIC_RELEASE);
        }
        w->allocations = allocations_turned_away++ % LOOK_EVERY ? NULL : take_chunk(chunk_limit / 2, w, STREAM_ALLOCATIONS, sizeof(struct allocations), w->allocations_before);
        if (!w->allocations) {
            arena->allocations_dropped++;
            return NULL;
        }
        allocations_turned_away = 0;
    }
    return (struct allocations *)((char *)arena + events_at(w->allocations - chunk_at(0))) + w->allocations->count;
}

/* Nor do they. What is full stays where it is: its records go on being counted up. */
struct opcode *arena_add_opcode(void)
{
    uint32_t most = arena->chunk_bytes / sizeof(struct opcode);
    if (!opcodes || opcodes->count == most) {
        struct writer whoever = {.tid = arena->pid};
        struct chunk *fresh = opcodes_turned_away++ % LOOK_EVERY ? NULL : take_chunk(chunk_limit / 2, &whoever, STREAM_OPCODES, sizeof(struct opcode), 0);
        if (!fresh)
            return NULL;
        opcodes = fresh;
        opcodes_turned_away = 0;
    }
    return (struct opcode *)((char *)arena + events_at(opcodes - chunk_at(0))) + opcodes->count;
}

void arena_opcode_added(void)
{
    __atomic_store_n(&opcodes->count, opcodes->count + 1, __ATOMIC_RELEASE);
}

void writers_each(void (*act)(struct writer *))
{
    for (struct writer *w = writers; w; w = w->link)
        if (writes_to(w, recording) && !w->over)
            act(w);
}

static void thread_ends(void *writer)
{
    struct writer *w = writer;
    this_writer = &nobody;
    arena_lock();
    bool good = writes_to(w, recording) || w->session == AWAITING;
    if (good && w->chunk)
        __atomic_store_n(&w->chunk->state, CHUNK_FULL, __ATOMIC_RELEASE);
    if (good && w->values)
        __atomic_store_n(&w->values->state, CHUNK_FULL, __ATOMIC_RELEASE);
    if (good && w->allocations)
        __atomic_store_n(&w->allocations->state, CHUNK_FULL, __ATOMIC_RELEASE);
    w->session = NO_SESSION;
    __atomic_store_n(&w->over, true, __ATOMIC_RELEASE);
    arena_unlock();
}

/* One that nobody has; NULL where there is no memory. */
static struct writer *spare_writer(void)
{
    struct writer *w = writers;
    while (w && !w->over)
        w = w->link;
    if (w)
        return w;
    struct writer *page = pages(page_size);
    if (!page)
        return NULL;
    for (size_t i = 0; i < page_size / sizeof *page; i++) {
        page[i].session = NO_SESSION;
        page[i].over = true;
        page[i].link = writers;
        writers = page + i;
    }
    return writers;
}

struct writer *writer_new(uint32_t tid, uint64_t thread)
{
    arena_lock();
    if (!have_key)
        have_key = !pthread_key_create(&key, thread_ends);
    struct writer *w = have_key ? spare_writer() : NULL;
    if (w)
        *w = (struct writer){.session = recording, .tid = tid, .number = ++threads, .thread = thread, .link = w->link, .c_calls = w->c_calls, .c_calls_room = w->c_calls_room, .marks = w->marks, .untimed = 1};
    arena_unlock();
    return w;
}

void writer_take(struct writer *w)
{
    w->thread = 0;
    if (this_writer != &nobody)
        __atomic_store_n(&this_writer->over, true, __ATOMIC_RELEASE); /* of an earlier session */
    this_writer = w;
    pthread_setspecific(key, w);
}

struct writer *writer_kept(uint32_t tid, uint64_t thread)
{
    arena_lock();
    struct writer *w = writers;
    while (w && !((thread ? w->thread == thread : w->thread != 0) && w->tid == tid && writes_to(w, recording) && !w->over))
        w = w->link;
    arena_unlock();
    return w;
}

struct writer *writer_of(uint32_t tid)
{
    for (struct writer *w = writers; w; w = w->link)
        if (w->tid == tid && (writes_to(w, recording) || w->session == AWAITING) && w->chunk && !w->over)
            return w;
    return NULL;
}
