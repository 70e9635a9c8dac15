/* Room for an array that grows. */
#include <stdlib.h>
#include <string.h>

#include "common.h"

bool room(void *array, size_t *capacity, size_t wanted, size_t size)
{
    if (wanted <= *capacity)
        return true;
    size_t more = *capacity < 8 ? 16 : *capacity * 2;
    if (more < wanted)
        more = wanted;
    void *old, *fresh;
    memcpy(&old, array, sizeof old);
    if (more > SIZE_MAX / size || !(fresh = realloc(old, more * size)))
        return false;
    memcpy(array, &fresh, sizeof fresh);
    *capacity = more;
    return true;
}
