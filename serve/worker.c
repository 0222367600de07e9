#include "serve/worker.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <event2/event.h>

/* A copy of an event. What it points at follows it. */
typedef struct held_event {
    struct held_event *next;
    void *user;
    qrun_event event;
} held_event;

struct worker {
    qrun_session *session;
    worker_event_fn on_event;
    worker_failure_fn on_failure;
    void *failure_user;
    pthread_t thread;
    int stop_descriptor, ready_descriptor;
    struct event *ready;
    pthread_mutex_t lock;
    held_event *first, **end; /* under lock */
    bool lost;                /* under lock: an event could not be held */
    bool failed;              /* under lock */
    char failure[512];
};

static void signal_descriptor(int descriptor) {
    const uint64_t one = 1;
    (void)!write(descriptor, &one, sizeof one);
}

/* ---- The worker's thread ----------------------------------------------------------------------------------------- */

static void copy_text(char *dst, size_t capacity, const char *src) {
    const size_t n = src != NULL ? strnlen(src, capacity - 1) : 0;
    if (n > 0) { memcpy(dst, src, n); }
    dst[n] = '\0';
}

/* Copies n_bytes to *end and moves it past them. */
static void *append(char **end, const void *bytes, size_t n_bytes) {
    void *copy = *end;
    if (n_bytes > 0) { memcpy(copy, bytes, n_bytes); }
    *end += n_bytes;
    return copy;
}

static held_event *hold(void *user, const qrun_event *event) {
    const char *reason = event->finish_reason != NULL ? event->finish_reason : "";
    const char *message = event->message != NULL ? event->message : "";
    const size_t n_top = (size_t)event->n_top * sizeof *event->top;
    const size_t n_embedding = (size_t)event->n_embedding * sizeof *event->embedding;
    const size_t n_reason = strlen(reason) + 1, n_message = strlen(message) + 1;
    held_event *held = malloc(sizeof *held + n_top + n_embedding + n_reason + n_message + event->text_bytes);
    if (held == NULL) { return NULL; }
    char *end = (char *)(held + 1);
    *held = (held_event){.user = user, .event = *event};
    held->event.top = append(&end, event->top, n_top); /* what has to be aligned comes first */
    held->event.embedding = append(&end, event->embedding, n_embedding);
    held->event.finish_reason = append(&end, reason, n_reason);
    held->event.message = append(&end, message, n_message);
    held->event.text = append(&end, event->text, event->text_bytes);
    return held;
}

void worker_take_event(void *request, const qrun_event *event) {
    const worker_request *r = request;
    worker *w = r->worker;
    held_event *held = hold(r->user, event);
    pthread_mutex_lock(&w->lock);
    const bool was_empty = w->first == NULL;
    if (held != NULL) {
        *w->end = held;
        w->end = &held->next;
    } else {
        w->lost = true;
    }
    pthread_mutex_unlock(&w->lock);
    if (was_empty) { signal_descriptor(w->ready_descriptor); }
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
    w->failed = true;
    copy_text(w->failure, sizeof w->failure, error.message);
    pthread_mutex_unlock(&w->lock);
    signal_descriptor(w->ready_descriptor);
    return NULL;
}

/* ---- The loop's thread ------------------------------------------------------------------------------------------- */

static void deliver(evutil_socket_t descriptor, short what, void *arg) {
    worker *w = arg;
    uint64_t count;
    (void)what;
    (void)!read(descriptor, &count, sizeof count);
    pthread_mutex_lock(&w->lock);
    held_event *list = w->first;
    w->first = NULL;
    w->end = &w->first;
    const bool failed = w->failed || w->lost;
    pthread_mutex_unlock(&w->lock);
    while (list != NULL) {
        held_event *held = list;
        list = held->next;
        w->on_event(held->user, &held->event);
        free(held);
    }
    if (failed) { w->on_failure(w->failure_user, w->failed ? w->failure : "out of memory"); }
}

static void destroy(worker *w) {
    while (w->first != NULL) {
        held_event *held = w->first;
        w->first = held->next;
        free(held);
    }
    if (w->ready != NULL) { event_free(w->ready); }
    if (w->stop_descriptor >= 0) { close(w->stop_descriptor); }
    if (w->ready_descriptor >= 0) { close(w->ready_descriptor); }
    pthread_mutex_destroy(&w->lock);
    free(w);
}

/* Signals are for the loop. */
static bool start_thread(worker *w) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const bool started = pthread_create(&w->thread, NULL, step_until_stopped, w) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
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
    w->ready_descriptor = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (w->ready_descriptor >= 0) { w->ready = event_new(base, w->ready_descriptor, EV_READ | EV_PERSIST, deliver, w); }
    if (w->stop_descriptor < 0 || w->ready == NULL || event_add(w->ready, NULL) != 0 || !start_thread(w)) {
        destroy(w);
        return NULL;
    }
    return w;
}

void worker_stop(worker *w) {
    if (w == NULL) { return; }
    signal_descriptor(w->stop_descriptor);
    pthread_join(w->thread, NULL);
    destroy(w);
}
