/* The texts of an agent's values (probes/agent/agent.h), for the collector.
 *
 * The records are a copy of another user's memory: any bytes may be in them. What comes out is UTF-8, and no more of it than there
 * is room for. */
#include <string.h>

#include "../../probes/agent/agent.h"
#include "engine.h"

#define TEXT_ROOM (4 * VALUE_DATA) /* of a value; decoding.py has the same */
#define TEN_TO_9 1000000000u
#define MOST_PARTS (VALUE_DATA * 8 / 29 + 1) /* of 9 decimal digits each, which are nearly 30 bits */

static const char hexadecimal[] = "0123456789abcdef";

static size_t put(uint8_t *to, const char *word)
{
    size_t length = strlen(word);
    memcpy(to, word, length);
    return length;
}

static size_t put_escaped(uint8_t *to, uint8_t byte)
{
    memcpy(to, "\\x", 2);
    to[2] = hexadecimal[byte >> 4];
    to[3] = hexadecimal[byte & 15];
    return 4;
}

/* In decimal: divided by 10 ** 9 until nothing is left. */
static size_t put_int(uint8_t *to, const struct value *value, size_t size)
{
    uint32_t digit[VALUE_DATA / 4], part[MOST_PARTS];
    size_t digits = size / sizeof *digit, parts = 0, at = 0;
    memcpy(digit, value->data, digits * sizeof *digit);
    while (digits && parts < MOST_PARTS) {
        uint64_t rest = 0;
        for (size_t i = digits; i--;) {
            rest = rest << DIGIT_BITS | (digit[i] & ((1u << DIGIT_BITS) - 1));
            digit[i] = (uint32_t)(rest / TEN_TO_9);
            rest %= TEN_TO_9;
        }
        part[parts++] = (uint32_t)rest;
        while (digits && !digit[digits - 1])
            digits--;
    }
    if (value->kind == VALUE_NEGATIVE)
        to[at++] = '-';
    if (!parts)
        to[at++] = '0';
    for (size_t i = parts; i--;) {
        bool first = i + 1 == parts, begun = !first;
        for (uint32_t unit = TEN_TO_9 / 10; unit; unit /= 10) {
            begun |= part[i] / unit % 10 != 0 || unit == 1;
            if (begun)
                to[at++] = '0' + part[i] / unit % 10;
        }
    }
    return at;
}

/* Bytes of the character that begins there; 0 = none does. */
static size_t character(const uint8_t *at, size_t left)
{
    size_t length = *at < 0x80 ? 1 : *at >= 0xc2 && *at < 0xe0 ? 2 : *at >= 0xe0 && *at < 0xf0 ? 3 : *at >= 0xf0 && *at < 0xf5 ? 4 : 0;
    if (!length || length > left)
        return 0;
    for (size_t i = 1; i < length; i++)
        if ((at[i] & 0xc0) != 0x80)
            return 0;
    bool overlong = (*at == 0xe0 && at[1] < 0xa0) || (*at == 0xf0 && at[1] < 0x90);
    bool beyond = (*at == 0xed && at[1] > 0x9f) || (*at == 0xf4 && at[1] > 0x8f);
    return overlong || beyond ? 0 : length;
}

size_t put_text(uint8_t *to, const uint8_t *from, size_t size)
{
    size_t at = 0;
    for (size_t i = 0, length; i < size; i += length ? length : 1) {
        length = character(from + i, size - i);
        if (!length)
            at += put_escaped(to + at, from[i]);
        for (size_t k = 0; k < length; k++)
            to[at++] = from[i + k];
    }
    return at;
}

/* As a literal of Python has it between the quotes. */
static size_t put_bytes(uint8_t *to, const uint8_t *from, size_t size)
{
    size_t at = 0;
    for (size_t i = 0; i < size; i++) {
        const char *escape = from[i] == '\\' ? "\\\\" : from[i] == '\n' ? "\\n" : from[i] == '\r' ? "\\r" : from[i] == '\t' ? "\\t" : NULL;
        if (escape)
            at += put(to + at, escape);
        else if (from[i] < 0x20 || from[i] > 0x7e)
            at += put_escaped(to + at, from[i]);
        else
            to[at++] = from[i];
    }
    return at;
}

/* Writes the texts of values one after the other, and where each ends; `has`: whether there is one. A float's is left to the caller.
 * Returns how many bytes. `text` has TEXT_ROOM bytes for each. */
OFFERED size_t rebuild_value_texts(const struct value *value, size_t count, uint8_t *text, int64_t *ends, bool *has)
{
    size_t at = 0;
    for (size_t i = 0; i < count; i++, value++) {
        size_t size = value->size < VALUE_DATA ? value->size : VALUE_DATA;
        bool has_value = value->status == VALUE_COMPLETE || value->status == VALUE_CUT, whole = value->status == VALUE_COMPLETE;
        has[i] = has_value;
        if (has_value && value->kind == VALUE_TEXT)
            at += put_text(text + at, value->data, size);
        else if (has_value && value->kind == VALUE_BYTES)
            at += put_bytes(text + at, value->data, size);
        else if (whole && (value->kind == VALUE_INT || value->kind == VALUE_NEGATIVE))
            at += put_int(text + at, value, size);
        else if (has_value && value->kind == VALUE_BOOL)
            at += put(text + at, value->length ? "True" : "False");
        else if (has_value && value->kind == VALUE_NONE)
            at += put(text + at, "None");
        else
            has[i] = false;
        ends[i] = (int64_t)at;
    }
    return at;
}
