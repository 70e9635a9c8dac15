/* The paths that the calls of one thread come to, each once, by the begins and ends of the calls. */
#include <stdlib.h>

#include "engine.h"

/* `does`: of each event the number (>= 0, below 2^31) of what begins, or -1 where the innermost call ends. Of each path, a caller's before those that it
 * leads to, its caller's (-1 none) and what it is of; `after`: the path after each event, -1 out of all. All have room for `count`.
 * Returns how many paths there are; SIZE_MAX: no memory. */
OFFERED size_t rebuild_paths(const int64_t *does, size_t count, int64_t *parent, int64_t *of, int64_t *after)
{
    struct places numbers = {0};
    int64_t now = -1;
    size_t paths = 0;
    for (size_t k = 0; k < count; k++) {
        if (does[k] < 0) {
            now = now < 0 ? -1 : parent[now];
        } else {
            int64_t key = (now + 1) << 31 | (does[k] & INT32_MAX);
            uint32_t known = places_find(&numbers, key);
            if (known == NO_PLACE) {
                if (paths == NO_PLACE || !places_put(&numbers, key, (uint32_t)paths)) {
                    paths = SIZE_MAX;
                    break;
                }
                parent[paths] = now;
                of[paths] = does[k];
                known = (uint32_t)paths++;
            }
            now = known;
        }
        after[k] = now;
    }
    free(numbers.slot);
    return paths;
}
