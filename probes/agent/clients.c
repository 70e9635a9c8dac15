/* Reads what a client library's function is asked for from the arguments that a line of the options names, and writes it without its literals; and of the
 * functions that begin requests the trace context: the W3C header, or the one of a span that OpenTelemetry makes. No code of the program runs. */
#include "clients.h"

#include <string.h>
#include <strings.h>

#include "cpython.h"
#include "objects.h"
#include "statements.h"
#include "values.h"

#define MOST_ITEMS 64 /* of a command */
#define MOST_HEADERS 512
#define TRACE_DIGITS 32
#define SPAN_DIGITS 16
#define CONTEXT_BYTES (TRACE_DIGITS + 1 + SPAN_DIGITS) /* TRACE-SPAN */

/* A statement as it is read. */
struct asked {
    char text[STATEMENT_BYTES + 1];
    struct written out;
    const void *object;
    bool cut, unread;
};

/* A str, or bytes, as UTF-8 in `to`; false where it is neither. */
static bool text_of(PyObject *object, char *to, size_t room, size_t *size, bool *cut)
{
    if (!object || !object_text(object, to, room, size, cut))
        return false;
    to[*size] = 0;
    return true;
}

static void put_object(struct asked *asked, PyObject *object, char kind, bool first)
{
    char text[STATEMENT_BYTES + 1];
    size_t size;
    bool cut = false;
    if (!text_of(object, text, STATEMENT_BYTES, &size, &cut)) {
        if (first && object) { /* an object that stands for it, such as a Path or psycopg's Composed */
            put_text(&asked->out, "(", 1);
            put_text(&asked->out, type_name(object), strlen(type_name(object)));
            put_text(&asked->out, ")", 1);
        }
        asked->unread |= first;
        return;
    }
    asked->cut |= cut;
    if (options.raw_statements) {
        put_text(&asked->out, " ", asked->out.size && kind == COMMAND);
        put_raw(&asked->out, text, size);
    } else if (kind == COMMAND) {
        put_argument(&asked->out, text, size, first);
    } else if (kind == METHOD_AND_URL) {
        put_url(&asked->out, text, size, cut);
    } else if (kind == WORD) {
        put_word(&asked->out, text, size);
    } else {
        put_sql(&asked->out, text, size, kind);
    }
}

static void put_command(struct asked *asked, PyObject *object)
{
    PyObject *const *items;
    Py_ssize_t count = items_of(object, &items);
    for (Py_ssize_t i = 0; i < count && i < MOST_ITEMS; i++)
        put_object(asked, items[i], COMMAND, !i);
    asked->cut |= count > MOST_ITEMS;
    if (count >= 0)
        return;
    char text[STATEMENT_BYTES + 1];
    size_t size;
    if (options.raw_statements || !text_of(object, text, STATEMENT_BYTES, &size, &asked->cut))
        put_object(asked, object, COMMAND, true);
    else
        put_shell(&asked->out, text, size);
}

/* Of several things the first: of arguments, of a dict's keys. */
static PyObject *first_of(PyObject *object)
{
    PyObject *const *items, *key, *value;
    Py_ssize_t count = items_of(object, &items), place = 0;
    if (count >= 0)
        return count ? items[0] : NULL;
    return is_dict(object) ? py.PyDict_Next(object, &place, &key, &value) ? key : NULL : object;
}

static void put_asked(struct asked *asked, PyObject *object, char kind, bool last)
{
    if (kind == COMMAND) {
        put_command(asked, object);
    } else if (kind == WORD) {
        put_object(asked, first_of(object), kind, true);
    } else if (!last) { /* a method */
        put_object(asked, object, WORD, true);
        for (char *c = asked->text; *c; c++)
            *c -= *c >= 'a' && *c <= 'z' ? 'a' - 'A' : 0;
        put_text(&asked->out, " ", 1);
    } else {
        put_object(asked, object, kind, true);
    }
}

static bool is_hexadecimal(const char *text, size_t size)
{
    bool some = false;
    for (size_t i = 0; i < size; i++) {
        if (!((text[i] >= '0' && text[i] <= '9') || (text[i] >= 'a' && text[i] <= 'f')))
            return false;
        some |= text[i] != '0';
    }
    return some;
}

/* https://www.w3.org/TR/trace-context/: version-trace-span-flags. */
static void put_header(struct asked *asked, PyObject *object)
{
    char text[65];
    size_t size;
    bool cut;
    if (!text_of(object, text, sizeof text - 1, &size, &cut) || size < 3 + CONTEXT_BYTES + 3 || !memcmp(text, "ff", 2))
        return;
    const char *trace = text + 3, *span = trace + TRACE_DIGITS + 1;
    if (text[2] == '-' && span[-1] == '-' && span[SPAN_DIGITS] == '-' && is_hexadecimal(trace, TRACE_DIGITS) && is_hexadecimal(span, SPAN_DIGITS))
        put_text(&asked->out, trace, CONTEXT_BYTES);
}

static bool is_named(PyObject *key, const char *name)
{
    char text[32];
    size_t size;
    bool cut = false;
    return text_of(key, text, sizeof text - 1, &size, &cut) && !cut && !strcasecmp(text, name);
}

/* The header, of an environment of WSGI, a scope of ASGI, or a message of Celery's. */
static void put_headers(struct asked *asked, PyObject *object, bool outer)
{
    PyObject *const *items, *const *pair, *key, *value;
    Py_ssize_t count = items_of(object, &items), place = 0;
    for (Py_ssize_t i = 0; i < count && i < MOST_HEADERS && !asked->out.size; i++)
        if (items_of(items[i], &pair) == 2 && is_named(pair[0], "traceparent"))
            put_header(asked, pair[1]);
    if (!is_dict(object))
        return;
    for (int i = 0; i < MOST_HEADERS && !asked->out.size && py.PyDict_Next(object, &place, &key, &value); i++) {
        if (is_named(key, "HTTP_TRACEPARENT") || is_named(key, "traceparent"))
            put_header(asked, value);
        else if (outer && is_named(key, "headers"))
            put_headers(asked, value, false);
    }
}

/* The items of OpenTelemetry's SpanContext, a tuple that begins with two numbers. */
static void put_span(struct asked *asked, PyObject *object)
{
    PyObject *const *items;
    char text[CONTEXT_BYTES];
    if (items_of(object, &items) < 2 || !int_hexadecimal(items[0], text, TRACE_DIGITS) || !int_hexadecimal(items[1], text + TRACE_DIGITS + 1, SPAN_DIGITS))
        return;
    text[TRACE_DIGITS] = '-';
    put_text(&asked->out, text, CONTEXT_BYTES);
}

static bool read_arguments(struct asked *asked, const struct client *client, const struct function_entry *function, const void *frame)
{
    PyObject *argument;
    for (int i = 0; i < client->arguments; i++) {
        if (!argument_named(function, frame, client->argument[i], &argument))
            return false;
        if (client->kind == HEADERS)
            put_headers(asked, argument, true);
        else if (client->kind == SPAN)
            put_span(asked, argument);
        else if (client->kind == OBJECT)
            asked->object = argument;
        else
            put_asked(asked, argument, client->kind, i + 1 == client->arguments);
    }
    return true;
}

void write_statement(struct writer *w, const struct function_entry *function, const void *frame)
{
    const struct client *client = &options.client[function->client];
    bool is_context = client->kind == HEADERS || client->kind == SPAN;
    struct asked asked;
    asked.out = (struct written){.text = asked.text};
    asked.object = NULL;
    asked.cut = asked.unread = false;
    asked.text[0] = 0;
    if (!objects_known)
        return;
    asked.unread |= !read_arguments(&asked, client, function, frame);
    if (is_context && !asked.out.size)
        return;
    struct value *value = room_for_values(w, 1);
    if (!value)
        return;
    const struct function *record = asked.out.size > VALUE_DATA ? statement_record(asked.text) : NULL;
    size_t size = record ? 0 : asked.out.size < VALUE_DATA ? asked.out.size : VALUE_DATA;
    while (size && size < asked.out.size && ((unsigned char)asked.text[size] & 0xc0) == 0x80)
        size--;
    bool cut = asked.cut || asked.out.full || (!record && size < asked.out.size);
    value->name = record ? record->id : 0;
    value->type = value->dtype = 0;
    value->position = function->client;
    value->what = VALUE_STATEMENT;
    value->kind = VALUE_TEXT;
    value->status = asked.unread ? VALUE_UNREAD : cut ? VALUE_CUT : VALUE_COMPLETE;
    value->size = size;
    value->length = client->kind == OBJECT ? (int64_t)(uintptr_t)asked.object : (int64_t)size;
    memcpy(value->data, asked.text, size);
    values_written(w, 1);
}
