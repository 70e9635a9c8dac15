/* Writes what the functions of client libraries were asked for, and the trace contexts that requests came with. All under the GIL. */
#ifndef PYTRACE_CLIENTS_H
#define PYTRACE_CLIENTS_H

#include "arena.h"
#include "functions.h"

/* Of a frame of such a function that was entered just now: it belongs to the writer's last event. */
void write_statement(struct writer *writer, const struct function_entry *function, const void *frame);

#endif
