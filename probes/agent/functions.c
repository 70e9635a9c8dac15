/* Takes in code objects: one table by address, kept exact when they die, and one by their text, for what is compiled again. */
#include "functions.h"

#include <string.h>
#include <sys/mman.h>

#include "arena.h"
#include "options.h"
#include "pages.h"
#include "qualnames.h"
#include "world.h"

#define LONGEST 4096
#define DEALLOC 40 /* from an object's type to PyTypeObject.tp_dealloc, over ob_size, tp_name, tp_basicsize and tp_itemsize */
#define MOST_NAMES (1 << 16) /* of arguments and types: a program may make any number of types */
#define MOST_STATEMENTS (1 << 14) /* different ones: a program may put values into them that we do not know for such */
#define SLAB (64 << 10)
#define RESUMABLE (0x20 | 0x80 | 0x200) /* CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR */

struct function_table *functions;
void (*function_seen)(const char *file);
void (*function_executes)(struct function_entry *), (*function_dies)(struct function_entry *);
uint32_t functions_generation = 1;
static size_t slots_used;
static struct function_entry *spare;
static struct function_entry nameless; /* for which there was no memory */
static void (*dealloc)(PyObject *); /* of code objects: what stood in the place of ours */
static bool is_there;               /* ours does, or did until somebody put his own in front of it */
static bool hears;                  /* every death is told */

static uint8_t left_out[(LAST_FUNCTION + 8) / 8]; /* a bit for each id */

struct text_slot {
    uint64_t hash;
    uint64_t record; /* offset in the arena, 0 = empty */
};
static struct text_slot *texts;
static size_t text_mask, texts_used, names, statements;

static size_t slot_for(const struct function_table *table, PyObject *code)
{
    size_t i = function_slot_of(table, code);
    while (table->slot[i] && table->slot[i]->code != code)
        i = (i + 1) & table->mask;
    return i;
}

/* NULL = there is none, or one of an interpreter that is gone, and left it. */
static struct function_entry *entry_of(PyObject *code)
{
    struct function_entry *entry = functions->slot[slot_for(functions, code)];
    return entry && entry->owner == owner_here ? entry : NULL;
}

static void set_slot(struct function_table *table, size_t i, struct function_entry *entry)
{
    __atomic_store_n(&table->slot[i], entry, __ATOMIC_RELEASE);
}

static size_t bytes_of_table(size_t slots)
{
    return sizeof(struct function_table) + slots * sizeof(struct function_entry *);
}

static bool grow_slots(void)
{
    size_t old_size = functions ? functions->mask + 1 : 0, size = functions ? 2 * old_size : 4096;
    struct function_table *old = functions, *bigger = pages(bytes_of_table(size));
    if (!bigger)
        return false;
    bigger->mask = size - 1;
    for (size_t i = 0; i < old_size; i++)
        if (old->slot[i])
            set_slot(bigger, slot_for(bigger, old->slot[i]->code), old->slot[i]);
    __atomic_store_n(&functions, bigger, __ATOMIC_RELEASE);
    return true; /* `old` stays: another thread may be reading it. All of these together are smaller than the one in use */
}

static void take_from_table(struct function_table *table, size_t hole)
{
    for (size_t i = hole;;) {
        set_slot(table, hole, NULL);
        do { /* the next one that may not stay behind the hole */
            i = (i + 1) & table->mask;
            if (!table->slot[i])
                return;
        } while (((i - function_slot_of(table, table->slot[i]->code)) & table->mask) < ((i - hole) & table->mask));
        set_slot(table, hole, table->slot[i]);
        hole = i;
    }
}

static void take_out(size_t place)
{
    struct function_entry *entry = functions->slot[place];
    take_from_table(functions, place);
    functions_generation++;
    slots_used--;
    entry->code = NULL;
    entry->next = spare;
    spare = entry;
}

/* The address of a code object that dies may be another's next. */
static void code_dies(PyObject *code)
{
    arena_lock();
    size_t place = slot_for(functions, code);
    struct function_entry *entry = functions->slot[place];
    if (entry && UNLIKELY(entry->executed != NULL))
        function_dies(entry);
    if (entry)
        take_out(place);
    arena_unlock();
}

static bool heard; /* since it was last asked */

/* In the place of PyCode_Type.tp_dealloc. */
static void on_death(PyObject *code)
{
    heard = true;
    if (LIKELY(hears))
        code_dies(code);
    dealloc(code);
}

static void (**place_of_dealloc(void))(PyObject *)
{
    return (void (**)(PyObject *))((char *)py.code_type + at->object_type + DEALLOC);
}

/* Whether what somebody else has put there since calls ours still. */
static bool is_called(void)
{
    heard = false;
    PyObject *code = py.PyCode_NewEmpty("", "", 1);
    if (code)
        py.Py_DecRef(code);
    py.PyErr_Clear();
    return heard;
}

/* Not by the extra space that code objects have for tools: CPython calls every tool's function for each code object to which any tool gave
 * some, also the function of one that is not there any more. */
static bool hear_of_deaths(void)
{
    void (**place)(PyObject *) = place_of_dealloc();
    if (is_there && *place != on_death && !is_called())
        return false;
    if (!is_there) {
        dealloc = *place;
        __atomic_store_n(place, on_death, __ATOMIC_RELEASE);
    }
    return hears = is_there = true;
}

static void forget_all(void)
{
    for (size_t i = 0; functions && i <= functions->mask; i++) {
        struct function_entry *entry = functions->slot[i];
        if (!entry)
            continue;
        set_slot(functions, i, NULL);
        entry->code = NULL;
        entry->next = spare;
        spare = entry;
    }
    functions_generation++;
    slots_used = 0;
}

const char *functions_begin(void)
{
    if (!functions && !grow_slots())
        return "There is no memory for the table of functions.";
    bool heard_before = hears;
    if (!hears && !hear_of_deaths())
        return "Another tool watches the deaths of code objects, and does not let the agent do so: end it.";
    arena_lock();
    if (!heard_before)
        forget_all();
    for (size_t i = 0; i <= functions->mask; i++)
        if (functions->slot[i])
            functions->slot[i]->flags = UNREPORTED;
    functions_generation++;
    arena_unlock();
    if (texts)
        munmap(texts, (text_mask + 1) * sizeof *texts);
    texts = NULL;
    text_mask = texts_used = names = statements = 0;
    memset(left_out, 0, sizeof left_out);
    return NULL;
}

void functions_end(void)
{
    void (**place)(PyObject *) = place_of_dealloc();
    hears = false;
    if (!dealloc || *place != on_death) /* somebody has put his own there, who may call ours: it hands on what it gets */
        return;
    __atomic_store_n(place, dealloc, __ATOMIC_RELEASE); /* which stays known for a thread that is on its way into ours */
    is_there = false;
}

static bool grow_texts(void)
{
    size_t size = texts ? 2 * (text_mask + 1) : 4096, old_size = texts ? text_mask + 1 : 0;
    struct text_slot *old = texts, *bigger = pages(size * sizeof *bigger);
    if (!bigger)
        return false;
    texts = bigger;
    text_mask = size - 1;
    for (size_t i = 0; i < old_size; i++)
        if (old[i].record) {
            size_t to = old[i].hash & text_mask;
            while (texts[to].record)
                to = (to + 1) & text_mask;
            texts[to] = old[i];
        }
    if (old)
        munmap(old, old_size * sizeof *old);
    return true;
}

/* A function's texts: file, name, qualified name; held by `owner`s where they are not the code object's own. */
struct texts {
    const char *text[3];
    size_t length[3];
    PyObject *owner[6];
    int owners;
    bool of_main; /* it is the main program's, where a pattern asks for that */
    uint32_t first_line, code_flags;
};

static void read_text(PyObject *code, const char *attribute, struct texts *t, int i)
{
    t->text[i] = "";
    t->length[i] = 0;
    PyObject *value = py.PyObject_GetAttrString(code, attribute);
    if (!value)
        goto failed;
    t->owner[t->owners++] = value;
    Py_ssize_t length;
    const char *text = py.PyUnicode_AsUTF8AndSize(value, &length);
    if (!text) { /* surrogates */
        py.PyErr_Clear();
        PyObject *bytes = py.PyUnicode_AsEncodedString(value, "utf-8", "backslashreplace");
        if (!bytes || !(text = py.PyBytes_AsString(bytes)))
            goto failed;
        t->owner[t->owners++] = bytes;
    }
    t->text[i] = text;
    t->length[i] = strnlen(text, LONGEST);
    return;
failed:
    py.PyErr_Clear();
}

static uint64_t hash_of(const struct texts *t, uint32_t first_line)
{
    uint64_t hash = 0xcbf29ce484222325ull ^ first_line;
    for (int i = 0; i < 3; i++)
        for (size_t j = 0; j <= t->length[i]; j++)
            hash = (hash ^ (j < t->length[i] ? (unsigned char)t->text[i][j] : 0)) * 0x100000001b3ull;
    return hash ^ hash >> 29;
}

static bool same(const struct function *record, const struct texts *t, uint32_t first_line)
{
    const char *text = (const char *)(record + 1);
    if (record->first_line != (int32_t)first_line)
        return false;
    for (int i = 0; i < 3; i++) {
        if (strncmp(text, t->text[i], t->length[i]) || text[t->length[i]])
            return false;
        text += t->length[i] + 1;
    }
    return true;
}

/* Where these texts are, or would be; NULL where there is no memory. */
static struct text_slot *text_slot_of(const struct texts *t, uint32_t first_line)
{
    if (texts_used * 2 >= text_mask && !grow_texts()) {
        arena->unnamed++;
        return NULL;
    }
    uint64_t hash = hash_of(t, first_line);
    size_t i = hash & text_mask;
    while (texts[i].record && !(texts[i].hash == hash && same(arena_function_at(texts[i].record), t, first_line)))
        i = (i + 1) & text_mask;
    texts[i].hash = hash;
    return &texts[i];
}

static uint32_t add_text(struct text_slot *slot, const struct texts *t, uint32_t first_line, uint32_t flags)
{
    uint64_t record = arena->functions_end;
    uint32_t id = arena_add_function(first_line, flags, t->text, t->length);
    if (id) {
        slot->record = record;
        texts_used++;
    }
    return id;
}

static uint32_t id_of(const struct texts *t, uint32_t first_line, uint32_t flags)
{
    struct text_slot *slot = text_slot_of(t, first_line);
    if (!slot)
        return 0;
    return slot->record ? arena_function_at(slot->record)->id : add_text(slot, t, first_line, flags);
}

bool function_is_left_out(uint32_t id)
{
    return left_out[id / 8] >> id % 8 & 1;
}

static uint32_t flag_left_out(const struct function_entry *entry)
{
    return function_is_left_out(entry->id) ? LEFT_OUT : 0;
}

/* Asks the code object, which may let other threads go first. */
static void read_texts(PyObject *code, struct texts *t)
{
    read_text(code, "co_filename", t, 0);
    read_text(code, "co_name", t, 1);
    t->first_line = long_attribute(code, "co_firstlineno") & 0x1ffffff;
    t->code_flags = long_attribute(code, "co_flags");
    t->of_main = options_ask_for_main() && is_of_main(t->text[0]);
    if (py.version >= 0x030b0000) {
        read_text(code, "co_qualname", t, 2);
        return;
    }
    qualnames_learn(code);
    t->text[2] = qualname_of(code, t->text[1], qualnames_identity(t->text[0], t->text[1], t->first_line)); /* "": user space may find it in the source */
    t->length[2] = strlen(t->text[2]);
}

static void publish(struct function_entry *entry, const struct texts *t)
{
    bool is_bare = !t->length[2], is_main = !owner_here; /* else it is calls alone */
    const char *name = is_bare ? t->text[1] : t->text[2];
    int client = is_main ? options_client(t->text[0], name, is_bare) : -1;
    uint32_t flags = options_want(t->text[0], client >= 0, t->of_main) ? 0 : UNWANTED;
    entry->resumable = (t->code_flags & RESUMABLE) != 0;
    if (!flags)
        entry->id = id_of(t, t->first_line, t->code_flags);
    flags |= flag_left_out(entry);
    entry->observed = (is_main && options_want_values(t->text[0], name, is_bare, t->of_main) ? OF_ARGS : 0) | (client >= 0 ? OF_CLIENT : 0);
    entry->client = client >= 0 ? client : 0;
    entry->lined = is_main && options_want_lines(t->text[0], name, is_bare, t->of_main);
    entry->secret = entry->observed & OF_ARGS && options_redact(t->text[1]);
    if (!strcmp(t->text[1], "_find_and_load") && !strcmp(t->text[0], "<frozen importlib._bootstrap>"))
        flags = (flags & ~LEFT_OUT) | IMPORTS;
    entry->executes = is_main && options_want_opcodes(t->text[0], name, is_bare, t->of_main) && !(flags & (UNWANTED | IMPORTS));
    __atomic_store_n(&entry->flags, flags, __ATOMIC_RELEASE);
}

uint32_t function_of_layer(uint32_t layer, const char *name)
{
    size_t length = strnlen(name, LONGEST);
    struct texts t = {.text = {"", name, name}, .length = {0, length, length}};
    arena_lock();
    uint32_t id = id_of(&t, -layer, 0);
    arena_unlock();
    return id;
}

static const struct function *text_record(const char *text, size_t *count, size_t most, bool redact)
{
    size_t length = strnlen(text, LONGEST);
    struct texts t = {.text = {text, "", ""}, .length = {length, 0, 0}};
    arena_lock();
    struct text_slot *slot = text_slot_of(&t, -NAME);
    if (slot && !slot->record && *count < most && add_text(slot, &t, -NAME, redact && options_redact(text)))
        ++*count;
    const struct function *record = slot && slot->record ? arena_function_at(slot->record) : NULL;
    arena_unlock();
    return record;
}

const struct function *name_record(const char *name)
{
    return text_record(name, &names, MOST_NAMES, true);
}

const struct function *statement_record(const char *text)
{
    return text_record(text, &statements, MOST_STATEMENTS, false);
}

static struct function_entry *add(PyObject *code)
{
    if (slots_used * 2 >= functions->mask && !grow_slots())
        return NULL;
    if (!spare) {
        struct function_entry *slab = pages(SLAB);
        if (!slab)
            return NULL;
        for (size_t i = 0; i < SLAB / sizeof *slab; i++) {
            slab[i].next = spare;
            spare = slab + i;
        }
    }
    struct function_entry *entry = spare;
    spare = entry->next;
    *entry = (struct function_entry){.flags = UNREPORTED, .owner = owner_here};
    __atomic_store_n(&entry->code, code, __ATOMIC_RELEASE);
    set_slot(functions, slot_for(functions, code), entry);
    slots_used++;
    return entry;
}

/* The entry of a code object with these texts, published. NULL = there is no memory. */
static struct function_entry *publish_code(PyObject *code, const struct texts *t, bool *is_first)
{
    arena_lock();
    struct function_entry *entry = entry_of(code);
    size_t place = slot_for(functions, code);
    if (!entry && functions->slot[place])
        take_out(place);
    if (!entry)
        entry = add(code);
    *is_first = entry && entry->flags & UNREPORTED;
    if (*is_first)
        publish(entry, t);
    else if (!entry)
        arena->unnamed++;
    arena_unlock();
    return entry;
}

static struct function_entry *take_in(PyObject *code)
{
    struct texts t = {.owners = 0};
    bool is_first;
    PyObject *type, *value, *traceback;
    py.PyErr_Fetch(&type, &value, &traceback);
    read_texts(code, &t);
    struct function_entry *entry = publish_code(code, &t, &is_first);
    if (is_first && UNLIKELY(function_seen != NULL))
        function_seen(t.text[0]);
    while (t.owners)
        py.Py_DecRef(t.owner[--t.owners]);
    if (is_first && UNLIKELY(entry->executes))
        function_executes(entry);
    py.PyErr_Restore(type, value, traceback);
    return entry;
}

struct function_entry *function_unknown(PyObject *code)
{
    arena_lock();
    struct function_entry *entry = entry_of(code);
    uint32_t flags = entry ? entry->flags : UNREPORTED;
    arena_unlock();
    if (UNLIKELY(!entry && type_of(code) != py.code_type)) /* a C extension reports events (PyMonitoring_...) of what it likes */
        return NULL;
    if (flags & UNREPORTED) {
        within_agent(true);
        entry = take_in(code);
        flags = entry ? entry->flags : 0;
        within_agent(false);
    }
    return !entry ? &nameless : flags ? NULL : entry;
}

struct function_entry *function_reported(PyObject *code)
{
    arena_lock();
    struct function_entry *entry = entry_of(code);
    bool reported = entry && !(entry->flags & UNREPORTED);
    arena_unlock();
    return reported ? entry : NULL;
}

bool functions_leave_out(const uint32_t *ids, uint32_t count)
{
    bool back = false;
    functions_generation++;
    memset(left_out, 0, sizeof left_out);
    for (uint32_t k = 0; k < count; k++)
        if (ids[k] && ids[k] <= LAST_FUNCTION)
            left_out[ids[k] / 8] |= 1 << ids[k] % 8;
    for (size_t i = 0; i <= functions->mask; i++) {
        struct function_entry *entry = functions->slot[i];
        if (!entry || entry->flags & (UNREPORTED | UNWANTED | IMPORTS))
            continue;
        uint32_t before = entry->flags & LEFT_OUT, now = flag_left_out(entry);
        if (now && !before)
            entry->flags = LEFT_OUT | LEAVING;
        else if (before && !now)
            entry->flags = RETURNING;
        back |= before && !now;
    }
    return back;
}

void functions_settle(bool forget)
{
    for (size_t i = 0; i <= functions->mask; i++) {
        struct function_entry *entry = functions->slot[i];
        if (entry && forget)
            entry->odd = 0, entry->flags &= ~(LEAVING | BACK);
        else if (entry && entry->flags & RETURNING)
            entry->flags = entry->odd ? BACK : 0;
        else if (entry)
            entry->flags &= ~LEAVING;
    }
}

struct function_entry *function_importing(PyObject *code)
{
    struct function_entry *entry = function_reported(code);
    return entry && entry->flags & IMPORTS ? entry : NULL;
}
