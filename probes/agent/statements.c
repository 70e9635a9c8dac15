/* Takes literals out of SQL, and what is private out of URLs and commands, in one pass from left to right. */
#include "statements.h"

#include <string.h>
#include <strings.h>

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (unsigned char)c >= 0x80;
}

static bool is_blank(char c)
{
    return (unsigned char)c <= ' ' || c == 0x7f;
}

static bool in_name(char c)
{
    return is_letter(c) || is_digit(c) || c == '$';
}

void put_text(struct written *out, const char *from, size_t size)
{
    size_t room = STATEMENT_BYTES - out->size;
    if (size > room) {
        out->full = true;
        for (size = room; size && ((unsigned char)from[size] & 0xc0) == 0x80; size--)
            ; /* whole characters */
    }
    memcpy(out->text + out->size, from, size);
    out->size += size;
    out->text[out->size] = 0;
}

static bool ends_with(const struct written *out, const char *end)
{
    size_t size = strlen(end);
    return out->size >= size && !memcmp(out->text + out->size - size, end, size);
}

static void put_blank(struct written *out)
{
    if (out->size && !ends_with(out, " "))
        put_text(out, " ", 1);
}

/* One for a literal; of a list of them the first. */
static void put_mark(struct written *out)
{
    static const char *const lists[] = {"?, ", "?,", "?, ..., ", "?, ...,"};
    for (int i = 0; i < 4; i++)
        if (ends_with(out, lists[i])) {
            out->size -= strlen(lists[i]);
            put_text(out, "?, ...", 6);
            return;
        }
    put_text(out, "?", 1);
}

struct sql {
    const char *at, *end;
    struct written *out;
    char dialect;
    bool unsure; /* what follows may be a literal */
    int depth;        /* of parentheses */
    char word[12];    /* the last one, "" where something else came since */
};

/* Behind what `mark` opens, where it stands twice for itself; unsure where a backslash stands before it. */
static void skip_quoted(struct sql *s, char mark)
{
    for (s->at++; s->at < s->end; s->at++) {
        if (*s->at != mark)
            continue;
        if (s->at[-1] == '\\') {
            s->unsure = true;
            return;
        }
        if (s->at + 1 < s->end && s->at[1] == mark)
            s->at++;
        else {
            s->at++;
            return;
        }
    }
}

static bool follows_word(const struct sql *s, const char *const *words)
{
    for (; *words; words++)
        if (!strcasecmp(s->word, *words))
            return true;
    return false;
}

/* Whether "..." can be nothing but a name. */
static bool is_quoted_name(const struct sql *s, const char *begin)
{
    static const char *const before[] = {"INTO", "UPDATE", "TABLE", "JOIN", "SET", "AS", NULL}, *const outside[] = {"FROM", NULL};
    if (s->dialect == SQL_OF_POSTGRES)
        return true;
    if (s->dialect == SQL_OF_MYSQL || s->at[-1] != '"' || s->at - begin < 2)
        return false;
    return ends_with(s->out, ".") || (s->at < s->end && *s->at == '.') || follows_word(s, before) || (!s->depth && follows_word(s, outside));
}

static void take_double_quoted(struct sql *s)
{
    const char *begin = s->at;
    skip_quoted(s, '"');
    if (!s->unsure && is_quoted_name(s, begin))
        put_text(s->out, begin, s->at - begin);
    else
        put_mark(s->out);
}

/* A ' right behind a word that is no prefix of literals, as in [it's]: this is no SQL that we know. */
static bool opens_oddly(const struct sql *s, const char *start)
{
    const char *begin = s->at;
    while (begin > start && in_name(begin[-1]))
        begin--;
    size_t size = s->at - begin;
    return size > 1 && *begin != '_';
}

/* $tag$ ... $tag$; false where none begins here. */
static bool take_dollar_quoted(struct sql *s)
{
    const char *tag = s->at, *p = tag + 1;
    if (s->dialect == SQL_OF_MYSQL || (p < s->end && is_digit(*p)))
        return false;
    while (p < s->end && in_name(*p) && *p != '$')
        p++;
    if (p == s->end || *p != '$')
        return false;
    size_t size = ++p - tag;
    while (p < s->end && !((size_t)(s->end - p) >= size && !memcmp(p, tag, size)))
        p++;
    s->at = p < s->end ? p + size : s->end;
    put_mark(s->out);
    return true;
}

/* To the end of the line. A database may take these characters for another thing than a comment. */
static void skip_line(struct sql *s)
{
    bool dashes = *s->at == '-';
    s->unsure = dashes ? s->dialect != SQL_OF_POSTGRES && s->at + 2 < s->end && !is_blank(s->at[2]) : s->dialect != SQL_OF_MYSQL;
    while (s->at < s->end && *s->at != '\n')
        s->at++;
}

static void skip_comment(struct sql *s)
{
    int depth = 0;
    while (s->at < s->end) {
        bool two = s->at + 1 < s->end;
        if (two && s->at[0] == '/' && s->at[1] == '*') {
            s->unsure = depth && s->dialect != SQL_OF_POSTGRES; /* where they do not nest */
            if (s->unsure)
                return;
            depth++;
            s->at += 2;
        } else if (two && s->at[0] == '*' && s->at[1] == '/') {
            s->at += 2;
            if (!--depth)
                return;
        } else {
            s->at++;
        }
    }
}

static void skip_number(struct sql *s)
{
    for (s->at++; s->at < s->end && (in_name(*s->at) || *s->at == '.' || ((*s->at == '+' || *s->at == '-') && (s->at[-1] | 32) == 'e')); s->at++)
        ;
    put_mark(s->out);
}

static void take_name(struct sql *s)
{
    const char *begin = s->at;
    while (s->at < s->end && in_name(*s->at))
        s->at++;
    size_t size = s->at - begin;
    put_text(s->out, begin, size);
    size = size < sizeof s->word ? size : 0;
    memcpy(s->word, begin, size);
    s->word[size] = 0;
}

/* `name`, and parameters such as :name, @name, $1, ?1: kept as they are. */
static void take_kept(struct sql *s)
{
    const char *begin = s->at++;
    if (*begin == '`')
        while (s->at < s->end && *s->at++ != '`')
            ;
    else
        while (s->at < s->end && in_name(*s->at))
            s->at++;
    put_text(s->out, begin, s->at - begin);
}

/* [name] or a subscript with a quotation mark in it. */
static bool holds_quote(const struct sql *s)
{
    const char *p = s->at;
    while (p < s->end && *p != ']' && *p != '\'' && *p != '"')
        p++;
    return p < s->end && *p != ']';
}

static void take_token(struct sql *s, const char *start)
{
    char c = *s->at, next = s->at + 1 < s->end ? s->at[1] : 0;
    if (is_blank(c)) {
        put_blank(s->out);
        s->at++;
        return; /* s->word stays */
    }
    if (is_letter(c)) {
        take_name(s);
        return;
    }
    if ((c == '-' && next == '-') || (c == '#' && s->dialect != SQL_OF_POSTGRES)) {
        skip_line(s);
    } else if (c == '/' && next == '*') {
        skip_comment(s);
    } else if (c == '\'') {
        s->unsure = opens_oddly(s, start);
        if (!s->unsure)
            skip_quoted(s, c);
        put_mark(s->out);
    } else if (c == '"') {
        take_double_quoted(s);
    } else if (is_digit(c) || (c == '.' && is_digit(next))) {
        skip_number(s);
    } else if (c == '$' && take_dollar_quoted(s)) {
    } else if (c == '`' || ((c == ':' || c == '@' || c == '$' || c == '?') && in_name(next))) {
        take_kept(s);
    } else if (c == '[' && s->dialect == SQL_OF_ANY && holds_quote(s)) {
        s->unsure = true;
    } else {
        s->depth += (c == '(') - (c == ')');
        put_text(s->out, s->at++, 1);
    }
    s->word[0] = 0;
}

void put_sql(struct written *out, const char *in, size_t size, char dialect)
{
    struct sql s = {.at = in, .end = in + size, .out = out, .dialect = dialect};
    while (s.at < s.end && !s.unsure)
        take_token(&s, in);
    if (s.unsure && !ends_with(out, "?"))
        put_mark(out);
    while (ends_with(out, " "))
        out->text[--out->size] = 0;
}

/* A part of a path that is a number, or may be a key or a password. */
static bool looks_private(const char *from, size_t size)
{
    size_t digits = 0, others = 0;
    for (size_t i = 0; i < size; i++) {
        digits += is_digit(from[i]);
        others += !is_digit(from[i]) && from[i] != '-' && from[i] != '.';
    }
    if (size >= 32 || memchr(from, '=', size) || (size > 1 && memchr(from + 1, '@', size - 1)))
        return true;
    return digits && (!others || size >= 16 || memchr(from, ':', size));
}

static void put_path(struct written *out, const char *at, const char *end, bool cut)
{
    while (at < end && *at != '?' && *at != '#' && *at != ';' && !is_blank(*at)) {
        const char *part = at;
        while (at < end && *at != '/' && *at != '?' && *at != '#' && *at != ';' && !is_blank(*at))
            at++;
        bool is_private = looks_private(part, at - part) || (cut && at == end);
        put_text(out, is_private ? "?" : part, is_private ? 1 : at - part);
        if (at < end && *at == '/')
            put_text(out, at++, 1);
    }
}

/* The end of what stands before the path of a URL whose host begins at `host`; NULL where that is none. */
static const char *end_of_host(const char *host, const char *end)
{
    const char *at = host, *colon = NULL;
    for (; at < end && *at != '/' && *at != '?' && *at != '#' && !is_blank(*at); at++)
        colon = *at == ':' ? at : *at == ']' ? NULL : colon;
    while (colon && ++colon < at)
        if (!is_digit(*colon))
            return NULL;
    return at;
}

void put_url(struct written *out, const char *in, size_t size, bool cut)
{
    const char *end = in + size, *host = in, *at = in;
    while (at < end && (in_name(*at) || *at == '+' || *at == '-'))
        at++;
    if (end - at < 3 || memcmp(at, "://", 3)) {
        put_path(out, in, end, cut);
        return;
    }
    put_text(out, in, at + 3 - in);
    host = at += 3;
    for (; at < end && *at != '/' && *at != '?' && *at != '#'; at++)
        if (*at == '@')
            host = at + 1;
    const char *path = end_of_host(host, end);
    if (!path || (cut && path == end)) {
        put_text(out, "?", 1);
        return;
    }
    put_text(out, host, path - host);
    put_path(out, path, end, cut);
}

void put_word(struct written *out, const char *in, size_t size)
{
    size_t length = 0;
    while (length < size && !is_blank(in[length]))
        length++;
    put_text(out, in, length);
}

void put_argument(struct written *out, const char *in, size_t size, bool first)
{
    if (first) {
        put_word(out, in, size);
        return;
    }
    if (size < 2 || *in != '-')
        return;
    size_t length = 2; /* -x, of -xVALUE as well */
    if (in[1] == '-')
        while (length < size && (is_letter(in[length]) || in[length] == '-'))
            length++;
    else if (!is_letter(in[1]))
        return;
    if (length < 2 || (length == 2 && in[1] == '-'))
        return;
    put_text(out, " ", 1);
    put_text(out, in, length);
}

void put_shell(struct written *out, const char *in, size_t size)
{
    size_t begin = 0, end;
    while (begin < size && is_blank(in[begin]))
        begin++;
    for (end = begin; end < size && (in_name(in[end]) || strchr("/.-+", in[end])) && in[end]; end++)
        ;
    bool is_word = end > begin && (end == size || is_blank(in[end]));
    put_text(out, is_word ? in + begin : "?", is_word ? end - begin : 1);
}

void put_raw(struct written *out, const char *in, size_t size)
{
    for (size_t i = 0, length; i < size; i += length) {
        for (length = 0; i + length < size && !is_blank(in[i + length]); length++)
            ;
        put_text(out, in + i, length);
        if (i + length < size) {
            put_blank(out);
            length++;
        }
    }
}
