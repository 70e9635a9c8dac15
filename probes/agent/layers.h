/* What is no Python function and yet a call of its own: garbage collections, and imports of modules. All under the GIL. */
#ifndef PYTRACE_LAYERS_H
#define PYTRACE_LAYERS_H

#include "arena.h"
#include "functions.h"

/* From now on collections are reported; until then, and where it fails, they are not. */
void collections_start(void);
void collections_stop(void);
/* importlib's function begins or has ended, by `kind`: the import of a module is around it. */
void import_event(struct writer *writer, struct function_entry *function, const void *frame, uint32_t line, uint64_t kind);

/* Write the end of a thread's collection, and of the import that a frame stands for, whose beginning was written. */
void collection_cut(struct writer *writer);
void import_cut(struct writer *writer, const void *frame);

#endif
