/* The requests of a session that are not over. Any of them is found by its number; those that have not started are in
 * order of arrival. A call takes O(log n) of n requests, allocates nothing, and is made under the session's lock. */
#ifndef QR_RUNTIME_GENERATE_REQUEST_QUEUE_H
#define QR_RUNTIME_GENERATE_REQUEST_QUEUE_H

#include "runtime/generate/request.h"

/* Linked by `previous` and `next`: a request is in one list at a time. */
typedef struct qr_request_list {
    qr_request *first, *last;
} qr_request_list;

void qr_request_list_append(qr_request_list *list, qr_request *request);
void qr_request_list_remove(qr_request_list *list, qr_request *request);

typedef struct qr_request_queue {
    qr_request *root;          /* all that are not over: a treap, by number and a hash of it */
    qr_request_list waiting;   /* for their start */
    qr_request_list cancelled; /* before they started */
    int64_t waiting_bytes;     /* held by both lists */
    int64_t n_samples;         /* of all requests so far */
    uint64_t last_id;
} qr_request_queue;

/* Numbers a request and appends it. False when others wait and all together would hold more than max_bytes. */
bool qr_request_queue_add(qr_request_queue *queue, qr_request *request, int64_t max_bytes);

/* Marks a request cancelled. One that waits for its start leaves the order. False for a number that is not there. */
bool qr_request_queue_cancel(qr_request_queue *queue, uint64_t id);

/* The next to start, or the next that was cancelled before; it leaves its list. NULL: there is none. */
qr_request *qr_request_queue_take_next(qr_request_queue *queue);
qr_request *qr_request_queue_take_cancelled(qr_request_queue *queue);

/* A request in no list is over: its number is no longer found. */
void qr_request_queue_forget(qr_request_queue *queue, const qr_request *request);

#endif
