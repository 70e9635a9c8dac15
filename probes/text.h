/* The characters of a str, of whichever width, as UTF-8. */
#ifndef PYTRACE_TEXT_H
#define PYTRACE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct characters {
    const void *data;
    unsigned width;
    bool ascii;
    size_t length;
};

static inline size_t utf8(uint8_t *to, uint32_t c)
{
    static const char hexadecimal[] = "0123456789abcdef";
    if (c < 0x80)
        return to[0] = c, 1;
    if (c < 0x800)
        return to[0] = 0xc0 | c >> 6, to[1] = 0x80 | (c & 63), 2;
    if (c - 0xd800 < 0x800) {
        memcpy(to, "\\u", 2);
        for (int i = 0; i < 4; i++)
            to[2 + i] = hexadecimal[c >> (12 - 4 * i) & 15];
        return 6;
    }
    if (c < 0x10000)
        return to[0] = 0xe0 | c >> 12, to[1] = 0x80 | (c >> 6 & 63), to[2] = 0x80 | (c & 63), 3;
    return to[0] = 0xf0 | c >> 18, to[1] = 0x80 | (c >> 12 & 63), to[2] = 0x80 | (c >> 6 & 63), to[3] = 0x80 | (c & 63), 4;
}

/* As many whole characters as have room; false: not all. */
static inline bool copy_text(const struct characters *from, uint8_t *to, size_t room, size_t *size)
{
    if (from->ascii) {
        *size = from->length < room ? from->length : room;
        memcpy(to, from->data, *size);
        return from->length <= room;
    }
    *size = 0;
    for (size_t i = 0; i < from->length; i++) {
        uint32_t c = from->width == 1 ? ((uint8_t *)from->data)[i] : from->width == 2 ? ((uint16_t *)from->data)[i] : ((uint32_t *)from->data)[i];
        uint8_t one[6];
        size_t length = utf8(one, c & 0x1fffff);
        if (*size + length > room)
            return false;
        memcpy(to + *size, one, length);
        *size += length;
    }
    return true;
}

#endif
