/* Objects that BPF read of observed functions (struct object_event of probes/events.h) as values (struct value of probes/agent/agent.h), for
 * the collector.
 *
 * They are of another user's memory, who may have forged them: any number and any bytes may be in them. */
#include <linux/types.h>
#include <string.h>

#include "../../probes/agent/agent.h"
#include "../../probes/events.h"
#include "../../probes/text.h"
#include "engine.h"

#define TYPE_ROOM (4 * OBJECT_TYPE) /* of a type's name; decoding.py has the same */
#define MOST_DIGITS (VALUE_DATA / 4)

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t type_name(const struct object_event *from, uint8_t *to)
{
    size_t size = smaller(from->type_length, OBJECT_TYPE / (from->type_width ? from->type_width : 1)), start = 0;
    if (from->type_width) {
        uint8_t name[OBJECT_TYPE];
        const struct characters of = {from->type, from->type_width, false, size};
        copy_text(&of, name, sizeof name, &size);
        return put_text(to, name, size);
    }
    for (size_t i = 0; i < size; i++) /* of a type that is not made at run time with its module before it */
        start = from->type[i] == '.' ? i + 1 : start;
    return put_text(to, from->type + start, size - start);
}

static void take_text(const struct object_event *from, struct value *to)
{
    size_t width = from->width ? from->width : 1, size;
    const struct characters of = {from->data, width, !from->width, smaller(from->length, OBJECT_DATA / width)};
    bool whole = copy_text(&of, to->data, VALUE_DATA, &size);
    to->status = whole && of.length == (size_t)from->length ? VALUE_COMPLETE : VALUE_CUT;
    to->size = size;
}

static void take_int(const struct object_event *from, struct value *to)
{
    size_t count = from->length, size = smaller(count, MOST_DIGITS);
    uint32_t last = 0;
    if (count)
        memcpy(&last, from->data + (count > MOST_DIGITS ? 0 : 4 * (count - 1)), sizeof last);
    to->length = count ? DIGIT_BITS * (count - 1) + 32 - __builtin_clz(last | 1) : 0;
    to->status = count > MOST_DIGITS ? VALUE_CUT : VALUE_COMPLETE;
    to->size = count > MOST_DIGITS ? 0 : 4 * size;
    memcpy(to->data, from->data, to->size);
}

/* What takes `each` bytes for one of its length. */
static void take_data(const struct object_event *from, struct value *to, size_t each)
{
    size_t count = smaller(from->length, VALUE_DATA / each);
    to->size = each * count;
    to->status = count < (size_t)from->length ? VALUE_CUT : VALUE_COMPLETE;
    memcpy(to->data, from->data, to->size);
}

/* c10::TensorImpl from sizes_and_strides_ on. */
struct tensor_head {
    uint64_t dimensions;
    int64_t sizes[TENSOR_INLINE], strides[TENSOR_INLINE], storage_offset, elements;
    uint16_t data_type;
    uint8_t device[4], flags;
};
#define TENSOR_CUSTOM 8 /* of flags: its sizes are its own affair */
#define MOST_DATA_TYPES 64

_Static_assert(sizeof(struct tensor_head) == TENSOR_HEAD, "a tensor's head");
_Static_assert(TENSOR_HEAD + VALUE_DATA <= TENSOR_DATA && TENSOR_PLACES * TENSOR_DATA <= OBJECT_DATA, "the room for tensors");

/* Whether a tensor lay there: it has as many elements as its sizes say. */
static bool is_tensor(const struct tensor_head *tensor, const int64_t *sizes)
{
    uint64_t elements = 1;
    if (tensor->dimensions > VALUE_DATA / sizeof *sizes || tensor->flags & TENSOR_CUSTOM || tensor->data_type >= MOST_DATA_TYPES)
        return false;
    for (uint64_t i = 0; i < tensor->dimensions; i++)
        elements *= (uint64_t)sizes[i];
    return elements == (uint64_t)tensor->elements;
}

/* Of what lies at neither place, or at both, the type alone is known. */
static void take_tensor(const struct object_event *from, struct value *to)
{
    to->kind = VALUE_OTHER;
    for (int i = 0, found = 0; i < TENSOR_PLACES; i++) {
        const uint8_t *at = from->data + i * TENSOR_DATA;
        struct tensor_head tensor;
        int64_t sizes[VALUE_DATA / sizeof(int64_t)];
        memcpy(&tensor, at, sizeof tensor);
        memcpy(sizes, at + TENSOR_HEAD, sizeof sizes);
        if (tensor.dimensions <= TENSOR_INLINE)
            memcpy(sizes, tensor.sizes, sizeof tensor.sizes);
        if (!is_tensor(&tensor, sizes))
            continue;
        to->kind = found++ ? VALUE_OTHER : VALUE_TENSOR;
        to->dtype = tensor.data_type;
        to->length = tensor.dimensions;
        to->size = tensor.dimensions * sizeof *sizes;
        memcpy(to->data, sizes, to->size);
    }
    if (to->kind == VALUE_OTHER)
        to->dtype = to->length = to->size = 0;
}

static void take(const struct object_event *from, struct value *to)
{
    *to = (struct value){
        .length = from->length, .position = from->position, .what = from->what % VALUE_WHATS, .kind = from->kind, .status = from->status, .dtype = from->dtype,
    };
    bool is_int = from->kind == VALUE_INT || from->kind == VALUE_NEGATIVE;
    if (from->status != VALUE_COMPLETE || from->length < 0 || (is_int && from->length > INT64_MAX / DIGIT_BITS) || from->kind >= VALUE_KINDS) {
        to->status = from->status == VALUE_REDACTED ? VALUE_REDACTED : VALUE_UNREAD;
        to->kind = VALUE_OTHER;
        to->length = 0;
    } else if (is_int) {
        take_int(from, to);
    } else if (from->kind == VALUE_FLOAT) {
        to->size = sizeof(double);
        memcpy(to->data, from->data, to->size);
    } else if (from->kind == VALUE_TEXT) {
        take_text(from, to);
    } else if (from->kind == VALUE_BYTES) {
        take_data(from, to, 1);
    } else if (from->kind == VALUE_ARRAY) {
        take_data(from, to, sizeof(int64_t));
    } else if (from->kind == VALUE_TENSOR) {
        take_tensor(from, to);
    }
}

/* Makes a value of each, and the text of each one's type, one after the other, with where each ends. Returns how many bytes these
 * are. `types` has TYPE_ROOM bytes for each. */
OFFERED size_t rebuild_objects(const struct object_event *events, size_t count, struct value *values, uint8_t *types, int64_t *ends)
{
    size_t at = 0;
    for (size_t i = 0; i < count; i++) {
        take(&events[i], &values[i]);
        at += type_name(&events[i], types + at);
        ends[i] = (int64_t)at;
    }
    return at;
}
