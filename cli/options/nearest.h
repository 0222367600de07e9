/* "Did you mean …?" */
#ifndef QRUN_CLI_OPTIONS_NEAREST_H
#define QRUN_CLI_OPTIONS_NEAREST_H

/* Gathers the best of several candidates: start from NEAREST_INIT, offer each, read `best` (NULL: none is near). */
typedef struct nearest {
    const char *wanted;
    const char *best;
    int distance;
} nearest;
#define NEAREST_INIT(wanted_) \
    { wanted_, 0, 1000 }

void nearest_offer(nearest *search, const char *candidate);

#endif
