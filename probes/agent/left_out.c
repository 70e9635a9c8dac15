/* Leaves functions out while it records, and takes them in again, so that what is written stays a stack of calls.
 *
 * Of a thread's frames the inner ones are those within the innermost call that is recorded and goes on to be. When a function is
 * left out, its inner calls end in the trace there and then: what they do from now on is their caller's own time. When it is back,
 * its inner calls begin there and then. Its other calls, within which others are recorded, stay what they are to their end: such
 * an odd one is remembered by its frame, and until it ends the function's ends are looked at. */
#include "left_out.h"

#include <string.h>
#include <sys/mman.h>

#include "c_calls.h"
#include "calls.h"
#include "cpython.h"
#include "frames.h"
#include "greenlets.h"
#include "layers.h"
#include "pages.h"

#define SETS 512
#define WAYS 8 /* of more frames in one set the last ones are forgotten: then their ends are mended when the trace is read */

static struct {
    const void *frame;
    struct function_entry *function;
} odd[SETS][WAYS];
static bool some_out, nothing_wanted;

static size_t set_of(const void *frame)
{
    return (uintptr_t)frame * 0x9e3779b97f4a7c15ull >> 55;
}

/* Whether that call was an odd one, which it is no more. */
static bool take_odd(struct function_entry *function, const void *frame)
{
    size_t set = set_of(frame);
    for (int way = 0; frame && function->odd && way < WAYS; way++)
        if (odd[set][way].frame == frame && odd[set][way].function == function) {
            odd[set][way].frame = NULL;
            function->odd--;
            return true;
        }
    return false;
}

static void add_odd(struct function_entry *function, const void *frame)
{
    size_t set = set_of(frame);
    for (int way = 0; way < WAYS; way++)
        if (!odd[set][way].frame) {
            odd[set][way].frame = frame;
            odd[set][way].function = function;
            function->odd++;
            return;
        }
}

struct function_entry *left_out_written(PyObject *code, const void *frame, bool entering)
{
    struct function_entry *function = function_reported(code);
    if (!function || !(function->flags & (LEFT_OUT | BACK)))
        return NULL;
    bool out = function->flags & LEFT_OUT, written = entering ? !out : take_odd(function, frame) == out;
    if (!out && !function->odd)
        function->flags &= ~BACK;
    return written ? function : NULL;
}

bool left_out_waits(PyObject *code)
{
    struct function_entry *function = function_reported(code);
    return function && (function->odd || !(function->flags & (LEFT_OUT | UNWANTED)));
}

/* One frame of a thread. */
struct open {
    void *frame;
    struct function_entry *function;
    bool written; /* its beginning is */
};

static bool goes_on(const struct open *open)
{
    return open->written && !(open->function->flags & LEFT_OUT);
}

static void settle(struct writer *w, struct open *open, size_t count)
{
    size_t inner = 0;
    while (!w->collecting && inner < count && !goes_on(&open[inner]))
        inner++;
    for (size_t i = 0; i < inner; i++)
        if (open[i].written)
            leave(w, open[i].function, open[i].frame, 0, CALL_RETURN, NULL);
    for (size_t i = inner; i-- > 0;)
        if (!open[i].written && open[i].function->flags & (RETURNING | BACK)) {
            enter(w, open[i].function, open[i].frame, CALL_OPEN);
            writer_awaits(w, frame_number(open[i].frame));
        }
    for (size_t i = inner; i < count; i++)
        if (open[i].written == !!(open[i].function->flags & LEFT_OUT) && open[i].function->flags & (LEFT_OUT | RETURNING | BACK))
            add_odd(open[i].function, open[i].frame);
}

/* Is the frame there already, but not its event, since the interpreter let another thread go first? Up to 3.10 that is in front of all instructions,
 * and the thread's last event shows it: the end of a frame at the same address, or the beginning of the caller. From 3.11 on it is in RESUME, whose
 * eval breaker comes before its event, but for 3.12 (seen by a signal's handler that runs there, 3.11 to 3.15). Where a tool beside the agent takes
 * its time over the event, that may be before or after the agent's: then the thread's last event is the beginning of this frame. */
static bool on_its_way(const struct writer *w, void *frame, bool innermost)
{
    uint64_t what = w->chunk->count ? w->next[-1].what : 0, kind = event_kind(what);
    bool began = what && (kind == CALL_ENTRY || kind == CALL_RESUME || kind == CALL_OPEN || kind == CALL_LINE || kind == EVENT_STANDS);
    if (at->resume_opcodes >= 0) {
        uint8_t opcode = *(uint8_t *)pointer_at(frame, at->frame_position);
        return (opcode == (at->resume_opcodes & 255) || opcode == at->resume_opcodes >> 8) && !(began && event_frame(what) == frame_number(frame));
    }
    return innermost && what && !options.max_depth && event_frame(what) == frame_number(began ? frame_behind(frame) : frame);
}

/* The same where events are written to a depth alone, so that the last one may be of a call further out: the depth counts all whose event has come. */
static void settle_innermost(const struct writer *w, const void *innermost, struct open *open, size_t count)
{
    size_t counted = 0;
    for (size_t i = 0; i < count; i++)
        counted += open[i].written && !(open[i].function->flags & UNWANTED);
    if (options.max_depth && at->resume_opcodes < 0 && count && open->frame == innermost && counted > w->depth)
        open->written = false;
}

/* The frames of a thread whose functions were reported, innermost first, and what is known of them. */
static size_t look_at(const struct writer *w, void *innermost, struct open *open)
{
    size_t count = 0;
    for (void *frame = innermost; frame; frame = frame_behind(frame)) {
        PyObject *code = code_of_frame(frame);
        struct function_entry *function = code ? function_reported(code) : NULL;
        if (!function || function->flags == UNWANTED)
            continue;
        bool was_out = function->flags & RETURNING || (function->flags & (LEFT_OUT | LEAVING)) == LEFT_OUT;
        bool comes = on_its_way(w, frame, frame == innermost);
        if (comes && frame != innermost) /* it begins when the signal's handler, or the like, has returned that runs within its first instruction */
            continue;
        if (open)
            open[count] = (struct open){frame, function, take_odd(function, frame) == was_out && !comes};
        count++;
    }
    if (open)
        settle_innermost(w, innermost, open, count);
    return count;
}

/* Nothing is wanted from now on: all of a thread's calls end here. */
static void end_all(struct writer *w, struct open *open, size_t count)
{
    collection_cut(w);
    for (size_t i = 0; i < count; i++) {
        c_call_cut(w, open[i].frame);
        if (open[i].written && !(open[i].function->flags & UNWANTED))
            leave(w, open[i].function, open[i].frame, 0, CALL_RETURN, NULL);
        if (open[i].function->flags & IMPORTS)
            import_cut(w, open[i].frame);
    }
    c_calls_forget(w);
}

static void with_open_calls(void *state, void (*act)(struct writer *, struct open *, size_t))
{
    void *frame = innermost_frame(state);
    struct writer *w = frame ? writer_of(thread_id_of(state)) : NULL;
    size_t count = w ? look_at(w, frame, NULL) : 0, size = count * sizeof(struct open);
    struct open *open = count ? pages(size) : NULL;
    if (!open)
        return;
    act(w, open, look_at(w, frame, open));
    munmap(open, size);
}

/* Everything is wanted again: what is open begins here. */
static void begin_all(void *state)
{
    void *frame = innermost_frame(state);
    struct writer *w = frame ? writer_of(thread_id_of(state)) : NULL;
    if (w) {
        write_open_frames(w, frame);
        writer_awaits(w, w->open_frame);
    } else if (frame) {
        keep_open_frames_of(state);
    }
}

void left_out_begin(const struct source *inherited)
{
    if (inherited && nothing_wanted) {
        inherited->pause(false);
        collections_start();
    }
    if (inherited && some_out && inherited->again)
        inherited->again();
    some_out = nothing_wanted = false;
    memset(odd, 0, sizeof odd);
}

bool left_out_asked(void)
{
    return __atomic_load_n(&arena->left_out_turn, __ATOMIC_ACQUIRE) != arena->left_out_done;
}

static void pause(const struct source *hooks)
{
    nothing_wanted = true;
    hooks->pause(true);
    void *state = py.PyInterpreterState_ThreadHead(py.PyInterpreterState_Main());
    for (; state; state = py.PyThreadState_Next(state))
        with_open_calls(state, end_all);
    stacks_forget();
    collections_stop();
    memset(odd, 0, sizeof odd);
    functions_settle(true);
}

static void leave_out(const struct source *hooks, uint32_t count)
{
    bool back = functions_leave_out(arena->left_out, count < MOST_LEFT_OUT ? count : MOST_LEFT_OUT);
    bool resumes = nothing_wanted;
    void *state = py.PyInterpreterState_ThreadHead(py.PyInterpreterState_Main());
    some_out = count != 0;
    nothing_wanted = false;
    for (; state && !resumes; state = py.PyThreadState_Next(state))
        with_open_calls(state, settle);
    functions_settle(false);
    greenlets_look();
    for (; state && resumes; state = py.PyThreadState_Next(state))
        begin_all(state);
    if (resumes) {
        collections_start();
        hooks->pause(false);
    }
    if (back && hooks->again)
        hooks->again();
}

void left_out_follow(const struct source *hooks)
{
    uint32_t turn = __atomic_load_n(&arena->left_out_turn, __ATOMIC_ACQUIRE);
    uint32_t count = frames_known ? arena->left_out_count : 0;
    if (count != EVERYTHING)
        leave_out(hooks, count);
    else if (!nothing_wanted)
        pause(hooks);
    __atomic_store_n(&arena->left_out_done, turn, __ATOMIC_RELEASE);
}
