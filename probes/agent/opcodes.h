/* Counts the instructions that functions execute, and the time of each: by function, line, instruction, and what CPython had made of it. */
#ifndef PYTRACE_OPCODES_H
#define PYTRACE_OPCODES_H

#include "arena.h"
#include "functions.h"

/* Has the interpreter report the instructions of a code object, or no more; false where it will not. NULL = it is done otherwise. */
typedef bool (*report_instructions)(PyObject *code, bool on);

/* GIL held. A session begins: nothing is counted yet. In a forked child what is reported is so still. */
void opcodes_begin(report_instructions report);
void opcodes_begin_child(void);
/* GIL held. A session ends: nothing is reported any more. */
void opcodes_stop(void);
/* All code whose instructions are counted reports them no more, or again: to another tool. */
void opcodes_report(bool on);
/* GIL held, while it is recorded: the time until now is that of the instructions at which the threads are. */
void opcodes_flush(void);
/* A frame of the function, whose number of that instruction is `unit` (two bytes each), executes it. `w` NULL: its thread has no writer yet. */
void opcodes_count(struct writer *w, struct function_entry *function, uint32_t unit);
/* A frame of the function is left, `returns`: by its own instruction. Its caller's goes on. */
void opcodes_leave(struct writer *w, const struct function_entry *function, bool returns, void *frame);
/* Where the frame of a function stands. */
uint32_t opcodes_unit_of(const void *frame);

#endif
