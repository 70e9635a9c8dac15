/* What the compiler made of the structs of agent.h, as text: one line a field. */
#include <stddef.h>

#include "agent.h"
#include "build.h"

#define NUMPY_TYPE(type) \
    _Generic((type)0, uint64_t : 'u', uint32_t : 'u', uint16_t : 'u', uint8_t : 'u', int64_t : 'i', int32_t : 'i', char : 'S')
#define DIGITS(n) {'0' + (n) / 1000 % 10, '0' + (n) / 100 % 10, '0' + (n) / 10 % 10, '0' + (n) % 10}

/* A line without the NULs of its parts, so that the lines stand side by side as one string. */
#define LINE(holder, name) \
    struct { \
        char field[sizeof #holder + sizeof #name], type[3], offset[4], space, count[4], end; \
    } holder##_##name;
#define LINE_OF_FIELD_arena(type, name) LINE(arena, name)
#define LINE_OF_ARRAY_arena(type, name, count) LINE(arena, name)
#define LINE_OF_FIELD_chunk(type, name) LINE(chunk, name)
#define LINE_OF_FIELD_function(type, name) LINE(function, name)
#define LINE_OF_FIELD_event(type, name) LINE(event, name)
#define LINE_OF_FIELD_value(type, name) LINE(value, name)
#define LINE_OF_FIELD_allocations(type, name) LINE(allocations, name)
#define LINE_OF_FIELD_opcode(type, name) LINE(opcode, name)
#define LINE_OF_ARRAY_value(type, name, count) LINE(value, name)
#define NO_ARRAY(type, name, count)

#define TEXT(holder, type, name, count) \
    {#holder " " #name " ", {NUMPY_TYPE(type), '0' + sizeof(type), ' '}, DIGITS(offsetof(struct holder, name)), ' ', DIGITS(count), '\n'},
#define TEXT_OF_FIELD_arena(type, name) TEXT(arena, type, name, 1)
#define TEXT_OF_ARRAY_arena(type, name, count) TEXT(arena, type, name, count)
#define TEXT_OF_ARRAY_value(type, name, count) TEXT(value, type, name, count)
#define TEXT_OF_FIELD_chunk(type, name) TEXT(chunk, type, name, 1)
#define TEXT_OF_FIELD_function(type, name) TEXT(function, type, name, 1)
#define TEXT_OF_FIELD_event(type, name) TEXT(event, type, name, 1)
#define TEXT_OF_FIELD_value(type, name) TEXT(value, type, name, 1)
#define TEXT_OF_FIELD_allocations(type, name) TEXT(allocations, type, name, 1)
#define TEXT_OF_FIELD_opcode(type, name) TEXT(opcode, type, name, 1)

static const struct {
    ARENA_FIELDS(LINE_OF_FIELD_arena, LINE_OF_ARRAY_arena)
    CHUNK_FIELDS(LINE_OF_FIELD_chunk, NO_ARRAY)
    FUNCTION_FIELDS(LINE_OF_FIELD_function, NO_ARRAY)
    EVENT_FIELDS(LINE_OF_FIELD_event, NO_ARRAY)
    VALUE_FIELDS(LINE_OF_FIELD_value, LINE_OF_ARRAY_value)
    ALLOCATIONS_FIELDS(LINE_OF_FIELD_allocations, NO_ARRAY)
    OPCODE_FIELDS(LINE_OF_FIELD_opcode, NO_ARRAY)
    char nul;
} text = {
    ARENA_FIELDS(TEXT_OF_FIELD_arena, TEXT_OF_ARRAY_arena)
    CHUNK_FIELDS(TEXT_OF_FIELD_chunk, NO_ARRAY)
    FUNCTION_FIELDS(TEXT_OF_FIELD_function, NO_ARRAY)
    EVENT_FIELDS(TEXT_OF_FIELD_event, NO_ARRAY)
    VALUE_FIELDS(TEXT_OF_FIELD_value, TEXT_OF_ARRAY_value)
    ALLOCATIONS_FIELDS(TEXT_OF_FIELD_allocations, NO_ARRAY)
    OPCODE_FIELDS(TEXT_OF_FIELD_opcode, NO_ARRAY)
    0
};

extern const char pytrace_layout[sizeof text] __attribute__((alias("text"))) EXPORT;
