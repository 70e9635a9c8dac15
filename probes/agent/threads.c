/* Finds the calling thread's writer where it is not the one at hand, and reports the frames that a new one finds open. */
#define _GNU_SOURCE
#include "threads.h"

#include <sys/syscall.h>
#include <unistd.h>

#include "calls.h"
#include "cpython.h"
#include "frames.h"
#include "options.h"
#include "whose.h"
#include "world.h"

void (*settle_child)(void), (*look_around)(void);

static struct writer *find_writer(void *frame, bool entering)
{
    if (!owner_here)
        frames_verify();
    struct writer *w = this_writer;
    if (w->session == AWAITING) {
        w->session = recording;
        return entering && frame && w->open_frame == frame_number(frame) ? NULL : w;
    }
    uint32_t tid = syscall(SYS_gettid);
    w = writer_kept(tid, owner_here ? 0 : thread_number_of(py._PyThreadState_UncheckedGet()));
    if (w) {
        writer_take(w);
        /* A thread that waited for the GIL on its way into a frame: the frame was reported as open already. */
        return entering && frame && w->open_frame == frame_number(frame) ? NULL : w;
    }
    if (!(w = writer_new(tid, 0))) {
        arena_dropped();
        return NULL;
    }
    writer_take(w);
    if (frame && frames_known && !owner_here) /* else interpreters.c does it */
        write_open_frames(w, entering ? frame_behind(frame) : frame);
    return w;
}

struct writer *writer_for_event(void *frame, bool entering)
{
    if (UNLIKELY(settle_child != NULL))
        settle_child();
    if (!recording)
        return NULL;
    within_agent(true);
    struct writer *w = find_writer(frame, entering);
    within_agent(false);
    return w;
}

struct writer *writer_once_looked(void *frame, bool entering)
{
    uint64_t session = recording;
    if (session && writes_to(this_writer, session)) {
        this_writer->session = session;
        look_around();
        if (this_writer->session == recording)
            return this_writer;
    }
    return writer_for_event(frame, entering);
}

struct writer *writer_within_frame(void)
{
    if (LIKELY(writes_to(this_writer, recording)))
        return this_writer;
    void *state = py._PyThreadState_UncheckedGet();
    if ((settle_child && options.follow) || (recording && writer_kept(syscall(SYS_gettid), thread_number_of(state))))
        return writer_for_event(innermost_frame(state), false);
    return NULL;
}
