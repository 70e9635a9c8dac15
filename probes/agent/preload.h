/* The library's entry in the environment, where the program was started with it. */
#ifndef PYTRACE_PRELOAD_H
#define PYTRACE_PRELOAD_H

/* As which file this library was loaded. */
void preload_is(const char *path);
/* The programs that this one executes from now on come without it. */
void preload_leave(void);

#endif
