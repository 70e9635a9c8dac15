/* Which calls are open: the stacks of all threads alone, kept up while a trace is recorded, so that it can begin anew later on. */
#include <stdlib.h>
#include <string.h>

#include "engine.h"

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
    struct places places;
};

/* The thread's, a new one where it has none; NULL: no memory. */
static struct stack *stack_of(struct stacks *stacks, int64_t key)
{
    uint32_t place = places_find(&stacks->places, key);
    if (place != NO_PLACE)
        return &stacks->stack[place];
    if (stacks->count >= NO_PLACE || !room(&stacks->stack, &stacks->capacity, stacks->count + 1, sizeof *stacks->stack) ||
        !places_put(&stacks->places, key, (uint32_t)stacks->count))
        return NULL;
    stacks->stack[stacks->count] = (struct stack){.key = key};
    return &stacks->stack[stacks->count++];
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
    free(stacks->places.slot);
    free(stacks);
}

/* Take a segment's events. False: no memory. */
OFFERED bool rebuild_stacks_take(struct stacks *stacks, const struct events *events)
{
    struct stack *stack = NULL;
    for (size_t row = 0; row < events->rows; row++) {
        int64_t key = key_of(events->pid[row], events->tid[row]);
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
    if (!count)
        return true;
    for (size_t k = 0; k < count; k++) {
        struct stack *stack = stack_of(stacks, key_of(pid[k], tid[k]));
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
    places_clear(&stacks->places);
    bool fine = true;
    for (size_t k = 0; fine && k < left; k++)
        fine = places_put(&stacks->places, stacks->stack[k].key, (uint32_t)k);
    return fine;
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
