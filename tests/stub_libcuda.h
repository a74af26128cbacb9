/* What a libcuda of tests is asked for first: the bindings find every other call by its name. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { SUCCESS = 0, NOT_FOUND = 500 };
typedef struct { const char *name; void *call; } known_call;

static int look_up(const known_call *known, unsigned count, const char *symbol, void **found, int *status) {
    for (unsigned at = 0; at < count; at++) {
        if (strcmp(known[at].name, symbol) == 0) {
            *found = known[at].call;
            if (status) *status = 0;
            return SUCCESS;
        }
    }
    *found = NULL;
    if (status) *status = 1;
    return NOT_FOUND;
}
