/* Encodes columns for Parquet's data pages (parquet-format, Encodings.md), for the collector. */
#include <string.h>

#include "engine.h"

#pragma GCC optimize("O3") /* its loops over blocks as vectors: half of the time */

/* Compiled twice; the loader takes what the processor can. */
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__)
#define ALSO_AVX2 __attribute__((target_clones("avx2", "default")))
#else
#define ALSO_AVX2
#endif

enum { BLOCK = 128, MINIBLOCK = 32, MINIBLOCKS = BLOCK / MINIBLOCK };

static uint8_t *put_varint(uint8_t *out, uint64_t value)
{
    for (; value > 127; value >>= 7)
        *out++ = (uint8_t)(value | 128);
    *out++ = (uint8_t)value;
    return out;
}

static uint8_t *put_signed(uint8_t *out, int64_t value)
{
    return put_varint(out, (uint64_t)value << 1 ^ (uint64_t)(value >> 63));
}

/* MINIBLOCK values of `width` bits each, the lowest first; `by` of them, 64 bits at most, are put together at first. */
static inline __attribute__((always_inline)) uint8_t *put_bits(uint8_t *out, const uint64_t *value, unsigned width, unsigned by)
{
    uint64_t word = 0;
    unsigned filled = 0;
    for (unsigned i = 0; i < MINIBLOCK; i += by) {
        uint64_t bits = 0;
        for (unsigned j = 0; j < by; j++)
            bits |= value[i + j] << j * width;
        word |= bits << filled;
        filled += by * width;
        if (filled < 64)
            continue;
        memcpy(out, &word, 8);
        out += 8;
        filled -= 64;
        word = filled ? bits >> (by * width - filled) : 0;
    }
    memcpy(out, &word, filled / 8); /* MINIBLOCK widths are whole bytes */
    return out + filled / 8;
}

static inline __attribute__((always_inline)) uint8_t *put_block(uint8_t *out, uint64_t *delta, unsigned count, int64_t *down)
{
    int64_t least = (int64_t)delta[0];
    for (unsigned i = 1; i < count; i++)
        least = (int64_t)delta[i] < least ? (int64_t)delta[i] : least;
    *down |= least;
    out = put_signed(out, least);
    for (unsigned i = 0; i < count; i++)
        delta[i] -= (uint64_t)least;
    memset(delta + count, 0, (BLOCK - count) * sizeof *delta);
    uint8_t *widths = out;
    out += MINIBLOCKS;
    for (unsigned i = 0; i < MINIBLOCKS; i++, delta += MINIBLOCK) {
        uint64_t any = 0;
        for (unsigned j = 0; j < MINIBLOCK; j++)
            any |= delta[j];
        const unsigned width = any ? 64 - __builtin_clzll(any) : 0;
        widths[i] = (uint8_t)width;
        if (width > 32)
            out = put_bits(out, delta, width, 1);
        else if (width > 16)
            out = put_bits(out, delta, width, 2);
        else if (width)
            out = put_bits(out, delta, width, 4);
    }
    return out;
}

/* DELTA_BINARY_PACKED. Returns the bytes written, of which there are at most 64 + 1060 for each 128 values begun; `ascending`:
 * whether none is below 0 or the one before it. */
OFFERED ALSO_AVX2 size_t rebuild_pack_deltas(const int64_t *values, size_t count, uint8_t *out, bool *ascending)
{
    uint8_t *const start = out;
    out = put_varint(put_varint(put_varint(out, BLOCK), MINIBLOCKS), count);
    out = put_signed(out, count ? values[0] : 0);
    uint64_t delta[BLOCK];
    int64_t down = count ? values[0] : 0; /* its sign: whether a value or a difference had it */
    for (size_t done = 1; done < count;) {
        unsigned here = count - done < BLOCK ? (unsigned)(count - done) : BLOCK;
        for (unsigned i = 0; i < here; i++, done++) {
            delta[i] = (uint64_t)values[done] - (uint64_t)values[done - 1];
            down |= values[done];
        }
        out = put_block(out, delta, here, &down);
    }
    *ascending = down >= 0;
    return (size_t)(out - start);
}

/* The values of a column by their numbers, in the order in which they came. */
enum { MOST_VALUES = 1 << 14, SLOT_BITS = 16, MOST_STEPS = 64 };
struct dictionary {
    uint64_t count;
    int64_t value[MOST_VALUES];
    uint16_t slot[1 << SLOT_BITS]; /* numbers, by a hash of the value. An empty one says 0 and is right: value[0] has no slot of its own */
};

OFFERED size_t rebuild_dictionary_size(void)
{
    return sizeof(struct dictionary);
}

/* The number of a value that is not in its first slot; MOST_VALUES where there is no room for it. A target chooses its values,
 * so it could have them share a slot: hence a limit to the steps. */
static __attribute__((noinline)) unsigned number_of(struct dictionary *known, int64_t value, unsigned at)
{
    for (unsigned step = 0; step < MOST_STEPS; step++, at = (at + 1) & ((1 << SLOT_BITS) - 1)) {
        const unsigned number = known->slot[at];
        if (known->value[number] == value)
            return number;
        if (number)
            continue;
        if (known->count == MOST_VALUES)
            break;
        known->value[known->count] = value;
        return known->slot[at] = (uint16_t)known->count++;
    }
    return MOST_VALUES;
}

static inline __attribute__((always_inline)) int64_t value_at(const void *values, bool wide, size_t i)
{
    return wide ? ((const int64_t *)values)[i] : ((const int32_t *)values)[i];
}

static inline __attribute__((always_inline)) bool put_numbers(struct dictionary *known, const void *values, bool wide, size_t count, uint8_t *out,
                                                              unsigned bytes)
{
#pragma GCC unroll 4
    for (size_t i = 0; i < count; i++) {
        const int64_t value = value_at(values, wide, i);
        const unsigned at = (unsigned)((uint64_t)value * 0x9e3779b97f4a7c15 >> (64 - SLOT_BITS));
        unsigned number = known->slot[at];
        if (__builtin_expect(known->value[number] != value, 0)) {
            number = number_of(known, value, at);
            if (number >= (bytes == 1 ? 256 : MOST_VALUES))
                return false;
        }
        memcpy(out + i * bytes, &number, bytes);
    }
    return true;
}

/* RLE_DICTIONARY, the dictionary being `known`: all 0 before the first page of a column, the rest is put there. Numbers take one or
 * two bytes, among which lz4 finds more than among bits. Returns the bytes written, at most 32 + 2 count; 0 where there are too many values. */
OFFERED size_t rebuild_pack_numbers(struct dictionary *known, const void *values, bool wide, size_t count, uint8_t *out)
{
    const size_t size = wide ? 8 : 4;
    if (count && !known->count)
        known->value[known->count++] = value_at(values, wide, 0);
    const bool constant = count && !memcmp(values, (const uint8_t *)values + size, (count - 1) * size);
    for (unsigned bytes = known->count > 256 ? 2 : 1; bytes <= 2; bytes++) {
        *out = (uint8_t)(8 * bytes);
        uint8_t *at = put_varint(out + 1, constant ? count << 1 : (count + 7) / 8 << 1 | 1);
        const size_t some = constant ? 1 : count, all = constant ? 1 : (count + 7) / 8 * 8;
        if (wide ? bytes == 1 ? put_numbers(known, values, true, some, at, 1) : put_numbers(known, values, true, some, at, 2)
                 : bytes == 1 ? put_numbers(known, values, false, some, at, 1) : put_numbers(known, values, false, some, at, 2)) {
            memset(at + some * bytes, 0, (all - some) * bytes);
            return (size_t)(at - out) + all * bytes;
        }
    }
    return 0;
}

/* RLE_DICTIONARY of values below 16, the dictionary being these numbers. Returns the bytes written: at most 12 + count. */
OFFERED size_t rebuild_pack_small(const int8_t *values, size_t count, uint8_t *out)
{
    uint8_t *const start = out;
    *out++ = 4; /* bits each */
    out = put_varint(out, (count + 7) / 8 << 1 | 1);
    for (size_t done = 0; done < count; done += 8) {
        uint64_t eight = 0;
        memcpy(&eight, values + done, count - done < 8 ? count - done : 8);
        /* from a byte to 4 bits each: by twos, by fours, by eights */
        eight &= 0x0f0f0f0f0f0f0f0f;
        eight = (eight | eight >> 4) & 0x00ff00ff00ff00ff;
        eight = (eight | eight >> 8) & 0x0000ffff0000ffff;
        eight |= eight >> 16;
        memcpy(out, &eight, 4);
        out += 4;
    }
    return (size_t)(out - start);
}
