#include "runtime/generate/request_queue.h"

#include "base/random.h"

/* ---- Lists ------------------------------------------------------------------------------------------------------- */

void qr_request_list_append(qr_request_list *list, qr_request *request) {
    request->previous = list->last;
    request->next = NULL;
    *(list->last == NULL ? &list->first : &list->last->next) = request;
    list->last = request;
}

void qr_request_list_remove(qr_request_list *list, qr_request *request) {
    *(request->previous == NULL ? &list->first : &request->previous->next) = request->next;
    *(request->next == NULL ? &list->last : &request->next->previous) = request->previous;
    request->previous = request->next = NULL;
}

/* ---- The tree ---------------------------------------------------------------------------------------------------- */

/* A node's priority is above those of its children, which keeps the expected depth logarithmic (Seidel and Aragon,
 * 1996). */
static uint64_t priority(const qr_request *request) { return qr_hash_mix(request->id); }

/* The largest number so far: it becomes the last of the right spine, or the parent of the spine's lower end. */
static void add_largest(qr_request **root, qr_request *request) {
    qr_request **link = root;
    while (*link != NULL && priority(*link) > priority(request)) { link = &(*link)->right; }
    request->left = *link;
    request->right = NULL;
    *link = request;
}

/* The link to the request of that number, or to NULL. */
static qr_request **find_link(qr_request **root, uint64_t id) {
    qr_request **link = root;
    while (*link != NULL && (*link)->id != id) { link = id < (*link)->id ? &(*link)->left : &(*link)->right; }
    return link;
}

/* Puts the two subtrees of a removed node, one wholly before the other, into its place. */
static void merge(qr_request **link, qr_request *before, qr_request *after) {
    while (before != NULL && after != NULL) {
        if (priority(before) > priority(after)) {
            *link = before;
            link = &before->right;
            before = before->right;
        } else {
            *link = after;
            link = &after->left;
            after = after->left;
        }
    }
    *link = before != NULL ? before : after;
}

/* ---- The queue --------------------------------------------------------------------------------------------------- */

bool qr_request_queue_add(qr_request_queue *queue, qr_request *request, int64_t max_bytes) {
    if (queue->waiting_bytes > 0 && request->waiting_bytes > max_bytes - queue->waiting_bytes) { return false; }
    request->id = ++queue->last_id;
    request->is_waiting = true;
    queue->waiting_bytes += request->waiting_bytes;
    queue->n_samples += request->n_samples;
    qr_request_list_append(&queue->waiting, request);
    add_largest(&queue->root, request);
    return true;
}

bool qr_request_queue_cancel(qr_request_queue *queue, uint64_t id) {
    qr_request *request = *find_link(&queue->root, id);
    if (request == NULL) { return false; }
    if (request->is_waiting && !atomic_load(&request->cancelled)) {
        qr_request_list_remove(&queue->waiting, request);
        qr_request_list_append(&queue->cancelled, request);
    }
    atomic_store(&request->cancelled, true);
    return true;
}

static qr_request *take_first(qr_request_queue *queue, qr_request_list *list) {
    qr_request *request = list->first;
    if (request == NULL) { return NULL; }
    qr_request_list_remove(list, request);
    request->is_waiting = false;
    queue->waiting_bytes -= request->waiting_bytes;
    return request;
}

qr_request *qr_request_queue_take_next(qr_request_queue *queue) { return take_first(queue, &queue->waiting); }

qr_request *qr_request_queue_take_cancelled(qr_request_queue *queue) { return take_first(queue, &queue->cancelled); }

void qr_request_queue_forget(qr_request_queue *queue, const qr_request *request) {
    qr_request **link = find_link(&queue->root, request->id);
    if (*link != NULL) { merge(link, request->left, request->right); }
}
