/* Objects as they lie in memory, read in the traced thread, which stands at its probe and holds the GIL.
 *
 * All may be forged: whatever is read is the thread's own memory, every loop has a bound, and what cannot be read is VALUE_UNREAD.
 */
#ifndef PYTRACE_USDT_OBJECTS_H
#define PYTRACE_USDT_OBJECTS_H

#include "usdt_functions.h"

/* Of agent/agent.h: object_event.kind, what and status. */
enum { VALUE_OTHER, VALUE_NONE, VALUE_BOOL, VALUE_INT, VALUE_NEGATIVE, VALUE_FLOAT, VALUE_TEXT, VALUE_BYTES, VALUE_SIZED, VALUE_ARRAY, VALUE_TENSOR };
enum { VALUE_ARGUMENT, VALUE_RETURN, VALUE_YIELD, VALUE_RAISED };
enum { VALUE_COMPLETE, VALUE_CUT, VALUE_REDACTED, VALUE_UNREAD };
#define VALUE_DATA 160

#define MOST_BASES 8

#define NAME_OF_TYPE 24
#define TYPE_FLAGS 168
#define TYPE_BASE 256
#define HEAP_TYPE (1u << 9)
#define IS_INT (1u << 24)
#define IS_LIST (1u << 25)
#define IS_TUPLE (1u << 26)
#define IS_BYTES (1u << 27)
#define IS_TEXT (1u << 28)
#define IS_DICT (1u << 29)
#define IS_EXCEPTION (1u << 30)
#define QUALNAME_BEFORE_KEYS 8
#define OBJECT_TYPE_POINTER 8
#define SIZE 16
#define SET_SIZE 24
#define FLOAT_VALUE 16
#define FIRST_DIGIT 24
#define BYTES_START 32
#define EXCEPTION_ARGUMENTS 24
#define ARRAY_DIMENSIONS 24
#define ARRAY_SIZES 32
#define ARRAY_DESCRIPTION 56
#define DESCRIPTION_NUMBER 28
#define MOST_ARRAY_DIMENSIONS 64

/* Reads `size` bytes, which the verifier is to know for at most `most`; 0 = done. */
#define READ(to, size, most, from) ({                             \
    __u64 bytes = (size);                                         \
    asm volatile("" : "+r"(bytes));                               \
    bytes > (most) ? -1 : bpf_probe_read_user(to, bytes, (void *)(from)); \
})

struct characters {
    __u64 data, length;
    __u32 width; /* 0 = ASCII */
};

/* 0 = that is a str. */
static __always_inline int characters_of(__u64 text, struct characters *of)
{
    const struct frame_layout *layout = FRAMES;
    __u32 state = 0;

    if (bpf_probe_read_user(&state, sizeof(state), (void *)(text + SETTINGS->objects.string_state)))
        return -1;
    int is_ascii = state >> 6 & 1;

    of->length = TAKE(__u64, text + SETTINGS->objects.string_length);
    of->width = is_ascii ? 0 : state >> 2 & 7;
    if (!(state >> 5 & 1)) /* not in one piece */
        of->data = TAKE(__u64, text + SETTINGS->objects.string_data_wide);
    else
        of->data = text + (is_ascii ? layout->string_data : SETTINGS->objects.string_data_wide);
    return of->width > 4 || of->width == 3 || !of->data;
}

static __always_inline __u32 bytes_of(const struct characters *of, __u32 most)
{
    __u64 width = of->width ? of->width : 1, count = of->length < most ? of->length : most, bytes = count * width;

    return bytes < most ? bytes : most;
}

/* 0 = done. */
static __always_inline int take_text(struct object_event *to, __u64 text)
{
    struct characters of;

    if (characters_of(text, &of))
        return -1;
    to->kind = VALUE_TEXT;
    to->width = of.width;
    to->length = of.length;
    return READ(to->data, bytes_of(&of, OBJECT_DATA), OBJECT_DATA, of.data);
}

static __always_inline void take_type(struct object_event *to, __u64 type, __u32 flags)
{
    struct characters of;

    to->type_width = 0;
    to->type_length = 0;
    if (!(flags & HEAP_TYPE)) {
        int size = bpf_probe_read_user_str(to->type, OBJECT_TYPE, (void *)TAKE(__u64, type + NAME_OF_TYPE));

        to->type_length = size > 0 ? size - 1 : 0;
    } else if (!characters_of(TAKE(__u64, type + SETTINGS->objects.type_cached_keys - QUALNAME_BEFORE_KEYS), &of) &&
               !READ(to->type, bytes_of(&of, OBJECT_TYPE), OBJECT_TYPE, of.data)) {
        to->type_width = of.width;
        to->type_length = of.length < OBJECT_TYPE ? of.length : OBJECT_TYPE;
    }
}

static __always_inline int take_int(struct object_event *to, __u64 object)
{
    __s64 size = 0;
    __u64 count;

    if (bpf_probe_read_user(&size, sizeof(size), (void *)(object + SIZE)))
        return -1;
    if (SETTINGS->objects.is_3_12) { /* lv_tag: in the low bits the sign */
        to->kind = (size & 3) == 2 ? VALUE_NEGATIVE : VALUE_INT;
        count = (size & 3) == 1 ? 0 : (__u64)size >> 3;
    } else {
        to->kind = size < 0 ? VALUE_NEGATIVE : VALUE_INT;
        count = size < 0 ? -size : size;
    }
    to->length = count;
    if (count <= VALUE_DATA / 4)
        return READ(to->data, 4 * count, VALUE_DATA, object + FIRST_DIGIT);
    return bpf_probe_read_user(to->data, 4, (void *)(object + FIRST_DIGIT + 4 * (count - 1)));
}

static __always_inline int take_bytes(struct object_event *to, __u64 object)
{
    __u64 length = 0;

    if (bpf_probe_read_user(&length, sizeof(length), (void *)(object + SIZE)))
        return -1;
    to->kind = VALUE_BYTES;
    to->length = length;
    return READ(to->data, length < VALUE_DATA ? length : VALUE_DATA, VALUE_DATA, object + BYTES_START);
}

static __always_inline int take_size(struct object_event *to, __u64 object, __u32 where)
{
    to->kind = VALUE_SIZED;
    return bpf_probe_read_user(&to->length, sizeof(to->length), (void *)(object + where));
}

static __always_inline int take_array(struct object_event *to, __u64 object)
{
    __u32 dimensions = MOST_ARRAY_DIMENSIONS + 1, number = 255;
    __u64 description = TAKE(__u64, object + ARRAY_DESCRIPTION);

    bpf_probe_read_user(&dimensions, sizeof(dimensions), (void *)(object + ARRAY_DIMENSIONS));
    if (dimensions > MOST_ARRAY_DIMENSIONS || bpf_probe_read_user(&number, sizeof(number), (void *)(description + DESCRIPTION_NUMBER)))
        return -1;
    to->kind = VALUE_ARRAY;
    to->length = dimensions;
    to->dtype = number < 255 ? number : 255;
    return READ(to->data, dimensions < VALUE_DATA / 8 ? 8 * dimensions : VALUE_DATA, VALUE_DATA, TAKE(__u64, object + ARRAY_SIZES));
}

/* The first item of a tuple where that is a str; 0 = it is not. */
static __always_inline __u64 first_text(__u64 tuple)
{
    __u64 first;

    if (!tuple || (__s64)TAKE(__u64, tuple + SIZE) <= 0)
        return 0;
    first = TAKE(__u64, tuple + SETTINGS->objects.tuple_items);
    return TAKE(__u32, TAKE(__u64, first + OBJECT_TYPE_POINTER) + TYPE_FLAGS) & IS_TEXT ? first : 0;
}

/* The types of NumPy and PyTorch are recognised by their names: their libraries are nowhere known. */
static __always_inline int kind_of_library(__u64 type)
{
    union {
        char text[24];
        __u64 words[3];
    } array = {.text = "numpy.ndarray"}, number = {.text = "numpy.float64"}, tensor = {.text = "torch._C.TensorBase"}, older = {.text = "torch._C._TensorBase"}, name = {};

    bpf_probe_read_user_str(name.text, sizeof(name.text), (void *)TAKE(__u64, type + NAME_OF_TYPE));
#define IS(one) !((name.words[0] ^ one.words[0]) | (name.words[1] ^ one.words[1]) | (name.words[2] ^ one.words[2]))
    return IS(array) ? VALUE_ARRAY : IS(number) ? VALUE_FLOAT : IS(tensor) | IS(older) ? VALUE_TENSOR : VALUE_OTHER;
#undef IS
}

/* What lies at the two places where PyTorch may keep the pointer to a tensor: rebuild/objects.c sees which of them is one. */
static __always_inline int take_tensor(struct object_event *to, __u64 object)
{
    int i;

    to->kind = VALUE_TENSOR;
    to->length = 0;
#pragma clang loop unroll(full)
    for (i = 0; i < TENSOR_PLACES; i++) {
        __u64 tensor = TAKE(__u64, object + TENSOR_PLACE(i)) + TENSOR_SIZES, count = TAKE(__u64, tensor);
        __u8 *data = to->data + i * TENSOR_DATA;

        if (bpf_probe_read_user(data, TENSOR_HEAD, (void *)tensor))
            __builtin_memset(data, 0, TENSOR_HEAD);
        /* More than these have their sizes elsewhere. */
        count = count > TENSOR_INLINE && count <= VALUE_DATA / 8 ? 8 * count : 0;
        READ(data + TENSOR_HEAD, count, VALUE_DATA, TAKE(__u64, tensor + 8));
    }
    return 0;
}

/* What objects of a type are, and at `size` where theirs lies. */
static __always_inline int kind_of_type(__u64 type, __u32 *size)
{
    const struct object_layout *known = &SETTINGS->objects;
    __u64 from = type - TAKE(__u64, type + OBJECT_TYPE_POINTER);

    *size = from == known->bytearray_type ? SIZE : SET_SIZE;
    if (from == known->float_type)
        return VALUE_FLOAT;
    if (from == known->set_type || from == known->frozenset_type || from == known->bytearray_type)
        return VALUE_SIZED;
    return TAKE(__u32, type + TYPE_FLAGS) & HEAP_TYPE ? VALUE_OTHER : kind_of_library(type);
}

/* By the types that its type is derived from, whose layout is its own. They are recognised by their distance from `type`, their own type. */
static __always_inline int take_by_bases(struct object_event *to, __u64 object, __u64 type)
{
    int i, kind = VALUE_OTHER;
    __u32 size = 0;

    /* What is found is read behind the loop, so that the verifier sees it read once. */
#pragma clang loop unroll(disable)
    for (i = 0; i < MOST_BASES && type; i++) {
        kind = kind_of_type(type, &size);
        if (kind != VALUE_OTHER)
            break;
        type = TAKE(__u64, type + TYPE_BASE);
    }
    asm volatile("" : "+r"(kind), "+r"(size));
    if (kind == VALUE_FLOAT) {
        to->kind = VALUE_FLOAT;
        return bpf_probe_read_user(to->data, 8, (void *)(object + FLOAT_VALUE));
    }
    if (kind == VALUE_SIZED)
        return take_size(to, object, size);
    if (kind == VALUE_ARRAY)
        return take_array(to, object);
    return kind == VALUE_TENSOR ? take_tensor(to, object) : 0;
}

static __always_inline int take_plain(struct object_event *to, __u64 object, __u64 type, __u32 flags)
{
    const struct object_layout *known = &SETTINGS->objects;
    __u64 from = object - TAKE(__u64, type + OBJECT_TYPE_POINTER);

    if (from == known->none) {
        to->kind = VALUE_NONE;
        return 0;
    }
    if (from == known->true_object || from == known->false_object) {
        to->kind = VALUE_BOOL;
        to->length = from == known->true_object;
        return 0;
    }
    if (flags & IS_INT)
        return take_int(to, object);
    if (flags & IS_BYTES)
        return take_bytes(to, object);
    if (flags & (IS_LIST | IS_TUPLE | IS_DICT))
        return take_size(to, object, SIZE);
    if (flags & (IS_TEXT | IS_EXCEPTION)) {
        /* Of an exception its first argument, whatever its __str__ would make of it. */
        __u64 text = flags & IS_TEXT ? object : first_text(TAKE(__u64, object + EXCEPTION_ARGUMENTS));

        return text ? take_text(to, text) : 0;
    }
    return take_by_bases(to, object, type);
}

/* Says what an object is; 0 = there is none that could be seen. */
static __always_inline void take_object(struct object_event *to, __u64 object, int redact)
{
    __u64 type = object ? TAKE(__u64, object + OBJECT_TYPE_POINTER) : 0;
    __u32 flags = 0;

    to->length = 0;
    to->kind = VALUE_OTHER;
    to->status = redact ? VALUE_REDACTED : VALUE_COMPLETE;
    to->dtype = 0;
    to->width = 0;
    to->type_length = 0;
    to->type_width = 0;
    if (!type || bpf_probe_read_user(&flags, sizeof(flags), (void *)(type + TYPE_FLAGS))) {
        to->status = VALUE_UNREAD;
        return;
    }
    take_type(to, type, flags);
    if (!redact && take_plain(to, object, type, flags))
        to->status = VALUE_UNREAD;
}

#endif
