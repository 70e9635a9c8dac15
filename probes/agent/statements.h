/* What a client library was asked for, without what a program puts into it: literals, query strings, passwords, arguments. No object is looked at. */
#ifndef PYTRACE_STATEMENTS_H
#define PYTRACE_STATEMENTS_H

#include <stdbool.h>
#include <stddef.h>

#define STATEMENT_BYTES 1000 /* of what is read, and of what is kept */

/* How the text of a statement is to be read; in `options` by the letter. */
enum {
    SQL_OF_ANY = 's',      /* of which database is not known */
    SQL_OF_POSTGRES = 'p', /* "..." is always a name */
    SQL_OF_MYSQL = 'm',    /* "..." is always a literal */
    METHOD_AND_URL = 'u',
    COMMAND = 'c',
    WORD = 'n',            /* a name, as of a task or an operation, up to the first blank */
};

/* What is written goes to the end of `text`, which has STATEMENT_BYTES + 1 bytes; what has no room is left out. */
struct written {
    char *text;
    size_t size;
    bool full;
};
void put_text(struct written *out, const char *from, size_t size);

/* Append the statement `in`, of `size` bytes, which may be its beginning only: without its literals. Where it is not certain what is a literal, as
 * behind a backslash before a quotation mark, which one database takes for the end and another does not, all that follows is "?". */
void put_sql(struct written *out, const char *in, size_t size, char dialect);
/* The same of a URL or a path, `cut` where that is its beginning only: without user, query string, fragment, and parts that are numbers or look like keys. */
void put_url(struct written *out, const char *in, size_t size, bool cut);
/* The same of a word of a command: the first one, else the name of an option; nothing of any other. */
void put_argument(struct written *out, const char *in, size_t size, bool first);
/* The same of a command as a shell reads it: its first word. */
void put_shell(struct written *out, const char *in, size_t size);
/* The same of a name. */
void put_word(struct written *out, const char *in, size_t size);
/* What a str holds, blanks and control characters as one blank. */
void put_raw(struct written *out, const char *in, size_t size);

#endif
