/* The calling-context tree: calls and their sums by the functions they were called through.
 *
 * The first node is the root of all; each thread has a root below it. Programs that walk trees make as many contexts as there
 * are shapes of trees: once there are `most` nodes, what has no node yet goes to one of its function's own, right below the
 * root of all. With `most` = 1 all do: sums by function. Whether a call is the outermost of its function and of its module is
 * part of its node, so these sums are right there too. */
#include <stdlib.h>
#include <string.h>

#include "stack.h"
#include "engine.h"

#define FEW 1024
#define MANY (1 << 17) /* nodes, whose memory is worth giving back */

static uint64_t hash_of(uint32_t parent, int32_t func, uint8_t outermost)
{
    return hash(((uint64_t)parent << 32 | (uint32_t)func) ^ (uint64_t)outermost << 30);
}

static void put(struct tree *tree, size_t at, uint64_t hashed, uint32_t number)
{
    while (tree->slot[at])
        at = (at + 1) & (tree->slots - 1);
    tree->slot[at] = (hashed & ~(uint64_t)UINT32_MAX) | number;
}

static bool more_slots(struct tree *tree)
{
    size_t slots = tree->slots ? tree->slots * 2 : FEW;
    uint64_t *slot = calloc(slots, sizeof *slot);
    if (!slot)
        return false;
    free(tree->slot);
    tree->slot = slot;
    tree->slots = slots;
    for (size_t number = 1; number < tree->count; number++) {
        const struct node *node = &tree->node[number];
        uint64_t hashed = hash_of(node->parent, node->func, node->outermost);
        if (node->thread == NO_THREAD)
            put(tree, hashed >> 20 & (slots - 1), hashed, (uint32_t)number);
    }
    return true;
}

static bool root_of_all(struct tree *tree)
{
    if (tree->count)
        return true;
    if (!room(&tree->node, &tree->capacity, 1, sizeof *tree->node))
        return false;
    tree->node[tree->count++] = (struct node){.func = -1, .thread = NO_THREAD, .depth = -1};
    return true;
}

static bool new_node(struct tree *tree, uint32_t parent, int32_t func, uint8_t outermost, uint32_t thread, uint32_t *number)
{
    if (tree->count >= UINT32_MAX / 2 || !root_of_all(tree) || !room(&tree->node, &tree->capacity, tree->count + 1, sizeof *tree->node))
        return false;
    int32_t depth = thread == NO_THREAD ? tree->node[parent].depth + 1 : -1;
    *number = (uint32_t)tree->count;
    tree->node[tree->count++] = (struct node){.parent = parent, .func = func, .outermost = outermost, .thread = thread, .depth = depth};
    return true;
}

/* The root of a thread's calls. */
bool tree_root(struct tree *tree, uint32_t thread, uint32_t *node)
{
    return new_node(tree, 0, -1, 0, thread, node);
}

static void entered(struct tree *tree, uint32_t parent, uint32_t *newest, uint32_t node)
{
    tree->node[*newest ? *newest : parent].follows[!*newest] = node;
    *newest = node;
}

/* The node of a call below `parent`. `newest`: that of the call before it from the same one, 0 none; becomes the node. False: no memory. */
bool tree_child(struct tree *tree, uint32_t parent, int32_t func, uint8_t outermost, uint32_t *newest, uint32_t *node)
{
    if (tree_again(tree, parent, func, outermost, newest, node))
        return true;
    if (tree->count * 2 >= tree->slots && !more_slots(tree))
        return false;
    for (;;) {
        uint64_t hashed = hash_of(parent, func, outermost);
        size_t at = hashed >> 20 & (tree->slots - 1);
        for (; tree->slot[at]; at = (at + 1) & (tree->slots - 1)) {
            if ((tree->slot[at] ^ hashed) >> 32)
                continue;
            *node = (uint32_t)tree->slot[at];
            if (tree_is(&tree->node[*node], parent, func, outermost))
                return entered(tree, parent, newest, *node), true;
        }
        if (parent && tree->count >= tree->most) {
            parent = 0;
            continue;
        }
        if (!new_node(tree, parent, func, outermost, NO_THREAD, node))
            return false;
        put(tree, at, hashed, *node);
        return entered(tree, parent, newest, *node), true;
    }
}

/* No calls yet, and nodes for those that are open and count; of these it will have only the ends. False: no memory. */
bool tree_begin_anew(struct engine *engine)
{
    if (engine->tree.count > MANY) {
        tree_free(&engine->tree);
        engine->tree = (struct tree){.most = engine->tree.most};
    }
    engine->tree.count = 0;
    engine->tree_ns = engine->end_ns;
    sites_begin_anew(&engine->sites);
    if (engine->tree.slots)
        memset(engine->tree.slot, 0, engine->tree.slots * sizeof *engine->tree.slot);
    for (size_t k = 0; k < engine->threads; k++) {
        struct thread *thread = engine->thread[k];
        thread->has_root = thread->looks_back = thread->is_late = false;
        thread->kept = engine->wants_tree ? thread->sequence : 0;
        thread->goners = 0;
        for (size_t at = 0; at < thread->depth; at++) {
            thread->calls[at].node = 0;
            thread->calls[at].unknown_below = (uint8_t)((thread->calls[at].unknown_below | thread->calls[at].unknown_below << 4) & 0xf0);
        }
        if (engine->wants_tree && thread->phase == WITHIN && thread->depth && !calls_plant(engine, thread))
            return false;
    }
    return true;
}

void tree_free(struct tree *tree)
{
    free(tree->node);
    free(tree->slot);
}

/* --- parts of a tree --- */

OFFERED bool rebuild_new_tree(struct engine *engine)
{
    return tree_begin_anew(engine) || (engine->error = NO_MEMORY, false);
}

/* The nodes that calls ended in, and those above them, numbered anew; returns how many. `nodes` may be NULL. */
OFFERED size_t rebuild_packed(const struct engine *engine, struct node *nodes)
{
    const struct tree *tree = &engine->tree;
    uint32_t *number = calloc(tree->count + 1, sizeof *number), made = 0;
    if (!number)
        return NONE;
    for (size_t k = tree->count; k--;)
        if ((tree->node[k].calls && k) || number[k])
            number[k] = number[tree->node[k].parent] = 1;
    for (size_t k = 0; k < tree->count; k++) {
        if (!number[k] && k)
            continue;
        number[k] = made++;
        if (nodes) {
            nodes[number[k]] = tree->node[k];
            nodes[number[k]].parent = number[tree->node[k].parent];
            nodes[number[k]].follows[0] = nodes[number[k]].follows[1] = nodes[number[k]].site = 0;
        }
    }
    free(number);
    return made;
}

/* The node of this engine for one of another's, below `parent`. */
static bool same_node(struct engine *engine, const struct node *other, uint32_t parent, const int64_t *keys, size_t threads, uint32_t *node)
{
    uint32_t none = 0;
    if (other->thread == NO_THREAD)
        return tree_child(&engine->tree, parent, other->func, other->outermost & 3, &none, node);
    if (other->thread >= threads || other->parent)
        return false;
    struct thread *thread = engine_thread(engine, (int32_t)(keys[other->thread] >> 32), (int32_t)keys[other->thread]);
    if (!thread || (!thread->has_root && !tree_root(&engine->tree, thread->number, &thread->root)))
        return false;
    thread->has_root = true;
    *node = thread->root;
    return true;
}

/* Add what rebuild_packed() of an engine with the threads `keys` (rebuild_keys) made. False where it is none: then the tree is of no
 * further use. */
OFFERED bool rebuild_merge(struct engine *engine, const struct node *nodes, size_t count, const int64_t *keys, size_t threads)
{
    uint32_t *number = malloc((count + 1) * sizeof *number);
    bool fine = number && engine->wants_tree && (!count || root_of_all(&engine->tree));
    for (size_t k = 0; fine && k < count; k++) {
        const struct node *other = &nodes[k];
        number[k] = 0;
        fine = k ? other->parent < k && same_node(engine, other, number[other->parent], keys, threads, &number[k]) : true;
        if (!fine || !k)
            continue;
        struct node *node = &engine->tree.node[number[k]];
        node->calls += other->calls;
        sums_merge(&node->total, &other->total);
        sums_merge(&node->self, &other->self);
    }
    free(number);
    if (!fine && !engine->error)
        engine->error = number ? STRANGE_STATE : NO_MEMORY;
    return fine;
}
