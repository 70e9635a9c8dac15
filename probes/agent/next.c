/* What a function of this library that has the name of another's stands before. dlsym() is not there in every program (build.h), so the tables that the
 * loader itself uses are read: of what was loaded behind this library, in its order. */
#define _GNU_SOURCE
#include "next.h"

#include <elf.h>
#include <link.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "build.h"

#define HIDDEN 0x8000 /* bit of a symbol's version: not the one that is meant by the name alone */

struct search {
    const char *name;
    uint32_t hash;
    bool behind; /* this library */
    void *found;
};

static uint32_t hash_of(const char *name)
{
    uint32_t hash = 5381;
    for (; *name; name++)
        hash = hash * 33 + (unsigned char)*name;
    return hash;
}

/* glibc has relocated what the table says, musl has not. */
static const void *at(ElfW(Addr) base, ElfW(Addr) address)
{
    return (const void *)(address < base ? base + address : address);
}

static void *symbol_in(ElfW(Addr) base, const ElfW(Dyn) *tables, const struct search *search)
{
    const uint32_t *hashes = NULL;
    const ElfW(Sym) *symbols = NULL;
    const ElfW(Half) *versions = NULL;
    const char *names = NULL;
    for (; tables->d_tag != DT_NULL; tables++) {
        const void *table = at(base, tables->d_un.d_ptr);
        if (tables->d_tag == DT_GNU_HASH)
            hashes = table;
        else if (tables->d_tag == DT_SYMTAB)
            symbols = table;
        else if (tables->d_tag == DT_STRTAB)
            names = table;
        else if (tables->d_tag == DT_VERSYM)
            versions = table;
    }
    if (!hashes || !symbols || !names || !*hashes)
        return NULL;
    uint32_t buckets = hashes[0], first = hashes[1], filter_words = hashes[2];
    const uint32_t *bucket = hashes + 4 + filter_words * (sizeof(ElfW(Addr)) / 4), *chain = bucket + buckets;
    uint32_t n = bucket[search->hash % buckets];
    for (bool last = n < first; !last; n++) {
        last = chain[n - first] & 1;
        if ((chain[n - first] | 1) == (search->hash | 1) && symbols[n].st_shndx != SHN_UNDEF && !(versions && versions[n] & HIDDEN) &&
            ELF64_ST_TYPE(symbols[n].st_info) == STT_FUNC && !strcmp(names + symbols[n].st_name, search->name))
            return (void *)(base + symbols[n].st_value);
    }
    return NULL;
}

static bool holds_us(const struct dl_phdr_info *library)
{
    ElfW(Addr) here = (ElfW(Addr))hash_of - library->dlpi_addr;
    for (int i = 0; i < library->dlpi_phnum; i++)
        if (library->dlpi_phdr[i].p_type == PT_LOAD && here - library->dlpi_phdr[i].p_vaddr < library->dlpi_phdr[i].p_memsz)
            return true;
    return false;
}

static int look_in(struct dl_phdr_info *library, size_t size, void *data)
{
    struct search *search = data;
    (void)size;
    if (!search->behind) {
        search->behind = holds_us(library);
        return 0;
    }
    for (int i = 0; i < library->dlpi_phnum; i++)
        if (library->dlpi_phdr[i].p_type == PT_DYNAMIC)
            search->found = symbol_in(library->dlpi_addr, (const ElfW(Dyn) *)(library->dlpi_addr + library->dlpi_phdr[i].p_vaddr), search);
    return search->found != NULL;
}

void *next_of(const char *name)
{
    struct search search = {.name = name, .hash = hash_of(name)};
    dl_iterate_phdr(look_in, &search);
    return search.found;
}
