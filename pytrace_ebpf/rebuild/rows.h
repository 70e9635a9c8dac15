/* Calls as columns. */
#ifndef PYTRACE_ROWS_H
#define PYTRACE_ROWS_H

#include "common.h"

#define OF_CALL(number, name, known) X(int64_t, name##_ns)
#define OF_SELF(number, name, known) X(int64_t, self_##name##_ns)

/* Columns of a row: type and name. What of them is null stands in `known` (enum known), and -1 in the cores. node: its place in the tree, 0 where none is made. */
#define ROW(X) \
    X(int64_t, call_id) X(int64_t, parent_id) X(int64_t, last_descendant_id) X(int64_t, next_sibling_id) X(int32_t, depth) \
    X(int32_t, layer) X(int32_t, pid) X(int32_t, tid) X(int32_t, func_id) X(int64_t, start_ns) X(int64_t, end_ns) \
    X(int64_t, wall_ns) STATES(OF_CALL) X(int64_t, throttled_ns) X(int64_t, self_wall_ns) STATES(OF_SELF) X(int16_t, first_cpu) X(int16_t, last_cpu) X(int32_t, migrations) X(int32_t, preemptions) \
    X(int32_t, waits) X(int64_t, frame) X(uint8_t, outermost) X(uint8_t, flags) X(int32_t, line) X(int32_t, call_line) X(int32_t, status) \
    X(uint8_t, known) X(int32_t, node)

struct row {
#define X(type, name) type name;
    ROW(X)
#undef X
};

struct rows {
    uint8_t *filled;
#define X(type, name) type *name;
    ROW(X)
#undef X
    size_t count, capacity;
};

bool rows_slot(struct rows *rows, size_t *slot);
void rows_put(struct rows *rows, size_t slot, const struct row *row);
void rows_get(const struct rows *rows, size_t slot, struct row *row);
void rows_pack(struct rows *rows);
void rows_free(struct rows *rows);

#endif
