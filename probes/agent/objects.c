/* Reads objects by the layouts of Include/cpython/, which are the same from 3.8 to 3.15 but for what cpython_offsets.h has. */
#include "objects.h"

#include <errno.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../text.h"
#include "functions.h"

/* PyTypeObject, and its tp_flags */
#define TYPE_NAME 24
#define TYPE_BASE 256
#define TYPE_MRO 344
#define HEAP_TYPE (1ull << 9)
#define IS_INT (1ull << 24)
#define IS_LIST (1ull << 25)
#define IS_TUPLE (1ull << 26)
#define IS_BYTES (1ull << 27)
#define IS_TEXT (1ull << 28)
#define IS_DICT (1ull << 29)
#define IS_EXCEPTION (1ull << 30)
#define IS_TYPE (1ull << 31)
#define QUALNAME_BEFORE_KEYS 8 /* PyHeapTypeObject: ht_qualname, then ht_cached_keys */
#define SIZE 16                /* of what has a size: ob_size, of a dict ma_used */
#define SET_SIZE 24
#define LIST_ITEMS 24
#define FLOAT_VALUE 16
#define DIGITS 24
#define EXCEPTION_ARGUMENTS 24
#define EXCEPTION_TRACEBACK (py.version < 0x030b0000 ? 32 : 40)
#define TRACEBACK_POSITION 32 /* of its frame in the code, in bytes */
/* PyArrayObject_fields and PyArray_Descr, NumPy 1 and 2 */
#define ARRAY_DIMENSIONS 24
#define ARRAY_SIZES 32
#define ARRAY_DESCRIPTION 56
#define DESCRIPTION_NUMBER 28
#define MOST_ARRAY_DIMENSIONS 64
/* THPVariable, and c10::TensorImpl from sizes_and_strides_ on: see probes/native.c */
#define TENSOR_SIZES 56
#define TENSOR_INLINE 5
#define TENSOR_CUSTOM 8
#define TENSOR_TRIES 64
#define MOST_BASES 64
#define PAGE 4096 /* none is smaller */
#define LONGEST_NAME 256

bool objects_known;
static int tensor_place;               /* in its object, of the pointer to a tensor; 0 = not found out */
static int tensor_failures;

struct tensor_impl {
    uint64_t dimensions;
    int64_t sizes[TENSOR_INLINE], strides[TENSOR_INLINE];
    int64_t storage_offset, elements;
    uint16_t data_type;
    uint8_t device[4], flags;
};

static void describe_int(struct value *v, PyObject *object);

static uint64_t word_at(const void *base, int offset)
{
    return *(const uint64_t *)((const char *)base + offset);
}

bool is_static_type(const void *type, const char *name)
{
    return !(word_at(type, TYPE_FLAGS) & HEAP_TYPE) && !strcmp(pointer_at(type, TYPE_NAME), name);
}

bool is_exception(const PyObject *object)
{
    return word_at(object->type, TYPE_FLAGS) & IS_EXCEPTION;
}

bool is_exception_type(const PyObject *object)
{
    return word_at(object->type, TYPE_FLAGS) & IS_TYPE && is_there(object, TYPE_FLAGS + 8) && word_at(object, TYPE_FLAGS) & IS_EXCEPTION;
}

uint32_t traceback_line(const PyObject *traceback, PyObject *code)
{
    int found = py.PyCode_Addr2Line(code, *(int *)((char *)traceback + TRACEBACK_POSITION));
    return found > 0 ? found & 0x1ffffff : 0;
}

PyObject *exception_traceback(PyObject *exception)
{
    if (!objects_known || !is_exception(exception))
        return NULL;
    PyObject *traceback = pointer_at(exception, EXCEPTION_TRACEBACK);
    return traceback && is_static_type(traceback->type, "traceback") ? traceback : NULL;
}

/* False where it is none that can be read: before 3.12 one may not be ready. */
static bool characters_of(PyObject *text, struct characters *of)
{
    uint32_t state = *(uint32_t *)((char *)text + at->string_state) >> at->string_kind;
    bool compact = state >> 3 & 1;
    of->ascii = state >> 4 & 1;
    of->width = state & 7;
    of->length = word_at(text, at->string_length);
    if (compact)
        of->data = (char *)text + (of->ascii ? at->string_data : at->string_data_wide);
    else
        of->data = pointer_at(text, at->string_data_wide);
    return (of->width == 1 || of->width == 2 || of->width == 4) && of->data;
}

const struct function *name_of_text(PyObject *text)
{
    char name[LONGEST_NAME];
    struct characters of;
    size_t size = 0;
    if (text && word_at(text->type, TYPE_FLAGS) & IS_TEXT && characters_of(text, &of))
        copy_text(&of, (uint8_t *)name, sizeof name - 1, &size);
    name[size] = 0;
    return name_record(name);
}

/* By its qualified name: of a type that was made at run time its own, else what tp_name has behind the module. */
static const struct function *record_of_type(const void *type)
{
    if (word_at(type, TYPE_FLAGS) & HEAP_TYPE)
        return name_of_text(pointer_at(type, at->type_cached_keys - QUALNAME_BEFORE_KEYS));
    const char *name = pointer_at(type, TYPE_NAME), *dot = strrchr(name, '.');
    return name_record(dot ? dot + 1 : name);
}

static uint32_t name_of_type(const void *type)
{
    const struct function *record = record_of_type(type);
    return record ? record->id : 0;
}

const char *type_name(PyObject *object)
{
    const struct function *record = record_of_type(object->type);
    return record ? (const char *)(record + 1) : "?";
}

bool object_text(PyObject *object, char *to, size_t room, size_t *size, bool *cut)
{
    uint64_t flags = word_at(object->type, TYPE_FLAGS);
    struct characters of;
    if (flags & IS_TEXT && characters_of(object, &of)) {
        *cut |= !copy_text(&of, (uint8_t *)to, room, size);
        return true;
    }
    if (!(flags & IS_BYTES))
        return false;
    size_t length = word_at(object, SIZE);
    *cut |= length > room;
    *size = length < room ? length : room;
    for (size_t i = 0; i < *size; i++)
        to[i] = bytes_of(object)[i] < 0x80 ? bytes_of(object)[i] : '?';
    return true;
}

Py_ssize_t items_of(PyObject *object, PyObject *const **items)
{
    uint64_t flags = object ? word_at(object->type, TYPE_FLAGS) : 0;
    if (!(flags & (IS_LIST | IS_TUPLE)))
        return -1;
    *items = flags & IS_LIST ? pointer_at(object, LIST_ITEMS) : (void *)((char *)object + at->tuple_items);
    return word_at(object, SIZE);
}

bool is_dict(PyObject *object)
{
    return object && word_at(object->type, TYPE_FLAGS) & IS_DICT;
}

bool int_hexadecimal(PyObject *object, char *to, size_t digits)
{
    struct value v = {0};
    if (!object || !(word_at(object->type, TYPE_FLAGS) & IS_INT))
        return false;
    describe_int(&v, object);
    if (v.kind != VALUE_INT || !v.length || v.length > (int64_t)(4 * digits))
        return false;
    for (size_t i = 0; i < digits; i++) { /* from the lowest one on; 30 bits of a word are not 4 times a whole number */
        unsigned nibble = 0;
        for (size_t bit = 4 * i; bit < 4 * i + 4; bit++) {
            uint32_t word = 0;
            if (bit / DIGIT_BITS * sizeof word < v.size)
                memcpy(&word, v.data + bit / DIGIT_BITS * sizeof word, sizeof word);
            nibble |= (word >> bit % DIGIT_BITS & 1) << (bit - 4 * i);
        }
        to[digits - 1 - i] = "0123456789abcdef"[nibble];
    }
    return true;
}

static void describe_int(struct value *v, PyObject *object)
{
    bool tagged = py.version >= 0x030c0000; /* lv_tag: the digits' count, and in the low bits the sign */
    int64_t size = word_at(object, SIZE), count = tagged ? size >> 3 : size < 0 ? -size : size;
    const uint32_t *digit = (const uint32_t *)((char *)object + DIGITS);
    bool zero = tagged ? (size & 3) == 1 : !size;
    if (zero)
        count = 0;
    v->kind = (tagged ? (size & 3) == 2 : size < 0) ? VALUE_NEGATIVE : VALUE_INT;
    v->length = count ? DIGIT_BITS * (count - 1) + 32 - __builtin_clz(digit[count - 1] | 1) : 0;
    if ((uint64_t)count * sizeof *digit > VALUE_DATA) {
        v->status = VALUE_CUT;
        return;
    }
    v->size = count * sizeof *digit;
    memcpy(v->data, digit, v->size);
}

static void describe_text(struct value *v, PyObject *object)
{
    struct characters of;
    size_t size;
    if (!characters_of(object, &of)) {
        v->status = VALUE_UNREAD;
        return;
    }
    v->kind = VALUE_TEXT;
    v->length = of.length;
    if (!copy_text(&of, v->data, VALUE_DATA, &size))
        v->status = VALUE_CUT;
    v->size = size;
}

static void describe_bytes(struct value *v, PyObject *object)
{
    v->kind = VALUE_BYTES;
    v->length = word_at(object, SIZE);
    v->size = v->length < VALUE_DATA ? v->length : VALUE_DATA;
    v->status = v->length > VALUE_DATA ? VALUE_CUT : VALUE_COMPLETE;
    memcpy(v->data, bytes_of(object), v->size);
}

static void describe_size(struct value *v, PyObject *object, int where)
{
    v->kind = VALUE_SIZED;
    v->length = word_at(object, where);
}

static void put_sizes(struct value *v, uint8_t kind, const int64_t *sizes, uint64_t dimensions)
{
    uint64_t most = VALUE_DATA / sizeof *sizes, count = dimensions < most ? dimensions : most;
    v->kind = kind;
    v->length = dimensions;
    v->status = dimensions > most ? VALUE_CUT : VALUE_COMPLETE;
    v->size = count * sizeof *sizes;
    if (count)
        memcpy(v->data, sizes, v->size);
}

static void describe_array(struct value *v, PyObject *object)
{
    int dimensions = *(int *)((char *)object + ARRAY_DIMENSIONS);
    const int64_t *sizes = pointer_at(object, ARRAY_SIZES);
    const void *description = pointer_at(object, ARRAY_DESCRIPTION);
    if (dimensions < 0 || dimensions > MOST_ARRAY_DIMENSIONS || (dimensions && !sizes) || !description)
        return;
    int number = *(int *)((char *)description + DESCRIPTION_NUMBER);
    v->dtype = number >= 0 && number < 255 ? number : 255;
    put_sizes(v, VALUE_ARRAY, sizes, dimensions);
}

static bool word_is_there(const char *address)
{
    return !syscall(SYS_rt_sigprocmask, -1, address, NULL, sizeof(uint64_t)) || errno != EFAULT;
}

bool is_there(const void *address, size_t size)
{
    int before = errno; /* the program's */
    const char *first = address, *last = first + size - sizeof(uint64_t);
    bool there = word_is_there(first) && (((uintptr_t)first ^ (uintptr_t)last) < PAGE || word_is_there(last));
    errno = before;
    return there;
}

static bool fits(const struct tensor_impl *impl, const int64_t **sizes)
{
    if (impl->dimensions > MOST_ARRAY_DIMENSIONS || impl->flags & TENSOR_CUSTOM)
        return false;
    *sizes = impl->dimensions <= TENSOR_INLINE ? impl->sizes : (const int64_t *)impl->sizes[0];
    if (impl->dimensions > TENSOR_INLINE && !is_there(*sizes, impl->dimensions * sizeof **sizes))
        return false;
    uint64_t elements = 1;
    for (uint64_t i = 0; i < impl->dimensions; i++)
        elements *= (*sizes)[i];
    return elements == (uint64_t)impl->elements;
}

/* Where PyTorch keeps the pointer is found out by the first tensor of some dimensions, of which every word that is read is checked. */
static void describe_tensor(struct value *v, PyObject *object)
{
    static const int places[] = {24, 16};
    const int64_t *sizes;
    for (size_t i = 0; i < 2 && tensor_failures < TENSOR_TRIES; i++) {
        if (tensor_place && tensor_place != places[i])
            continue;
        const char *tensor = pointer_at(object, places[i]);
        const struct tensor_impl *impl = (const void *)(tensor + TENSOR_SIZES);
        if (!tensor || (uintptr_t)tensor % 8 || (!tensor_place && !is_there(impl, sizeof *impl)) || !fits(impl, &sizes))
            continue;
        if (impl->dimensions)
            tensor_place = places[i];
        if (!tensor_place)
            continue;
        v->dtype = impl->data_type < 255 ? impl->data_type : 255;
        put_sizes(v, VALUE_TENSOR, sizes, impl->dimensions);
        return;
    }
    tensor_failures += !tensor_place;
}

/* By the types that its type is derived from, as PyFloat_Check() and its like have it: whose layout is theirs, then. */
static void describe_by_bases(struct value *v, PyObject *object)
{
    const void *types = pointer_at(object->type, TYPE_MRO);
    Py_ssize_t count = types ? tuple_size(types) : 0;
    for (Py_ssize_t i = 0; i < count && i < MOST_BASES; i++) {
        const void *type = tuple_item(types, i);
        const char *name = pointer_at(type, TYPE_NAME);
        if (type == py.float_type) {
            v->kind = VALUE_FLOAT;
            v->size = sizeof(double);
            memcpy(v->data, (char *)object + FLOAT_VALUE, sizeof(double));
        } else if (type == py.set_type || type == py.frozenset_type) {
            describe_size(v, object, SET_SIZE);
        } else if (type == py.bytearray_type) {
            describe_size(v, object, SIZE);
        } else if (*name == 'n' && is_static_type(type, "numpy.ndarray")) {
            describe_array(v, object);
        } else if (*name == 't' && (is_static_type(type, "torch._C.TensorBase") || is_static_type(type, "torch._C._TensorBase"))) {
            describe_tensor(v, object);
        }
        if (v->kind != VALUE_OTHER)
            return;
    }
}

/* An exception's text where that is a str, whatever its __str__ would make of it. */
static void describe_first_argument(struct value *v, PyObject *argument)
{
    if (argument && word_at(argument->type, TYPE_FLAGS) & IS_TEXT)
        describe_text(v, argument);
}

static void describe_plain(struct value *v, PyObject *object)
{
    uint64_t flags = word_at(object->type, TYPE_FLAGS);
    if (object == py.none) {
        v->kind = VALUE_NONE;
    } else if (object == py.true_ || object == py.false_) {
        v->kind = VALUE_BOOL;
        v->length = object == py.true_;
    } else if (flags & IS_INT) {
        describe_int(v, object);
    } else if (flags & IS_TEXT) {
        describe_text(v, object);
    } else if (flags & IS_BYTES) {
        describe_bytes(v, object);
    } else if (flags & (IS_LIST | IS_TUPLE | IS_DICT)) {
        describe_size(v, object, SIZE);
    } else if (flags & IS_EXCEPTION) {
        const void *arguments = pointer_at(object, EXCEPTION_ARGUMENTS);
        if (arguments && tuple_size(arguments))
            describe_first_argument(v, tuple_item(arguments, 0));
    } else {
        describe_by_bases(v, object);
    }
}

static void describe_type(struct value *v, const void *type, uint8_t status)
{
    v->type = type ? name_of_type(type) : 0;
    v->status = status;
    v->kind = VALUE_OTHER;
    v->length = v->size = v->dtype = 0;
}

void object_describe(struct value *v, PyObject *object, bool redact)
{
    describe_type(v, object ? object->type : NULL, !object ? VALUE_UNREAD : redact ? VALUE_REDACTED : VALUE_COMPLETE);
    if (object && !redact)
        describe_plain(v, object);
}

void object_describe_raised(struct value *v, PyObject *type, PyObject *content, bool redact)
{
    if (content && is_exception(content)) {
        object_describe(v, content, redact);
        return;
    }
    describe_type(v, type, redact ? VALUE_REDACTED : VALUE_COMPLETE);
    bool several = content && word_at(content->type, TYPE_FLAGS) & IS_TUPLE;
    if (!redact)
        describe_first_argument(v, !several ? content : tuple_size(content) ? tuple_item(content, 0) : NULL);
}

/* A str as the interpreter reports it, and as it lies in memory. */
static bool text_is_right(PyObject *text)
{
    struct characters of;
    uint8_t copy[LONGEST_NAME];
    size_t size;
    Py_ssize_t length = 0;
    const char *reported = text ? py.PyUnicode_AsUTF8AndSize(text, &length) : NULL;
    return reported && characters_of(text, &of) && copy_text(&of, copy, sizeof copy, &size) && size == (size_t)length && !memcmp(copy, reported, size);
}

void objects_verify(void)
{
    tensor_place = tensor_failures = 0;
    objects_known = false;
    if (py.free_threaded) /* another thread may change them while they are read */
        return;
    PyObject *number = py.PyLong_FromLong(-(1l << 40) - 5);
    struct value v = {0};
    const uint32_t digits[] = {5, 1 << 10};
    objects_known = number && py.true_ && !strcmp(pointer_at(number->type, TYPE_NAME), "int") && pointer_at(py.true_->type, TYPE_BASE) == number->type &&
                    word_at(number->type, TYPE_FLAGS) & IS_INT;
    if (objects_known)
        describe_int(&v, number);
    objects_known = objects_known && v.kind == VALUE_NEGATIVE && v.length == 41 && v.size == sizeof digits && !memcmp(v.data, digits, sizeof digits) &&
                    text_is_right(py.PySys_GetObject("platform"));
    if (number)
        py.Py_DecRef(number);
    py.PyErr_Clear();
}
