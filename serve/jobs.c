#include "serve/jobs.h"

#include <stdlib.h>

#include "serve/threads.h"

typedef struct job_list {
    job *first, **end;
} job_list;

struct jobs {
    pthread_t thread;
    wakeup finished;
    pthread_mutex_t lock;
    pthread_cond_t added;
    job_list waiting, over; /* under lock */
    bool stops;             /* under lock */
};

static void append(job_list *list, job *added) {
    added->next = NULL;
    *list->end = added;
    list->end = &added->next;
}

/* The first one, which the list then lacks; NULL: it is empty. */
static job *take_first(job_list *list) {
    job *first = list->first;
    if (first == NULL) { return NULL; }
    list->first = first->next;
    if (list->first == NULL) { list->end = &list->first; }
    return first;
}

static void *work(void *arg) {
    jobs *j = arg;
    pthread_mutex_lock(&j->lock);
    while (true) {
        while (!j->stops && j->waiting.first == NULL) { pthread_cond_wait(&j->added, &j->lock); }
        if (j->stops) { break; }
        job *next = take_first(&j->waiting);
        pthread_mutex_unlock(&j->lock);
        next->work(next->user);
        pthread_mutex_lock(&j->lock);
        append(&j->over, next);
        wakeup_send(&j->finished);
    }
    pthread_mutex_unlock(&j->lock);
    return NULL;
}

static void finish(void *arg) {
    jobs *j = arg;
    while (true) {
        pthread_mutex_lock(&j->lock);
        job *over = take_first(&j->over);
        pthread_mutex_unlock(&j->lock);
        if (over == NULL) { return; }
        over->done(over->user);
    }
}

void jobs_add(jobs *j, job *added) {
    pthread_mutex_lock(&j->lock);
    append(&j->waiting, added);
    pthread_cond_signal(&j->added);
    pthread_mutex_unlock(&j->lock);
}

bool jobs_drop(jobs *j, const job *dropped) {
    pthread_mutex_lock(&j->lock);
    job **link = &j->waiting.first;
    while (*link != NULL && *link != dropped) { link = &(*link)->next; }
    const bool found = *link != NULL;
    if (found) {
        *link = dropped->next;
        if (*link == NULL) { j->waiting.end = link; }
    }
    pthread_mutex_unlock(&j->lock);
    return found;
}

static void destroy(jobs *j) {
    wakeup_close(&j->finished);
    pthread_cond_destroy(&j->added);
    pthread_mutex_destroy(&j->lock);
    free(j);
}

jobs *jobs_start(struct event_base *base) {
    jobs *j = calloc(1, sizeof *j);
    if (j == NULL) { return NULL; }
    j->waiting.end = &j->waiting.first;
    j->over.end = &j->over.first;
    pthread_mutex_init(&j->lock, NULL);
    pthread_cond_init(&j->added, NULL);
    if (!wakeup_open(&j->finished, base, finish, j) || !thread_start(&j->thread, work, j)) {
        destroy(j);
        return NULL;
    }
    return j;
}

void jobs_stop(jobs *j) {
    if (j == NULL) { return; }
    pthread_mutex_lock(&j->lock);
    j->stops = true;
    pthread_cond_signal(&j->added);
    pthread_mutex_unlock(&j->lock);
    pthread_join(j->thread, NULL);
    destroy(j);
}
