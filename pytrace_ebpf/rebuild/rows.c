/* Calls as columns: a row has its slot from the call's entry on, so that rows come out in preorder. */
#include <stdlib.h>
#include <string.h>

#include "engine.h"

#define FEW 4096

static bool grow(struct rows *rows)
{
    size_t capacity = rows->capacity ? rows->capacity * 2 : FEW;
    uint8_t *filled = realloc(rows->filled, capacity);
    if (!filled)
        return false;
    rows->filled = filled;
#define X(type, name) \
    type *name = realloc(rows->name, capacity * sizeof *name); \
    if (!name) \
        return false; \
    rows->name = name;
    ROW(X)
#undef X
    rows->capacity = capacity;
    return true;
}

/* A slot for a call that ends later. */
bool rows_slot(struct rows *rows, size_t *slot)
{
    if (rows->count == rows->capacity && !grow(rows))
        return false;
    *slot = rows->count++;
    rows->filled[*slot] = 0;
    return true;
}

void rows_put(struct rows *rows, size_t slot, const struct row *row)
{
#define X(type, name) rows->name[slot] = row->name;
    ROW(X)
#undef X
    rows->filled[slot] = 1;
}

void rows_get(const struct rows *rows, size_t slot, struct row *row)
{
#define X(type, name) row->name = rows->name[slot];
    ROW(X)
#undef X
}

static size_t run(const struct rows *rows, size_t at, uint8_t filled)
{
    size_t from = at;
    while (at < rows->count && rows->filled[at] == filled)
        at++;
    return at - from;
}

/* Leave out the slots of calls that have not ended. */
void rows_pack(struct rows *rows)
{
    size_t to = run(rows, 0, 1), from = to;
    while (from < rows->count) {
        from += run(rows, from, 0);
        size_t length = run(rows, from, 1);
#define X(type, name) memmove(rows->name + to, rows->name + from, length * sizeof *rows->name);
        if (length) {
            ROW(X)
        }
#undef X
        to += length;
        from += length;
    }
    rows->count = to;
}

/* Rows of these functions' calls alone: ROWS by func_id of as many as rebuild_functions() was given; with `suspended` also of calls that yielded
 * or were resumed, but for those of NO_ROWS. Others cost what sums do. Their next_sibling_id holds, their order is not that of all. Before anything is taken. */
OFFERED bool rebuild_want_rows_of(struct engine *engine, const uint8_t *function, bool suspended)
{
    if (!engine->wants_rows || !engine->layer || engine->row_of)
        return failed(engine, STRANGE_STATE);
    engine->row_of = calloc((size_t)engine->functions + 1, sizeof *engine->row_of);
    if (!engine->row_of)
        return failed(engine, NO_MEMORY);
    memcpy(engine->row_of, function, engine->functions);
    engine->rows_of_suspended = suspended;
    return true;
}

void rows_free(struct rows *rows)
{
    free(rows->filled);
#define X(type, name) free(rows->name);
    ROW(X)
#undef X
}
