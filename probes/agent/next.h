/* Functions of other libraries that this one's stand before. */
#ifndef PYTRACE_NEXT_H
#define PYTRACE_NEXT_H

/* The next one of that name, in the order in which the program's libraries are searched; NULL = none. Takes the loader's lock. */
void *next_of(const char *name);

#endif
