/* Which replica gets a request: one that has read the beginning of its prompt, where that is not much busier than
 * another; else the one with the fewest open samples. Answers do not depend on it, only the time they take.
 *
 * What replicas hold is not asked but remembered: a request leaves marks of its prompt's beginnings, and a later one
 * looks for the longest of them. A mark whose pages are gone costs nothing but balance. */
#ifndef QRUN_SERVE_PLACEMENT_H
#define QRUN_SERVE_PLACEMENT_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "serve/server.h"

enum {
    PLACEMENT_REPLICAS_MAX = SERVE_REPLICAS_MAX, /* bits of a mark */
    PLACEMENT_BEGINNINGS_MAX = 64,
    PLACEMENT_MARKS = 4096,
    PLACEMENT_AHEAD = 4 /* samples that a replica which knows the prompt may have more than the idlest one */
};

/* Hashes of a prompt's beginnings, the shortest first: up to the end of each message (the last ones, where there are
 * many), or of a text and of ids by doubling lengths. */
typedef struct beginnings {
    uint64_t hashes[PLACEMENT_BEGINNINGS_MAX]; /* [n] */
    int n;
} beginnings;

/* prompt: a text, an array of ids, or one of messages; with what else decides the tokens. tools may be NULL. */
void beginnings_of(const cJSON *prompt, const cJSON *tools, const char *adapter, beginnings *b);

typedef struct placement {
    int n_replicas;
    pthread_mutex_t lock;
    int64_t n_open[PLACEMENT_REPLICAS_MAX];     /* samples; this and what follows is under lock */
    int64_t n_requests[PLACEMENT_REPLICAS_MAX]; /* so far */
    struct {
        uint64_t hash, holders; /* holders: a bit for each replica */
    } marks[PLACEMENT_MARKS];
} placement;

void placement_open(placement *p, int n_replicas);
void placement_close(placement *p);

/* From any thread: */

/* The replica for a request of n_samples, which are open from now on. */
int placement_choose(placement *p, const beginnings *b, int64_t n_samples);
/* They are over, or never began. */
void placement_end(placement *p, int replica, int64_t n_samples);
/* Requests that a replica got so far. */
int64_t placement_requests(placement *p, int replica);

#endif
