/* What a file of every call consists of, put together from its parts: records of two sizes, or texts with a time. */
#include <string.h>

#include "rebuild.h"

/* The records of two arrays as one run of bytes, in the order that `is_second` gives. */
OFFERED void rebuild_interleave(const uint8_t *first, size_t first_size, const uint8_t *second, size_t second_size, const bool *is_second,
                                size_t count, uint8_t *out)
{
    for (size_t i = 0; i < count; i++) {
        const uint8_t **from = is_second[i] ? &second : &first;
        size_t size = is_second[i] ? second_size : first_size;
        memcpy(out, *from, size);
        *from += size;
        out += size;
    }
}

/* The decimal digits of a number; returns how many. */
static size_t digits(uint64_t number, char *out)
{
    char reversed[20];
    size_t count = 0;
    do
        reversed[count++] = (char)('0' + number % 10);
    while (number /= 10);
    for (size_t i = 0; i < count; i++)
        out[i] = reversed[count - 1 - i];
    return count;
}

/* Of each row its text (of `texts`, from starts[which] up to starts[which + 1]), its time (ns, written as us with three decimals; >= 0) and `end`.
 * `out` has room for the texts, and 21 bytes and `end` a row. Returns how many bytes there are. */
OFFERED size_t rebuild_stamped(const char *texts, const int64_t *starts, const int64_t *which, const int64_t *ns, size_t count, const char *end, char *out)
{
    const char *begin = out;
    size_t end_size = strlen(end);
    for (size_t i = 0; i < count; i++) {
        size_t size = (size_t)(starts[which[i] + 1] - starts[which[i]]);
        memcpy(out, texts + starts[which[i]], size);
        out += size;
        uint64_t at = (uint64_t)ns[i];
        out += digits(at / 1000, out);
        *out++ = '.';
        for (unsigned unit = 100; unit; unit /= 10)
            *out++ = (char)('0' + at % 1000 / unit % 10);
        memcpy(out, end, end_size);
        out += end_size;
    }
    return (size_t)(out - begin);
}
