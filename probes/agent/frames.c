/* Reads the frames that are open on the threads' stacks, without making frame objects of them. */
#include "frames.h"

#include <sys/mman.h>

#include "calls.h"
#include "functions.h"
#include "pages.h"
#include "whose.h"

bool frames_known = true;
static bool verified;

void *innermost_frame(void *thread_state)
{
    void *frame = frames_known ? pointer_at(thread_state, at->thread_frame) : NULL;
    if (frame && at->cframe_frame >= 0)
        frame = pointer_at(frame, at->cframe_frame);
    return frame;
}

/* The interpreter's own code that cleans up after __init__ is no call of the program. */
static bool is_shim(PyObject *code)
{
    if (py.version < 0x030c0000)
        return false;
    PyObject *file = py.PyObject_GetAttrString(code, "co_filename");
    const char *text = file ? py.PyUnicode_AsUTF8AndSize(file, NULL) : NULL;
    bool shim = text && !__builtin_strcmp(text, "__init__");
    if (file)
        py.Py_DecRef(file);
    py.PyErr_Clear();
    return shim;
}

void write_open_frames(struct writer *w, void *innermost)
{
    size_t count = 0, size;
    if (UNLIKELY(stacks_switch) && !owner_here)
        stacks_forget_of(w);
    for (void *frame = innermost; frame; frame = frame_behind(frame))
        count += code_of_frame(frame) != NULL;
    if (!count)
        return;
    void **frames = pages(size = count * sizeof *frames);
    if (!frames)
        return;
    size_t i = count;
    for (void *frame = innermost; frame; frame = frame_behind(frame))
        if (code_of_frame(frame))
            frames[--i] = frame;
    for (; i < count; i++) {
        PyObject *code = code_of_frame(frames[i]);
        struct function_entry *function = is_shim(code) ? NULL : function_of(code);
        if (!function && (function = function_importing(code)) && function->flags & UNWANTED)
            function = NULL;
        if (!function)
            continue;
        bool deep = too_deep(w, true);
        uint32_t line = line_called_from(frames[i]);
        if (UNLIKELY(stacks_switch) && !owner_here)
            stacks_open(w, frames[i], function->id, line, !deep);
        if (deep)
            continue;
        write_event(w, function->id, frame_number(frames[i]), line, CALL_OPEN);
        w->open_frame = frame_number(frames[i]);
        if (function->lined)
            write_place(w, function, frames[i]);
    }
    munmap(frames, size);
}

void keep_open_frames_of(void *state)
{
    /* Its id is asked for only where it has frames: up to 3.10 it lies in the thread's own memory, which must still be. */
    void *frame = innermost_frame(state);
    struct writer *w = frame ? writer_new(thread_id_of(state), thread_number_of(state)) : NULL;
    if (w)
        write_open_frames(w, frame);
}

/* This thread's may have been in a loop without a call for long. */
void keep_open_frames(bool own)
{
    void *self = py._PyThreadState_UncheckedGet();
    void *state = py.PyInterpreterState_ThreadHead(py.PyInterpreterState_Main());
    for (; state; state = py.PyThreadState_Next(state))
        if (own || state != self)
            keep_open_frames_of(state);
}

/* 1: the offsets lead to the frame that the interpreter names for a thread, 0: they do not, -1: it has none. */
static int right_for(void *thread_state, PyObject *object)
{
    if (!object)
        return -1;
    void *frame = at->object_frame < 0 ? object : pointer_at(object, at->object_frame);
    PyObject *code = py.PyObject_GetAttrString(object, "f_code");
    bool right = frame == innermost_frame(thread_state) && code && code == code_of_frame(frame);
    if (code)
        py.Py_DecRef(code);
    py.PyErr_Clear();
    return right;
}

void frames_verify(void)
{
    if (verified)
        return;
    void *self = py._PyThreadState_UncheckedGet();
    int right = right_for(self, py.PyEval_GetFrame());
    void *state = py.PyInterpreterState_ThreadHead(py.PyInterpreterState_Main());
    for (; right < 0 && state && py.PyThreadState_GetFrame; state = py.PyThreadState_Next(state)) {
        PyObject *object = state == self ? NULL : py.PyThreadState_GetFrame(state);
        right = right_for(state, object);
        if (object)
            py.Py_DecRef(object);
    }
    if (right >= 0) {
        verified = true;
        frames_known = right;
    }
}
