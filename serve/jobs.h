/* Work that may take long, such as reading a large request or an adapter's files, beside the event loop: a thread that
 * does one job after the other. What follows from a job happens on the loop's thread. */
#ifndef QRUN_SERVE_JOBS_H
#define QRUN_SERVE_JOBS_H

#include <stdbool.h>

struct event_base;
typedef struct jobs jobs;

/* Lies in what it is about, and lives until done, or dropped. */
typedef struct job {
    void (*work)(void *user); /* on the thread of the jobs */
    void (*done)(void *user); /* then, on the loop's */
    void *user;
    struct job *next; /* of jobs.c */
} job;

/* NULL when memory or descriptors are short. */
jobs *jobs_start(struct event_base *base);
/* Waits for the job at work. Those that are not done never will be; they are their owners'. NULL is fine. */
void jobs_stop(jobs *j);

/* On the loop's thread: */
void jobs_add(jobs *j, job *added);
/* True: it had not begun, and neither of its functions is called. False: `done` will be. */
bool jobs_drop(jobs *j, const job *dropped);

#endif
