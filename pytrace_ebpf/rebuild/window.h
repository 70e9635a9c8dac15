/* A window of the recording: the part of each call that lies within it. */
#ifndef PYTRACE_WINDOW_H
#define PYTRACE_WINDOW_H

#include "common.h"

struct engine;
struct thread;

void window_open(const struct engine *engine, struct thread *thread);
void window_stamp(const struct engine *engine, struct thread *thread, int64_t ts);
bool window_enter(struct engine *engine, struct thread *thread, int64_t ns);
bool window_cross(struct engine *engine, struct thread *thread, int64_t ns, bool enters);
bool window_end(struct engine *engine, struct thread *thread, int64_t ns);

#endif
