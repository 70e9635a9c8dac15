/* Stands between CPython and its allocators, as tracemalloc does, and counts. It changes no block: what it knows of one is in a table of
 * its own. So any block may be freed by whoever, and a function of ours that is called with none of our state left calls on.
 *
 * The context that CPython passes to its allocator is left as it is. Thus it makes no difference in which order another thread, which needs
 * no GIL for the raw allocator, sees the fields of ours being set.
 *
 * Each thread counts for itself, in its writer. An allocation is the innermost call's. A block that is freed is counted with
 * the innermost of the calls that were open both times: it was freed within that one, and was there when those that have
 * ended meanwhile ended. What was counted is written before the thread's next event, with the number of its last one.
 *
 * The large blocks of the object allocator come from the raw one: what that hands out on its behalf is not counted again. */
#define _GNU_SOURCE
#include "memory.h"

#include <sys/mman.h>

#include "cpython.h"
#include "options.h"

#define DOMAINS 3 /* PYMEM_DOMAIN_RAW, _MEM, _OBJ */
#define RAW 0
#define SLOTS (1 << 22) /* 128 MiB, taken only as far as they are used; most of them in one session */
#define SLOTS_OF_PAGE 256 /* of the program's memory: a table of blocks that are close together is, too */
#define WINDOW 16
#define MOST_MARKS (1 << 16)
#define TAKEN 1 /* address of a slot that is being filled */

/* A block that was allocated and not freed yet. */
struct block {
    uint64_t address; /* 0: none */
    struct writer *owner;
    uint64_t size;
    uint32_t number; /* owner's; another one is another thread's */
    uint32_t begun;  /* calls that its thread had begun */
};

bool memory_on; /* changed under the GIL; the raw allocator's functions look without it */
static struct block *table;
static uint32_t slots = SLOTS; /* that this session uses, a power of 2 */
static struct allocator under[DOMAINS];
static bool buried[DOMAINS]; /* somebody has put his own above ours */
static volatile bool reached[DOMAINS];
static uint64_t untracked;

/* --- blocks --- */

/* The slots that a block may be in: two windows, each with its page's others. */
static struct block *slot_of(uint64_t address, uint32_t place)
{
    uint64_t page = address >> 12, hashed = (page ^ page >> 29) * 0x9e3779b97f4a7c15ull;
    uint64_t group = place < WINDOW ? hashed >> 40 : hashed >> 16;
    return &table[(group * SLOTS_OF_PAGE + (address >> 4) % SLOTS_OF_PAGE + place % WINDOW) & (slots - 1)];
}

/* Nobody else has this address now, but others change other slots at the same time. */
static bool put_in(const struct block *block)
{
    for (uint32_t k = 0; k < 2 * WINDOW; k++) {
        struct block *slot = slot_of(block->address, k);
        uint64_t there = __atomic_load_n(&slot->address, __ATOMIC_RELAXED);
        bool stale = there == block->address; /* it was freed where nobody counted */
        if (!stale && (there || !__atomic_compare_exchange_n(&slot->address, &there, TAKEN, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)))
            continue;
        slot->owner = block->owner;
        slot->size = block->size;
        slot->number = block->number;
        slot->begun = block->begun;
        __atomic_store_n(&slot->address, block->address, __ATOMIC_RELEASE);
        return true;
    }
    return false;
}

static bool take_out(const void *memory, struct block *block)
{
    uint64_t address = (uintptr_t)memory;
    for (uint32_t k = 0; k < 2 * WINDOW; k++) {
        struct block *slot = slot_of(address, k);
        if (__atomic_load_n(&slot->address, __ATOMIC_ACQUIRE) != address)
            continue;
        *block = *slot;
        __atomic_store_n(&slot->address, 0, __ATOMIC_RELEASE);
        return true;
    }
    return false;
}

/* --- counting --- */

/* Of the calling thread, where it counts just now; else NULL. */
static inline struct writer *counting(void)
{
    struct writer *w = this_writer;
    return memory_on && writes_to(w, recording) && !w->allocating ? w : NULL;
}

static void allocated(struct writer *w, void *memory, size_t size)
{
    struct block block = {(uintptr_t)memory, w, size, w->number, w->begun};
    w->counted.blocks++;
    w->counted.bytes += size;
    if (!put_in(&block)) {
        __atomic_fetch_add(&untracked, 1, __ATOMIC_RELAXED);
        return;
    }
    w->counted.level += size;
    if (w->counted.level > w->counted.peak)
        w->counted.peak = w->counted.level;
}

/* The innermost call that was open when the thread had begun so many, and is open now; NULL = none. */
static struct mark *open_since(struct writer *w, uint32_t begun)
{
    uint32_t low = 0, high = w->open < MOST_MARKS ? w->open : MOST_MARKS;
    if (!w->marks)
        return NULL;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (w->marks[middle].begun <= begun)
            low = middle + 1;
        else
            high = middle;
    }
    return low ? &w->marks[low - 1] : NULL;
}

/* Another thread's block is counted with that thread: under the GIL alone, without which that may be counting just now. */
static void freed(const struct block *block, bool has_gil)
{
    struct writer *owner = block->owner;
    if (owner->number != block->number || (owner != this_writer && !has_gil))
        return;
    owner->counted.level -= block->size;
    struct mark *mark = open_since(owner, block->begun);
    if (mark) {
        mark->freed_blocks++;
        mark->freed_bytes += block->size;
    }
}

static inline __attribute__((always_inline)) void *on_malloc(int domain, void *context, size_t count, size_t size, bool zero)
{
    struct writer *w = counting();
    if (LIKELY(w != NULL))
        w->allocating = true;
    else
        reached[domain] = true;
    void *memory = zero ? under[domain].calloc(context, count, size) : under[domain].malloc(context, size);
    if (LIKELY(w != NULL)) {
        w->allocating = false;
        if (memory)
            allocated(w, memory, count * size);
    }
    return memory;
}

static inline __attribute__((always_inline)) void *on_realloc(int domain, void *context, void *old, size_t size)
{
    struct writer *w = counting();
    struct block block;
    bool known = memory_on && old && !(this_writer->allocating) && take_out(old, &block);
    if (LIKELY(w != NULL))
        w->allocating = true;
    void *memory = under[domain].realloc(context, old, size);
    if (LIKELY(w != NULL))
        w->allocating = false;
    if (memory && known)
        freed(&block, domain != RAW);
    else if (known)
        put_in(&block); /* the old one is still there */
    if (memory && w)
        allocated(w, memory, size);
    return memory;
}

static inline __attribute__((always_inline)) void on_free(int domain, void *context, void *memory)
{
    struct block block;
    bool nested = this_writer->allocating;
    if (memory_on && memory && !nested && take_out(memory, &block))
        freed(&block, domain != RAW);
    under[domain].free(context, memory);
}

#define FUNCTIONS_OF(domain) \
    static void *malloc_##domain(void *context, size_t size) \
    { \
        return on_malloc(domain, context, 1, size, false); \
    } \
    static void *calloc_##domain(void *context, size_t count, size_t size) \
    { \
        return on_malloc(domain, context, count, size, true); \
    } \
    static void *realloc_##domain(void *context, void *old, size_t size) \
    { \
        return on_realloc(domain, context, old, size); \
    } \
    static void free_##domain(void *context, void *memory) \
    { \
        on_free(domain, context, memory); \
    }
FUNCTIONS_OF(0)
FUNCTIONS_OF(1)
FUNCTIONS_OF(2)
#define OURS(domain) {NULL, malloc_##domain, calloc_##domain, realloc_##domain, free_##domain}
static const struct allocator ours[DOMAINS] = {OURS(0), OURS(1), OURS(2)};

/* --- events --- */

static void write_counted(struct writer *w)
{
    struct mark *mark = w->marks && w->open && w->open <= MOST_MARKS ? &w->marks[w->open - 1] : NULL;
    struct counted now = w->counted;
    bool freed = mark && mark->freed_blocks;
    w->counted = (struct counted){0};
    if (!(now.blocks || now.level || freed) || !(w->chunk || w->before))
        return;
    struct allocations *record = room_for_allocations(w);
    if (!record)
        return;
    *record = (struct allocations){
        .event = w->before + (w->chunk ? w->chunk->count : 0) - 1,
        .blocks = now.blocks,
        .bytes = now.bytes,
        .level = now.level,
        .peak = now.peak,
        .freed_blocks = freed ? mark->freed_blocks : 0,
        .freed_bytes = freed ? mark->freed_bytes : 0,
    };
    if (freed)
        mark->freed_blocks = mark->freed_bytes = 0;
    allocations_written(w);
}

void memory_before_event(struct writer *w, uint64_t kind)
{
    bool begins = kind == CALL_ENTRY || kind == CALL_RESUME || kind == CALL_OPEN;
    write_counted(w);
    if (!begins) {
        w->open -= w->open > 0;
        return;
    }
    w->begun++;
    if (!w->marks) {
        void *marks = mmap(NULL, MOST_MARKS * sizeof *w->marks, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        w->marks = marks == MAP_FAILED ? NULL : marks;
    }
    if (w->marks && w->open < MOST_MARKS)
        w->marks[w->open] = (struct mark){.begun = w->begun};
    w->open++;
}

void memory_flush(void)
{
    if (!memory_on)
        return;
    writers_each(write_counted);
    arena->untracked = untracked;
}

/* --- beginning and end --- */

static bool is_ours(const struct allocator *allocator, int domain)
{
    const struct allocator *own = &ours[domain];
    return allocator->malloc == own->malloc && allocator->calloc == own->calloc && allocator->realloc == own->realloc && allocator->free == own->free;
}

/* Whether a call of this allocator comes to ours. */
static bool leads_to_ours(const struct allocator *allocator, int domain)
{
    reached[domain] = false;
    void *memory = allocator->malloc(allocator->context, 1);
    if (memory)
        allocator->free(allocator->context, memory);
    return reached[domain];
}

static void put_above(int domain)
{
    struct allocator now, own = ours[domain];
    py.PyMem_GetAllocator(domain, &now);
    if (is_ours(&now, domain) || (buried[domain] && leads_to_ours(&now, domain)))
        return;
    buried[domain] = false;
    under[domain] = now;
    own.context = now.context;
    py.PyMem_SetAllocator(domain, &own);
}

void memory_start(void)
{
    if (!options.memory || !py.PyMem_GetAllocator || !py.PyMem_SetAllocator)
        return;
    if (!table) {
        void *memory = mmap(NULL, SLOTS * sizeof *table, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED)
            return;
        table = memory;
        madvise(table, SLOTS * sizeof *table, MADV_DONTDUMP);
        madvise(table, SLOTS * sizeof *table, MADV_NOHUGEPAGE);
    }
    for (slots = SLOTS; options.memory_bytes && slots > SLOTS_OF_PAGE && slots * sizeof *table > options.memory_bytes; slots /= 2)
        ;
    madvise(table, SLOTS * sizeof *table, MADV_DONTNEED); /* they are all 0 again, also for one that is looking just now */
    untracked = 0;
    for (int domain = 0; domain < DOMAINS; domain++)
        put_above(domain);
    memory_on = true;
}

void memory_stop(void)
{
    if (!memory_on)
        return;
    memory_on = false;
    for (int domain = 0; domain < DOMAINS; domain++) {
        struct allocator now;
        py.PyMem_GetAllocator(domain, &now);
        if (is_ours(&now, domain))
            py.PyMem_SetAllocator(domain, &under[domain]);
        else
            buried[domain] = true;
    }
    madvise(table, SLOTS * sizeof *table, MADV_DONTNEED); /* whoever is looking just now finds nothing */
}
