/* Which calls are open: the stacks of all threads alone, kept up while a trace is recorded, so that it can begin anew later on. */
#include <stdlib.h>
#include <string.h>

#include "rebuild.h"

/* Of an open call: its function, and the line of its entry. */
struct opened {
    int32_t func, line;
};

/* A thread's; `calls` parallel to open.frame, outermost first. */
struct stack {
    int64_t key; /* pid << 32 | tid */
    struct activations open;
    struct opened *calls;
    size_t capacity;
    bool ended; /* to be forgotten */
};

struct stacks {
    struct stack *stack;
    size_t count, capacity;
    uint32_t *slot; /* by hash of the key: the place plus one */
    size_t slots;
};

static size_t first_slot(const struct stacks *stacks, int64_t key)
{
    return hash((uint64_t)key) >> 20 & (stacks->slots - 1);
}

static bool index_stacks(struct stacks *stacks)
{
    while (stacks->slots < 2 * (stacks->count + 1))
        stacks->slots = stacks->slots ? 2 * stacks->slots : 256;
    uint32_t *slot = calloc(stacks->slots, sizeof *slot);
    if (!slot)
        return false;
    free(stacks->slot);
    stacks->slot = slot;
    for (size_t k = 0; k < stacks->count; k++) {
        size_t at = first_slot(stacks, stacks->stack[k].key);
        while (slot[at])
            at = (at + 1) & (stacks->slots - 1);
        slot[at] = (uint32_t)k + 1;
    }
    return true;
}

/* The thread's, a new one where it has none; NULL: no memory. */
static struct stack *stack_of(struct stacks *stacks, int64_t key)
{
    if (stacks->slots < 2 * (stacks->count + 1) && !index_stacks(stacks))
        return NULL;
    size_t at = first_slot(stacks, key);
    for (; stacks->slot[at]; at = (at + 1) & (stacks->slots - 1))
        if (stacks->stack[stacks->slot[at] - 1].key == key)
            return &stacks->stack[stacks->slot[at] - 1];
    if (stacks->count >= UINT32_MAX - 1 || !room(&stacks->stack, &stacks->capacity, stacks->count + 1, sizeof *stacks->stack))
        return NULL;
    stacks->stack[stacks->count] = (struct stack){.key = key};
    stacks->slot[at] = (uint32_t)++stacks->count;
    return &stacks->stack[stacks->count - 1];
}

static void free_stack(struct stack *stack)
{
    activations_free(&stack->open);
    free(stack->calls);
}

OFFERED struct stacks *rebuild_stacks_open(void)
{
    return calloc(1, sizeof(struct stacks));
}

OFFERED void rebuild_stacks_close(struct stacks *stacks)
{
    for (size_t k = 0; k < stacks->count; k++)
        free_stack(&stacks->stack[k]);
    free(stacks->stack);
    free(stacks->slot);
    free(stacks);
}

/* Take a segment's events. False: no memory. */
OFFERED bool rebuild_stacks_take(struct stacks *stacks, const struct events *events)
{
    struct stack *stack = NULL;
    for (size_t row = 0; row < events->rows; row++) {
        int64_t key = (int64_t)((uint64_t)(uint32_t)events->pid[row] << 32 | (uint32_t)events->tid[row]);
        if ((!stack || stack->key != key) && !(stack = stack_of(stacks, key)))
            return false;
        struct step step;
        if (!activations_take(&stack->open, NULL, events->kind[row], events->frame[row], &step))
            return false;
        if (step.does != ENTERS)
            continue;
        if (!room(&stack->calls, &stack->capacity, stack->open.count, sizeof *stack->calls))
            return false;
        stack->calls[stack->open.count - 1] = (struct opened){events->func[row], events->line[row]};
    }
    return true;
}

/* Forget threads that ended. False: no memory. */
OFFERED bool rebuild_stacks_forget(struct stacks *stacks, const int32_t *pid, const int32_t *tid, size_t count)
{
    for (size_t k = 0; k < count; k++) {
        struct stack *stack = stack_of(stacks, (int64_t)((uint64_t)(uint32_t)pid[k] << 32 | (uint32_t)tid[k]));
        if (!stack)
            return false;
        stack->ended = true;
    }
    size_t left = 0;
    for (size_t k = 0; k < stacks->count; k++)
        if (stacks->stack[k].ended)
            free_stack(&stacks->stack[k]);
        else
            stacks->stack[left++] = stacks->stack[k];
    stacks->count = left;
    return !count || index_stacks(stacks);
}

OFFERED size_t rebuild_stacks_count(const struct stacks *stacks)
{
    size_t calls = 0;
    for (size_t k = 0; k < stacks->count; k++)
        calls += stacks->stack[k].open.count;
    return calls;
}

/* The open calls, thread by thread and outermost first: as many as rebuild_stacks_count() says. */
OFFERED void rebuild_stacks_list(const struct stacks *stacks, int32_t *pid, int32_t *tid, int32_t *func, int32_t *line, int64_t *frame)
{
    size_t row = 0;
    for (size_t k = 0; k < stacks->count; k++) {
        const struct stack *stack = &stacks->stack[k];
        for (uint32_t at = 0; at < stack->open.count; at++, row++) {
            pid[row] = (int32_t)(stack->key >> 32);
            tid[row] = (int32_t)stack->key;
            func[row] = stack->calls[at].func;
            line[row] = stack->calls[at].line;
            frame[row] = stack->open.frame[at];
        }
    }
}
