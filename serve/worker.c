#include "serve/worker.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "serve/threads.h"

/* A copy of an event. What it points at follows it. */
typedef struct held_event {
    struct held_event *next;
    worker_request *request;
    qrun_event event;
} held_event;

struct worker {
    qrun_session *session;
    worker_event_fn on_event;
    worker_failure_fn on_failure;
    void *failure_user;
    pthread_t thread;
    int stop_descriptor;
    wakeup ready;
    pthread_mutex_t lock;
    held_event *first, **end; /* under lock */
    bool lost;                /* under lock: an event could not be held */
    qrun_error failure;       /* under lock */
};

/* ---- The worker's thread ----------------------------------------------------------------------------------------- */

/* Copies n_bytes to *end and moves it past them. */
static void *append(char **end, const void *bytes, size_t n_bytes) {
    void *copy = *end;
    if (n_bytes > 0) { memcpy(copy, bytes, n_bytes); }
    *end += n_bytes;
    return copy;
}

static held_event *hold(worker_request *request, const qrun_event *event) {
    const char *reason = event->finish_reason != NULL ? event->finish_reason : "";
    const char *message = event->message != NULL ? event->message : "";
    const char *stop = event->stop_text != NULL ? event->stop_text : "";
    const size_t n_top = (size_t)event->n_top * sizeof *event->top;
    const size_t n_embedding = (size_t)event->n_embedding * sizeof *event->embedding;
    const size_t n_reason = strlen(reason) + 1, n_message = strlen(message) + 1, n_stop = strlen(stop) + 1;
    held_event *held = malloc(sizeof *held + n_top + n_embedding + n_reason + n_message + n_stop + event->text_bytes);
    if (held == NULL) { return NULL; }
    char *end = (char *)(held + 1);
    *held = (held_event){.request = request, .event = *event};
    held->event.top = append(&end, event->top, n_top); /* what has to be aligned comes first */
    held->event.embedding = append(&end, event->embedding, n_embedding);
    held->event.finish_reason = append(&end, reason, n_reason);
    held->event.message = append(&end, message, n_message);
    held->event.stop_text = append(&end, stop, n_stop);
    if (event->stop_text == NULL) { held->event.stop_text = NULL; }
    held->event.text = append(&end, event->text, event->text_bytes);
    return held;
}

void worker_take_event(void *request, const qrun_event *event) {
    worker *w = ((worker_request *)request)->worker;
    held_event *held = hold(request, event);
    pthread_mutex_lock(&w->lock);
    const bool was_empty = w->first == NULL;
    if (held != NULL) {
        *w->end = held;
        w->end = &held->next;
    } else {
        w->lost = true;
    }
    pthread_mutex_unlock(&w->lock);
    if (was_empty) { wakeup_send(&w->ready); }
}

static void *step_until_stopped(void *arg) {
    worker *w = arg;
    struct pollfd descriptors[] = {{.fd = w->stop_descriptor, .events = POLLIN},
                                   {.fd = qrun_session_event_descriptor(w->session), .events = POLLIN}};
    qrun_error error = QRUN_ERROR_INIT;
    bool has_work = true;
    while (true) {
        (void)poll(descriptors, 2, has_work ? 0 : -1);
        if (descriptors[0].revents != 0) { return NULL; }
        if (qrun_session_step(w->session, &has_work, &error) != QRUN_OK) { break; }
    }
    pthread_mutex_lock(&w->lock);
    w->failure = error;
    pthread_mutex_unlock(&w->lock);
    wakeup_send(&w->ready);
    return NULL;
}

/* ---- The loop's thread ------------------------------------------------------------------------------------------- */

static void free_list(held_event *list) {
    while (list != NULL) {
        held_event *held = list;
        list = held->next;
        free(held);
    }
}

/* The owner may be gone afterwards, and the request with it: nothing is looked at but the list. */
static void deliver_list(const worker *w, held_event *list) {
    while (list != NULL) {
        held_event *held = list;
        list = held->next;
        w->on_event(held->request->user, &held->event);
        free(held);
    }
}

/* Events of a request that is not ready wait with it. */
static void sort_out(const worker *w, held_event *held) {
    worker_request *request = held->request;
    held->next = NULL;
    if (request->delivers) {
        deliver_list(w, held);
        return;
    }
    if (request->first == NULL) { request->end = &request->first; }
    *request->end = held;
    request->end = &held->next;
}

static void take_events(void *arg) {
    worker *w = arg;
    pthread_mutex_lock(&w->lock);
    held_event *list = w->first;
    w->first = NULL;
    w->end = &w->first;
    qrun_error failure = w->failure;
    if (failure.status == QRUN_OK && w->lost) { failure = (qrun_error){QRUN_ERROR_MEMORY, "out of memory"}; }
    pthread_mutex_unlock(&w->lock);
    while (list != NULL) {
        held_event *held = list;
        list = held->next;
        sort_out(w, held);
    }
    if (failure.status != QRUN_OK) { w->on_failure(w->failure_user, failure.status, failure.message); }
}

void worker_deliver(worker_request *request) {
    held_event *list = request->first;
    request->first = NULL;
    request->delivers = true;
    deliver_list(request->worker, list);
}

void worker_forget(worker_request *request) {
    free_list(request->first);
    request->first = NULL;
}

static void destroy(worker *w) {
    free_list(w->first);
    wakeup_close(&w->ready);
    if (w->stop_descriptor >= 0) { close(w->stop_descriptor); }
    pthread_mutex_destroy(&w->lock);
    free(w);
}

worker *worker_start(qrun_session *session, struct event_base *base, worker_event_fn on_event,
                     worker_failure_fn on_failure, void *failure_user) {
    worker *w = calloc(1, sizeof *w);
    if (w == NULL) { return NULL; }
    w->session = session;
    w->on_event = on_event;
    w->on_failure = on_failure;
    w->failure_user = failure_user;
    w->end = &w->first;
    pthread_mutex_init(&w->lock, NULL);
    w->stop_descriptor = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (w->stop_descriptor < 0 || !wakeup_open(&w->ready, base, take_events, w) ||
        !thread_start(&w->thread, step_until_stopped, w)) {
        destroy(w);
        return NULL;
    }
    return w;
}

void worker_stop(worker *w) {
    const uint64_t one = 1;
    if (w == NULL) { return; }
    (void)!write(w->stop_descriptor, &one, sizeof one);
    pthread_join(w->thread, NULL);
    destroy(w);
}
