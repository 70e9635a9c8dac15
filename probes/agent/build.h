/* How the library is built: it loads on every glibc from 2.17 on, and into programs that are not Python. */
#ifndef PYTRACE_BUILD_H
#define PYTRACE_BUILD_H

#include "../processor.h"

#define EXPORT __attribute__((visibility("default")))
#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

/* These moved from libdl and libpthread to libc in glibc 2.34. The old versions are there before and after; weak,
 * because a program that is not Python need not have loaded those libraries. */
#define WEAK(name) TEXT_OF(weak name)
#define TEXT_OF(words) #words
#define FROM_OLD_GLIBC(name) \
    _Pragma(WEAK(name)) __asm__(".symver " #name "," #name "@" OLDEST_GLIBC);
FROM_OLD_GLIBC(dlopen)
FROM_OLD_GLIBC(dlsym)
FROM_OLD_GLIBC(dlerror)
FROM_OLD_GLIBC(dladdr)
FROM_OLD_GLIBC(pthread_create)
FROM_OLD_GLIBC(pthread_detach)
FROM_OLD_GLIBC(pthread_key_create)
FROM_OLD_GLIBC(pthread_setspecific)

/* What pthread_atfork() is in glibc, and no other C library has. Weak, because a program with musl that is started with this library preloaded
 * would end where one of its names cannot be found. */
extern int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void *) __attribute__((weak));
extern void *__dso_handle;

#endif
