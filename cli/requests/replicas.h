/* Replicas behind one queue: processes of this machine that each open the model and answer requests as the command
 * alone would. This process reads the requests and deals them, each to the replica with the fewest that are not
 * answered, and brings the answers into one file. An answer does not depend on what else runs, so not on the replica
 * either. */
#ifndef QRUN_CLI_REQUESTS_REPLICAS_H
#define QRUN_CLI_REQUESTS_REPLICAS_H

#include <sys/types.h>

#include "cli/requests/job.h"

enum { REPLICAS_MAX = 64 };

/* A request that a replica has: its number among all, and its ids as an answer has them. */
typedef struct dealt_request {
    int64_t index;
    char *id;
} dealt_request;

typedef struct replica {
    pid_t process;
    int to, from; /* −1: closed */
    text_buffer out, in;
    size_t out_done;
    dealt_request *dealt; /* [capacity]: by the replica's own numbers */
    int64_t n_dealt, n_open, capacity;
} replica;

typedef struct replicas {
    replica each[REPLICAS_MAX];
    int n;
    int64_t most_open; /* that a replica has at once */
} replicas;

/* Starts n of them. In each this returns too, with *number from 0: its requests then come from stdin, and its answers
 * go to stdout, an empty line after those of a request. In the process that started them *number is −1. Before any
 * thread or context exists. Returns 0 or an exit code. */
int replicas_start(replicas *r, int n, int *number);
/* Deals the requests of j->requests and writes their answers to j->output, as job_run does: to the end, to an
 * interruption, or to a failure. */
int replicas_run(replicas *r, job *j);
/* Ends them; those that still run are killed. */
void replicas_end(replicas *r);

#endif
