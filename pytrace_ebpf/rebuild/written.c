/* What a file of every call consists of: of each begin and end a text that says what it does, one that says on which thread, and the time; and columns of numbers. */
#include <string.h>

#include "engine.h"

#define LONGEST_TIME 24 /* bytes */

/* Texts by number: the k-th from start[k] up to start[k + 1]. */
struct texts {
    const char *text;
    const int64_t *start;
    size_t count;
};

/* struct Form of library.py */
struct form {
    struct texts does;    /* the end of a call, the begin of one that is not known, of each function by func_id */
    struct texts threads; /* by number */
    struct texts end;     /* one: what stands behind the time */
    int64_t origin;       /* of times */
    bool as_varint;       /* a time in ns as a varint of nine bytes, else in us, decimal */
};

static inline char *put(char *out, const struct texts *texts, size_t which)
{
    size_t size = (size_t)(texts->start[which + 1] - texts->start[which]);
    memcpy(out, texts->text + texts->start[which], size);
    return out + size;
}

/* The decimal digits of a number, at least `least` of them; returns where they end. */
static inline char *put_digits(char *out, uint64_t number, unsigned least)
{
    static const char pairs[] = "0001020304050607080910111213141516171819202122232425262728293031323334353637383940414243444546474849"
                                "5051525354555657585960616263646566676869707172737475767778798081828384858687888990919293949596979899";
    char digits[20], *begin = digits + sizeof digits;
    for (; number >= 100; number /= 100)
        memcpy(begin -= 2, pairs + 2 * (number % 100), 2);
    if (number >= 10)
        memcpy(begin -= 2, pairs + 2 * number, 2);
    else
        *--begin = (char)('0' + number);
    size_t size = (size_t)(digits + sizeof digits - begin);
    for (; size < least; least--)
        *out++ = '0';
    memcpy(out, begin, size);
    return out + size;
}

static inline char *put_time(char *out, uint64_t ns, bool as_varint)
{
    if (as_varint) {
        for (int k = 0; k < 8; k++)
            out[k] = (char)(ns >> 7 * k | 0x80);
        out[8] = (char)(ns >> 56 & 0x7F);
        return out + 9;
    }
    out = put_digits(out, ns / 1000, 1);
    *out++ = '.';
    return put_digits(out, ns % 1000, 3);
}

/* Write edges, as many as there is room for; returns how many, and into `size` how many bytes they are. */
OFFERED size_t rebuild_written(const struct edge *edge, size_t count, const struct form *form, char *out, size_t room, size_t *size)
{
    const char *begin = out, *stop = out + room;
    size_t ends = (size_t)(form->end.start[1] - form->end.start[0]), done = 0;
    for (; done < count; done++, edge++) {
        size_t does = (size_t)edge->func + 2, thread = edge->thread;
        if (does >= form->does.count)
            does = 1;
        if (thread >= form->threads.count)
            break;
        const int64_t *what = form->does.start + does, *whose = form->threads.start + thread;
        if (what[1] - what[0] + whose[1] - whose[0] + (int64_t)ends + LONGEST_TIME > stop - out)
            break;
        out = put(out, &form->does, does);
        out = put(out, &form->threads, thread);
        out = put_time(out, (uint64_t)(edge->ts - form->origin), form->as_varint);
        out = put(out, &form->end, 0);
    }
    *size = (size_t)(out - begin);
    return done;
}

/* Numbers one after the other with commas between, each divided by 10^decimals; one below 0 is null. `out` has room for 24 bytes each. Returns how many bytes. */
OFFERED size_t rebuild_numbers(const int64_t *number, size_t count, unsigned decimals, char *out)
{
    const char *begin = out;
    uint64_t one = 1;
    for (unsigned k = 0; k < decimals; k++)
        one *= 10;
    for (size_t k = 0; k < count; k++) {
        if (k)
            *out++ = ',';
        if (number[k] < 0) {
            memcpy(out, "null", 4);
            out += 4;
            continue;
        }
        out = put_digits(out, (uint64_t)number[k] / one, 1);
        if (decimals) {
            *out++ = '.';
            out = put_digits(out, (uint64_t)number[k] % one, decimals);
        }
    }
    return (size_t)(out - begin);
}
