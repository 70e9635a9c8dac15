/* Qualified names up to 3.10, where code objects carry none: those that the compiler put beside them in the code that makes functions of them. */
#ifndef PYTRACE_QUALNAMES_H
#define PYTRACE_QUALNAMES_H

#include <stdint.h>

#include "cpython.h"

/* GIL held. Learns the names of the functions that `code`, which runs, makes, and those below them. */
void qualnames_learn(PyObject *code);
/* GIL held. The qualified name of a code object, whose bare one is `name` and whose other properties have the hash `identity` (qualnames_identity);
 * "" where it is not known. Holds until the next call of these functions. */
const char *qualname_of(PyObject *code, const char *name, uint64_t identity);
uint64_t qualnames_identity(const char *file, const char *name, uint32_t first_line);
/* Code ran that nobody saw: what is at an address need not be what was learned of it. */
void qualnames_forget(void);

#endif
