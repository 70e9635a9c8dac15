/* How to get from a native function to its caller: a section .eh_frame as rows that a BPF program searches (probes/unwind.h).
 *
 * Format: DWARF 4, 6.4 (call frame information), and the Linux Standard Base, 10.6 (what .eh_frame has of its own). The section is
 * a file's that nobody trusts, and this runs in a process without rights: whatever its bytes are, nothing is read beyond its end,
 * and at most one row is made of each of its bytes. A function whose rules are none of those below gets rows without a rule. */
#include "../../probes/processor.h"
#include "../../probes/unwind.h"
#include "engine.h"

#include <stdlib.h>
#include <string.h>

#define RBP DWARF_FP
#define RSP DWARF_SP
#define RIP DWARF_RETURN
#define MOST_REMEMBERED 8

struct cursor {
    const uint8_t *at, *end;
    bool beyond; /* something was wanted that is not there */
};

struct section {
    const uint8_t *begin;
    uint64_t address;
};

/* What holds at a place of a function. */
struct state {
    uint8_t kind; /* UNWIND_* */
    int64_t cfa;
    int64_t rbp; /* how far below the CFA the caller's is; 0 = in rbp */
    int64_t rip; /* how far below the CFA the return address is, where there is a link register; 0 = in that */
};

/* A common information entry, as far as functions refer to it. */
struct common {
    uint64_t code_unit;
    int64_t data_unit;
    uint8_t encoding; /* of addresses, DW_EH_PE_* */
    bool augmented, signal;
    struct cursor program;
};

struct output {
    struct unwind_rule *rows;
    uint32_t *functions;
    size_t most_rows, most_functions, count, function_count;
};

struct function {
    uint64_t begin, end;
    const uint8_t *entry;
};

static uint64_t take(struct cursor *from, size_t size)
{
    uint64_t value = 0;
    if ((size_t)(from->end - from->at) < size) {
        from->beyond = true;
        from->at = from->end;
        return 0;
    }
    memcpy(&value, from->at, size);
    from->at += size;
    return value;
}

/* A number in LEB128, with or without a sign. */
static uint64_t take_leb128(struct cursor *from, bool has_sign)
{
    uint64_t value = 0, byte;
    unsigned shift = 0;
    do {
        byte = take(from, 1);
        value |= shift < 64 ? (byte & 127) << shift : 0;
        shift += 7;
    } while (byte & 128);
    return has_sign && byte & 64 && shift < 64 ? value | ~0ULL << shift : value;
}

static uint64_t take_unsigned(struct cursor *from)
{
    return take_leb128(from, false);
}

static int64_t take_signed(struct cursor *from)
{
    return (int64_t)take_leb128(from, true);
}

/* A block of so many bytes. */
static struct cursor take_block(struct cursor *from, uint64_t size)
{
    struct cursor block = {from->at, from->at, false};
    if ((uint64_t)(from->end - from->at) < size) {
        from->beyond = true;
        from->at = from->end;
    } else {
        from->at += size;
        block.end = from->at;
    }
    return block;
}

/* An address by DW_EH_PE_*: absolute, or from where it stands. `range`: a length, which is from nowhere. */
static uint64_t take_address(struct cursor *from, const struct section *in, uint8_t encoding, bool range)
{
    const uint64_t place = in->address + (uint64_t)(from->at - in->begin);
    uint64_t value;
    switch (encoding & 15) {
    case 0: case 4: case 12: value = take(from, 8); break;
    case 1: value = take_unsigned(from); break;
    case 2: value = take(from, 2); break;
    case 3: value = take(from, 4); break;
    case 9: value = (uint64_t)take_signed(from); break;
    case 10: value = (uint64_t)(int16_t)take(from, 2); break;
    case 11: value = (uint64_t)(int32_t)take(from, 4); break;
    default: from->beyond = true; return 0;
    }
    if (!range && (encoding & 0x70) == 0x10)
        value += place;
    else if (!range && encoding & 0x70)
        from->beyond = true;
    return value;
}

/* The entry that begins at `at`; false at the end. id: where it refers to, 0 of a common one. */
static bool entry_at(const uint8_t *end, const uint8_t *at, struct cursor *content, uint64_t *id, const uint8_t **id_at)
{
    struct cursor from = {at, end, false};
    uint64_t size = take(&from, 4);
    if (size == 0xffffffff)
        size = take(&from, 8);
    if (!size || from.beyond)
        return false;
    *content = take_block(&from, size);
    *id_at = content->at;
    *id = take(content, 4);
    return !from.beyond && !content->beyond;
}

static bool read_common(const struct section *in, const uint8_t *end, const uint8_t *at, struct common *out)
{
    struct cursor from;
    const uint8_t *id_at, *letters;
    uint64_t id, length = 0;

    if (!entry_at(end, at, &from, &id, &id_at) || id)
        return false;
    *out = (struct common){.encoding = 0};
    take(&from, 1); /* version */
    letters = from.at;
    while (take(&from, 1))
        length++;
    out->code_unit = take_unsigned(&from);
    out->data_unit = take_signed(&from);
    take_unsigned(&from); /* the column of the return address: that of rip, on this machine */
    if (from.beyond)
        return false;
    if (length && letters[0] == 'z') {
        struct cursor more = take_block(&from, take_unsigned(&from));
        out->augmented = true;
        for (uint64_t i = 1; i < length && !more.beyond; i++) {
            if (letters[i] == 'R') {
                out->encoding = (uint8_t)take(&more, 1);
            } else if (letters[i] == 'P') {
                const uint8_t encoding = (uint8_t)take(&more, 1);
                take_address(&more, in, encoding & 15, true);
            } else if (letters[i] == 'L') {
                take(&more, 1);
            } else if (letters[i] == 'S') {
                out->signal = true;
            }
        }
    } else if (length) {
        return false;
    }
    out->program = from;
    return !from.beyond;
}

/* What stands in .plt: the CFA depends on whether one word has been pushed by then. */
static const uint8_t PLT[] = {0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22};

static void set_kind(struct state *now, uint8_t kind)
{
    if (now->kind != UNWIND_END)
        now->kind = kind;
}

/* The rule of an expression that gives the CFA. */
static void set_expression(struct state *now, struct cursor block)
{
    set_kind(now, UNWIND_NONE);
    if (block.end - block.at == sizeof(PLT) && !memcmp(block.at, PLT, 5) && block.at[5] == PLT[5] && !memcmp(block.at + 7, PLT + 7, 4)) {
        set_kind(now, block.at[6] == PLT[6] ? UNWIND_PLT_11 : block.at[6] == PLT[6] - 1 ? UNWIND_PLT_10 : UNWIND_NONE);
        return;
    }
    if (block.at < block.end && *block.at == 0x70 + RBP) { /* DW_OP_breg6 n, DW_OP_deref: a stack that was aligned anew */
        block.at++;
        now->cfa = take_signed(&block);
        if (!block.beyond && block.end - block.at == 1 && *block.at == 6)
            set_kind(now, UNWIND_DEREF);
    }
}

#if HAS_LINK_REGISTER
static struct unwind_rule rule_of(uint64_t pc, const struct state *now)
{
    struct unwind_rule rule = {.pc = (uint32_t)pc, .kind = now->kind};
    const int64_t saved = now->rbp ? now->rbp : now->rip, above = now->cfa - saved;
    if (rule.kind == UNWIND_NONE || rule.kind == UNWIND_END)
        return rule;
    if (now->cfa % 8 || now->cfa / 8 != (int16_t)(now->cfa / 8) || (now->rbp && now->rip != now->rbp - 8) || (saved && (above % 8 || above < 0 || above / 8 > 254)))
        return (struct unwind_rule){.pc = (uint32_t)pc, .kind = UNWIND_NONE};
    if (!now->rbp && now->rip)
        rule.kind = rule.kind == UNWIND_RSP ? UNWIND_LINK : UNWIND_NONE;
    rule.cfa = (int16_t)(now->cfa / 8);
    rule.rbp = saved ? (uint8_t)(above / 8 + 1) : 0;
    return rule;
}
#else
static struct unwind_rule rule_of(uint64_t pc, const struct state *now)
{
    struct unwind_rule rule = {.pc = (uint32_t)pc, .kind = now->kind};
    if (now->cfa % 8 || now->cfa / 8 != (int16_t)(now->cfa / 8) || now->rbp % 8 || now->rbp / 8 != (uint8_t)(now->rbp / 8))
        rule.kind = UNWIND_NONE;
    if (rule.kind != UNWIND_NONE && rule.kind != UNWIND_END) {
        rule.cfa = (int16_t)(now->cfa / 8);
        rule.rbp = (uint8_t)(now->rbp / 8);
    }
    return rule;
}
#endif

/* Adds what holds from `pc` on. */
static void emit(struct output *out, uint64_t pc, const struct state *now)
{
    const struct unwind_rule rule = rule_of(pc, now);
    if (out->count && out->count <= out->most_rows && out->rows[out->count - 1].pc == rule.pc) {
        out->rows[out->count - 1] = rule;
        return;
    }
    if (out->count < out->most_rows)
        out->rows[out->count] = rule;
    out->count++;
}

static void set_register(struct state *now, uint64_t number)
{
    set_kind(now, number == RSP ? UNWIND_RSP : number == RBP ? UNWIND_RBP : UNWIND_NONE);
}

/* Where the caller's register is saved, from the CFA. */
static void save(struct state *now, uint64_t number, int64_t offset)
{
    if (number == RBP)
        now->rbp = -offset;
    else if (number == RIP && HAS_LINK_REGISTER)
        now->rip = -offset;
    else if (number == RIP && offset != -8)
        set_kind(now, UNWIND_NONE);
}

/* As it was at the function's beginning. */
static void restore(struct state *now, uint64_t number, const struct state *initial)
{
    if (number == RBP)
        now->rbp = initial ? initial->rbp : 0;
    else if (number == RIP && HAS_LINK_REGISTER)
        now->rip = initial ? initial->rip : 0;
}

/* Runs a program of call frame instructions, from `pc` on. `initial`: what DW_CFA_restore goes back to; NULL in a common entry.
 * `out`: NULL where no rows are wanted. */
static void run(struct cursor program, const struct section *in, const struct common *common, uint64_t pc, uint64_t end, struct state *now,
                const struct state *initial, struct output *out)
{
    struct state remembered[MOST_REMEMBERED];
    unsigned depth = 0;
    while (program.at < program.end && !program.beyond) {
        const uint8_t byte = *program.at++, low = byte & 63;
        uint64_t number, advance = 0;
        switch (byte & 0xc0 ? byte & 0xc0 : byte) {
        case 0x40: advance = low; break;                       /* advance_loc */
        case 0x80: save(now, low, (int64_t)take_unsigned(&program) * common->data_unit); continue;
        case 0xc0: restore(now, low, initial); continue;
        case 0x01: { /* set_loc */
            const uint64_t to = take_address(&program, in, common->encoding, false);
            if (to < pc || to > end)
                return;
            if (out)
                emit(out, pc, now);
            pc = to;
            continue;
        }
        case 0x02: advance = take(&program, 1); break;
        case 0x03: advance = take(&program, 2); break;
        case 0x04: advance = take(&program, 4); break;
        case 0x05: case 0x11: case 0x14: case 0x15: /* offset_extended(_sf), val_offset(_sf) */
            number = take_unsigned(&program);
            save(now, number, (byte & 1 && byte == 0x05 ? (int64_t)take_unsigned(&program) : take_signed(&program)) * common->data_unit);
            if (byte >= 0x14 && (number == RBP || number == RIP))
                set_kind(now, UNWIND_NONE);
            continue;
        case 0x06: restore(now, take_unsigned(&program), initial); continue; /* restore_extended */
        case 0x07: if (take_unsigned(&program) == RIP) now->kind = UNWIND_END; continue;                /* undefined */
        case 0x08: restore(now, take_unsigned(&program), NULL); continue;                               /* same_value */
        case 0x09: /* register */
            number = take_unsigned(&program);
            take_unsigned(&program);
            if (number == RBP || number == RIP)
                set_kind(now, UNWIND_NONE);
            continue;
        case 0x0a: if (depth < MOST_REMEMBERED) remembered[depth++] = *now; else return; continue;
        case 0x0b: if (depth) *now = remembered[--depth]; continue;
        case 0x0c: /* def_cfa */
            set_register(now, take_unsigned(&program));
            now->cfa = (int64_t)take_unsigned(&program);
            continue;
        case 0x0d: set_register(now, take_unsigned(&program)); continue;
        case 0x0e: now->cfa = (int64_t)take_unsigned(&program); continue;
        case 0x0f: set_expression(now, take_block(&program, take_unsigned(&program))); continue;
        case 0x10: case 0x16: { /* expression, val_expression */
            number = take_unsigned(&program);
            const struct cursor block = take_block(&program, take_unsigned(&program));
            /* rbp at rbp + 0: so it is below a CFA that UNWIND_DEREF gives */
            if (number == RBP && byte == 0x10 && block.end - block.at == 2 && block.at[0] == 0x70 + RBP && !block.at[1])
                now->rbp = 0;
            else if (number == RBP || number == RIP)
                set_kind(now, UNWIND_NONE);
            continue;
        }
        case 0x12: /* def_cfa_sf */
            set_register(now, take_unsigned(&program));
            now->cfa = take_signed(&program) * common->data_unit;
            continue;
        case 0x13: now->cfa = take_signed(&program) * common->data_unit; continue;
        case 0x2e: take_unsigned(&program); continue; /* GNU_args_size */
#if HAS_LINK_REGISTER
        case 0x2d: continue; /* AARCH64_negate_ra_state: the return address is signed, or no longer */
#endif
        case 0x00: continue;
        default: set_kind(now, UNWIND_NONE); return; /* what follows cannot be read */
        }
        if (out)
            emit(out, pc, now);
        advance *= common->code_unit;
        if (advance > end - pc)
            return;
        pc += advance;
    }
    if (out)
        emit(out, pc, now);
}

static int by_begin(const void *one, const void *other)
{
    const uint64_t a = ((const struct function *)one)->begin, b = ((const struct function *)other)->begin;
    return (a > b) - (a < b);
}

/* The functions of a section, in any order, their number; as many as there is room for are written. */
static size_t find(const struct section *in, const uint8_t *end, struct function *functions, size_t most)
{
    size_t count = 0;
    struct cursor content;
    const uint8_t *id_at;
    uint64_t id;

    for (const uint8_t *at = in->begin; entry_at(end, at, &content, &id, &id_at); at = content.end) {
        struct common common;
        if (!id || id > (uint64_t)(id_at - in->begin) || !read_common(in, end, id_at - id, &common))
            continue;
        const uint64_t begin = take_address(&content, in, common.encoding, false), size = take_address(&content, in, common.encoding, true);
        if (content.beyond || !size || begin >= 0xffffffff || size > 0xffffffff - begin)
            continue;
        if (count < most)
            functions[count] = (struct function){begin, begin + size, at};
        count++;
    }
    return count;
}

static void describe(const struct section *in, const uint8_t *end, const struct function *function, struct output *out)
{
    struct cursor content = {end, end, false};
    struct common common = {.encoding = 0};
    const uint8_t *id_at = end;
    uint64_t id = 0;
    struct state initial = {UNWIND_NONE, 0, 0, 0}, now;

    if (!entry_at(end, function->entry, &content, &id, &id_at) || !read_common(in, end, id_at - id, &common))
        return; /* find() has seen to it */
    take_address(&content, in, common.encoding, false);
    take_address(&content, in, common.encoding, true);
    if (common.augmented)
        take_block(&content, take_unsigned(&content));
    run(common.program, in, &common, 0, 0, &initial, NULL, NULL);
    now = initial;
    if (common.signal) /* the kernel's frame of a signal: not followed */
        emit(out, function->begin, &(struct state){UNWIND_NONE, 0, 0, 0});
    else
        run(content, in, &common, function->begin, function->end, &now, &initial, out);
}

/* Makes rows of a section of `size` bytes that is mapped at `address`: sorted by pc, each valid up to the next, and where its functions
 * begin. As many as there is room for are written; returns the number of rows, SIZE_MAX without memory. */
OFFERED size_t rebuild_unwind(const uint8_t *bytes, size_t size, uint64_t address, struct unwind_rule *rows, size_t most_rows, uint32_t *functions,
                              size_t most_functions, size_t *function_count)
{
    const struct section in = {bytes, address};
    const uint8_t *end = bytes + size;
    struct output out = {rows, functions, most_rows, most_functions, 0, 0};
    const size_t count = find(&in, end, NULL, 0);
    struct function *found = malloc((count + 1) * sizeof(*found));

    if (!found)
        return SIZE_MAX;
    uint64_t behind = 0;
    find(&in, end, found, count);
    qsort(found, count, sizeof(*found), by_begin);
    for (size_t i = 0; i < count; i++) {
        if (found[i].begin < behind) /* they overlap: that is none of a compiler's */
            continue;
        behind = found[i].end;
        if (out.function_count < most_functions)
            functions[out.function_count] = (uint32_t)found[i].begin;
        out.function_count++;
        describe(&in, end, &found[i], &out);
        if (i + 1 == count || found[i + 1].begin > behind)
            emit(&out, behind, &(struct state){UNWIND_NONE, 0, 0, 0});
    }
    free(found);
    *function_count = out.function_count;
    return out.count;
}
