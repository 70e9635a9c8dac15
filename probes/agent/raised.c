/* Before CPython calls the profile function it takes the exception out of the thread, into three variables of the C function that calls it
 * (call_trace_protected): type, value and traceback stand side by side on the stack, a few words above our frame, or where that function has
 * them in registers, in our frame, which keeps these for it. Compilers differ in where, and in which order; within one interpreter it is always the same place.
 *
 * The place is found once, by an exception that cannot be another: whose traceback begins at this frame, and is referred to by nobody but the
 * interpreter, not even by the exception, as it would be once it was caught. From then on the place is looked at, and what does not lie there
 * as it should is not known. Whatever is read through is first found to be there. */
#include "raised.h"

#include "objects.h"

#define REGISTERS (-8) /* words of the stack, from where our frame begins: what it keeps of the caller's */
#define NEAR CALLERS_NEAR /* the place was 3 to 15 words away on x86-64, and by Debian's 3.9 in registers */
#define TRIES 1000 /* exceptions */
#define TRACEBACK_SIZE 40

static int place, step; /* of the type on the stack, in words, and to the value, and from there to the traceback; a step of 0 = not found */
static int tries;

static bool is_pointer(const void *address, size_t size)
{
    return address && !((uintptr_t)address % sizeof(void *)) && is_there(address, size);
}

static bool is_object(const PyObject *object)
{
    return is_pointer(object, sizeof *object) && object->references > 0 && is_pointer(object->type, TYPE_FLAGS + sizeof(uint64_t));
}

static bool is_traceback_of(PyObject *traceback, const PyObject *frame)
{
    return is_pointer(traceback, TRACEBACK_SIZE) && traceback->type == py.traceback_type && traceback->references > 0 && traceback_frame(traceback) == frame;
}

static bool read_at(struct raised *raised, PyObject *const *type, int towards, const PyObject *frame)
{
    *raised = (struct raised){type[0], type[towards], type[2 * towards]};
    return is_traceback_of(raised->traceback, frame) && is_object(raised->type) && is_exception_type(raised->type) &&
           (!raised->value || (is_object(raised->value) && (!is_exception(raised->value) || raised->value->type == raised->type)));
}

static bool is_new(const struct raised *raised)
{
    return raised->traceback->references == 1 && (!raised->value || exception_traceback(raised->value) != raised->traceback);
}

static void look_for_place(PyObject *const *stack, const PyObject *frame)
{
    struct raised found;
    tries++;
    for (int i = REGISTERS; i < NEAR; i++)
        for (int towards = -1; towards <= 1; towards += 2)
            if (!step && read_at(&found, stack + i, towards, frame) && is_new(&found)) {
                place = i;
                step = towards;
            }
}

bool raised_find(struct raised *raised, PyObject *const *stack, const PyObject *frame)
{
    if (!objects_known)
        return false;
    if (!step && tries < TRIES)
        look_for_place(stack, frame);
    return step && read_at(raised, stack + place, step, frame);
}
