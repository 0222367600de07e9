/* One step of a session: accepts what was submitted and cancelled, runs the forward pass over what the scheduler chose,
 * samples the next tokens and reports them to the callers. Callbacks run without any lock held. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/sizes.h"
#include "runtime/generate/session.h"
#include "runtime/model/adapter.h"

/* ---- Events ------------------------------------------------------------------------------------------------------ */

static void send(const qr_sequence *sequence, qrun_event *event) {
    const qr_request *request = sequence->request;
    event->struct_size = sizeof *event;
    event->request = request->id;
    event->sample = sequence->sample;
    if (event->text == NULL) { event->text = ""; }
    if (request->on_event != NULL) { request->on_event(request->user, event); }
}

static double since(double start, double moment) { return start > 0 && moment > 0 ? moment - start : 0; }

static void send_done(const qr_sequence *sequence, const char *reason, const char *text, size_t n_bytes) {
    const qr_request *request = sequence->request;
    qrun_event event = {
        .type = QRUN_EVENT_DONE,
        .is_last = request->n_open == 0,
        .text = text,
        .text_bytes = n_bytes,
        .finish_reason = reason,
        .prompt_tokens = (int32_t)request->n_prompt,
        .cached_tokens = (int32_t)sequence->n_cached,
        .completion_tokens = (int32_t)(sequence->n_tokens - request->n_prompt),
        .queue_seconds = since(request->submit_time, request->start_time),
        .first_token_seconds = since(request->submit_time, sequence->first_token_time),
        .total_seconds = qr_now_seconds() - request->submit_time,
    };
    send(sequence, &event);
}

/* ---- The end of samples and requests ----------------------------------------------------------------------------- */

static void remove_waiting(qrun_session *session, const qr_sequence *sequence) {
    qr_sequence **link = &session->waiting;
    while (*link != sequence) { link = &(*link)->next; }
    *link = sequence->next;
}

static void close_sequence(qrun_session *session, qr_sequence *sequence) {
    if (sequence->state == QR_SEQUENCE_WAITING) { remove_waiting(session, sequence); }
    qr_sequence_leave(session, sequence);
    sequence->state = QR_SEQUENCE_DONE;
    if (--sequence->request->n_open == 0) { atomic_store(&sequence->request->over, true); }
}

/* Frees the requests that are over. */
static void sweep(qrun_session *session) {
    for (qr_request **link = &session->live; *link != NULL;) {
        qr_request *request = *link;
        if (request->n_open > 0) {
            link = &request->next;
            continue;
        }
        pthread_mutex_lock(&session->lock); /* qrun_session_cancel walks the list */
        *link = request->next;
        pthread_mutex_unlock(&session->lock);
        qr_request_destroy(request, session->cache);
        session->counts.n_finished++;
    }
}

static void fail_request(qrun_session *session, qr_request *request, const char *message) {
    qr_sequence *first = &request->sequences[0];
    for (int32_t i = 0; i < request->n_samples; i++) {
        if (request->sequences[i].state != QR_SEQUENCE_DONE) { close_sequence(session, &request->sequences[i]); }
    }
    qrun_event event = {.type = QRUN_EVENT_ERROR, .is_last = true, .message = message};
    send(first, &event);
}

/* Ends a sample. The event carries the text that was held back, unless a stop string ended the sample. */
static void finish(qrun_session *session, qr_sequence *sequence, const char *reason, bool by_stop_text) {
    const char *text = "";
    size_t n_bytes = 0;
    bool stopped;
    if (!by_stop_text) { (void)qr_answer_finish(&sequence->answer, &text, &n_bytes, &stopped, NULL); }
    close_sequence(session, sequence);
    send_done(sequence, reason, text, n_bytes);
}

/* ---- Taking in --------------------------------------------------------------------------------------------------- */

static void drain_descriptor(const qrun_session *session) {
    uint64_t count;
    while (read(session->event_descriptor, &count, sizeof count) < 0 && errno == EINTR) {}
}

static void take_inbox(qrun_session *session) {
    pthread_mutex_lock(&session->lock);
    for (qr_request *request; (request = session->inbox) != NULL;) {
        session->inbox = request->next;
        request->next = session->live;
        session->live = request;
        qr_sequence_enqueue(session, &request->sequences[0]);
    }
    session->inbox_end = &session->inbox;
    pthread_mutex_unlock(&session->lock);
}

static void take_cancellations(qrun_session *session) {
    /* Only this thread changes the list; others read it under the lock. */
    for (qr_request *request = session->live; request != NULL; request = request->next) {
        if (!atomic_load(&request->cancelled)) { continue; }
        for (int32_t i = 0; i < request->n_samples; i++) {
            qr_sequence *sequence = &request->sequences[i];
            if (sequence->state != QR_SEQUENCE_DONE) { finish(session, sequence, "cancelled", false); }
        }
    }
    sweep(session);
}

/* ---- The next tokens of a step ----------------------------------------------------------------------------------- */

/* Whether the step computes all known tokens of a sequence, so that its last row gives the next one. */
static bool catches_up(const qr_sequence *sequence) {
    return sequence->kv.n_tokens + sequence->n_step == sequence->n_tokens;
}

static void add_next_token(qr_step *step, qr_sequence *sequence) {
    const qr_request *request = sequence->request;
    const bool on_host = request->logprobs > 0 || qr_sampling_changes_logits(&request->sampling);
    step->next[step->n_next++] =
        (qr_next_token){.sequence = sequence, .row = step->n_rows, .on_host = on_host, .index = step->n_on_device};
    step->n_on_device += !on_host;
}

/* One next token for each row of logits. The first row of a request has one more for every other sample that starts
 * from it and will get a slot. */
static void list_next_tokens(qrun_session *session) {
    qr_step *step = &session->step;
    int32_t n_free = session->n_free_slots;
    step->n_rows = step->n_next = step->n_on_device = 0;
    for (int32_t i = 0; i < session->n_running; i++) {
        qr_sequence *sequence = session->running[i];
        if (sequence->n_step == 0 || !catches_up(sequence)) { continue; }
        qr_request *request = sequence->request;
        add_next_token(step, sequence);
        for (int32_t k = 1; !request->started && k < request->n_samples; k++) {
            qr_sequence *held = &request->sequences[k];
            if (held->state != QR_SEQUENCE_HELD || n_free == 0) { continue; }
            n_free--;
            add_next_token(step, held);
        }
        step->n_rows++;
    }
}

/* The prompt of the first sample is computed: the others share its pages, or wait for a slot. The slots go to those
 * whose next tokens are listed. */
static void release_held(qrun_session *session, qr_sequence *first) {
    qr_request *request = first->request;
    if (request->started) { return; }
    request->started = true;
    for (int32_t i = 1; i < request->n_samples; i++) {
        qr_sequence *sequence = &request->sequences[i];
        if (sequence->state != QR_SEQUENCE_HELD) { continue; }
        if (qr_sequence_take_slot(session, sequence)) {
            qr_kv_fork(session->cache, &first->kv, &sequence->kv);
            sequence->n_cached = request->n_prompt;
            sequence->has_run = true;
        } else {
            qr_sequence_enqueue(session, sequence);
        }
    }
}

/* ---- Computing --------------------------------------------------------------------------------------------------- */

/* Block tables as wide as the longest sequence of the step needs. A decode step has the sizes that the forward pass
 * replays, and a next token for every row. */
static qr_batch_sizes measure_step(qrun_session *session) {
    qr_step *step = &session->step;
    qr_batch_sizes sizes = {.n_rows = step->n_rows, .n_samples = step->n_on_device, .table_stride = 1};
    for (int32_t i = 0; i < session->n_running; i++) {
        const qr_sequence *sequence = session->running[i];
        if (sequence->n_step == 0) { continue; }
        const int64_t n_blocks = qr_ceil_div(sequence->kv.n_tokens + sequence->n_step, QR_KV_PAGE_TOKENS);
        sizes.n_tokens += sequence->n_step;
        sizes.n_sequences++;
        sizes.table_stride = qr_max(sizes.table_stride, n_blocks);
    }
    step->is_decode = sizes.n_tokens == sizes.n_sequences && sizes.n_tokens == step->n_rows &&
                      sizes.n_tokens == step->n_next && qr_forward_decode_sizes(session->forward, &sizes);
    for (int64_t i = 0; step->is_decode && i < step->n_next; i++) { step->next[i].index = i; }
    return sizes;
}

/* first_row: the first row whose logits exist when the device samples. For a token that the host samples the device
 * takes the greedy one, and nothing reads it. */
static qr_sample_params device_args(const qr_next_token *next, int64_t first_row) {
    const qr_sequence *sequence = next->sequence;
    const qr_request *request = sequence->request;
    qr_sample_params args = {.temperature = 0.0F};
    if (!next->on_host) { args = qr_sampling_op_args(&request->sampling, sequence->sample, sequence->n_tokens); }
    args.row = (int32_t)(next->row - first_row);
    args.wants_logprob = request->logprobs == 0;
    return args;
}

static void fill_batch(const qrun_session *session, qr_batch *batch) {
    const qr_step *step = &session->step;
    const int64_t most = session->sizes.forward.max_logit_rows;
    for (int32_t i = 0; i < session->n_running; i++) {
        const qr_sequence *sequence = session->running[i];
        if (sequence->n_step == 0) { continue; }
        qr_batch_add(batch, &sequence->kv, sequence->tokens, sequence->n_step, sequence->slot,
                     qr_adapter_index(sequence->request->adapter), catches_up(sequence));
    }
    for (int64_t i = 0; i < step->n_next; i++) {
        const qr_next_token *next = &step->next[i];
        if (next->on_host && !step->is_decode) { continue; }
        batch->samples[batch->n_samples++] = device_args(next, next->row / most * most);
    }
    if (step->is_decode) { qr_batch_pad(batch); }
}

/* What a sequence needs on the device before its first step in a slot. */
static qrun_status prepare_slots(qrun_session *session, qr_error *err) {
    for (int32_t i = 0; i < session->n_running; i++) {
        qr_sequence *sequence = session->running[i];
        if (sequence->has_rope || sequence->n_step == 0) { continue; }
        QR_RETURN_IF_ERROR(qr_forward_set_rope(session->forward, sequence->slot, sequence->request->rope_tokens, err));
        sequence->has_rope = true;
        if (sequence->request->start_time == 0) { sequence->request->start_time = qr_now_seconds(); }
    }
    return QRUN_OK;
}

static qrun_status copy_pages(qrun_session *session, qr_error *err) {
    qr_backend *backend = session->model->context->backend;
    const size_t n_bytes = session->sizes.page_bytes;
    for (int32_t i = 0; i < session->step.n_copies; i++) {
        const qr_kv_copy *copy = &session->step.copies[i];
        unsigned char *pages = session->pages;
        QR_RETURN_IF_ERROR(backend->copy_within(backend, pages + (size_t)copy->dst * n_bytes,
                                                pages + (size_t)copy->src * n_bytes, n_bytes, err));
    }
    return QRUN_OK;
}

static qrun_status compute(qrun_session *session, qr_error *err) {
    pthread_mutex_t *compute_lock = &session->model->context->compute_lock;
    qr_batch *batch;
    list_next_tokens(session);
    const qr_batch_sizes sizes = measure_step(session);
    pthread_mutex_lock(compute_lock);
    qrun_status status = QRUN_OK;
    QR_TRY(qr_forward_begin(session->forward, &sizes, &batch, err));
    fill_batch(session, batch);
    QR_TRY(prepare_slots(session, err));
    QR_TRY(copy_pages(session, err));
    QR_TRY(session->step.is_decode ? qr_forward_decode(session->forward, err) : qr_forward_run(session->forward, err));
out:
    pthread_mutex_unlock(compute_lock);
    return status;
}

static void commit(qrun_session *session) {
    for (int32_t i = 0; i < session->n_running; i++) {
        qr_sequence *sequence = session->running[i];
        if (sequence->n_step > 0) { qr_kv_commit(session->cache, &sequence->kv, sequence->tokens, sequence->n_step); }
    }
}

/* ---- Sampling ---------------------------------------------------------------------------------------------------- */

/* The next tokens of rows [first_row, first_row + n_rows), whose logits exist at the same time. */
typedef struct sampling_piece {
    qrun_session *session;
    int64_t first_row, n_rows;
    qr_next_token *next;
    int64_t n_next, n_on_device;
} sampling_piece;

static void sample_on_host(void *arg, int64_t index, int worker) {
    const sampling_piece *piece = arg;
    qrun_session *session = piece->session;
    qr_next_token *next = &piece->next[index];
    const qr_sequence *sequence = next->sequence;
    const qr_request *request = sequence->request;
    const int64_t vocab = session->model->shape.vocab;
    if (!next->on_host) { return; }
    next->is_broken = !qr_logits_are_finite(next->logits, vocab);
    if (next->is_broken) { return; }
    const qr_sampling_history history = {
        .tokens = sequence->tokens, .n_prompt = request->n_prompt, .n_tokens = sequence->n_tokens};
    next->token = qr_sampler_sample(session->samplers[worker], &request->sampling, &history, sequence->sample, NULL,
                                    next->logits);
    if (request->logprobs < 0) { return; }
    const double log_sum = qr_log_sum_exp(next->logits, vocab);
    next->n_top = (int32_t)qr_min(request->logprobs, vocab);
    qr_top_logprobs(next->logits, vocab, log_sum, next->n_top, next->top);
    next->logprob = (float)((double)next->logits[next->token] - log_sum);
}

/* From a row and its first next token on, as many rows as have their logits at the same time. */
static sampling_piece piece_from(qrun_session *session, int64_t first_row, int64_t first_next) {
    const qr_step *step = &session->step;
    const int64_t n_rows = qr_min(session->sizes.forward.max_logit_rows, step->n_rows - first_row);
    sampling_piece piece = {
        .session = session, .first_row = first_row, .n_rows = n_rows, .next = step->next + first_next};
    for (int64_t i = first_next; i < step->n_next && step->next[i].row < first_row + n_rows; i++) {
        piece.n_next++;
        piece.n_on_device += !step->next[i].on_host;
    }
    return piece;
}

static qrun_status copy_rows(qrun_session *session, int64_t first, int64_t n, qr_error *err) {
    if (n == 0) { return QRUN_OK; }
    return qr_forward_copy_logits(session->forward, first, n, session->logits + first * session->model->shape.vocab,
                                  err);
}

/* The logits that the host samples from; neighbouring rows in one copy. */
static qrun_status copy_logits(const sampling_piece *piece, qr_error *err) {
    qrun_session *session = piece->session;
    int64_t begin = 0, end = 0;
    for (int64_t i = 0; i < piece->n_next; i++) {
        qr_next_token *next = &piece->next[i];
        const int64_t row = next->row - piece->first_row;
        if (!next->on_host) { continue; }
        next->logits = session->logits + row * session->model->shape.vocab;
        if (row > end) {
            QR_RETURN_IF_ERROR(copy_rows(session, begin, end - begin, err));
            begin = row;
        }
        end = row + 1;
    }
    return copy_rows(session, begin, end - begin, err);
}

/* Output head and sampling of a piece; a decode step has done both on the device. */
static qrun_status sample_rows(const sampling_piece *piece, int64_t first_on_device, qr_error *err) {
    qr_forward *forward = piece->session->forward;
    const bool is_decode = piece->session->step.is_decode;
    if (!is_decode) { QR_RETURN_IF_ERROR(qr_forward_head(forward, piece->first_row, piece->n_rows, err)); }
    if (!is_decode && piece->n_on_device > 0) {
        QR_RETURN_IF_ERROR(qr_forward_sample(forward, first_on_device, piece->n_on_device, err));
    }
    return copy_logits(piece, err);
}

/* What the device sampled. */
static qrun_status take_sampled(qrun_session *session, qr_error *err) {
    const qr_step *step = &session->step;
    const qr_sampled *sampled;
    if (step->n_on_device == 0) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(
        qr_forward_sampled(session->forward, step->is_decode ? step->n_next : step->n_on_device, &sampled, err));
    for (int64_t i = 0; i < step->n_next; i++) {
        qr_next_token *next = &step->next[i];
        if (next->on_host) { continue; }
        next->token = sampled[next->index].token;
        next->is_broken = sampled[next->index].is_finite == 0;
        next->logprob = sampled[next->index].logprob;
    }
    return QRUN_OK;
}

static qrun_status sample_tokens(qrun_session *session, qr_error *err) {
    const qr_step *step = &session->step;
    qrun_context *context = session->model->context;
    int64_t n_next = 0, n_on_device = 0;
    for (int64_t row = 0; row < step->n_rows; row += session->sizes.forward.max_logit_rows) {
        sampling_piece piece = piece_from(session, row, n_next);
        n_next += piece.n_next;
        pthread_mutex_lock(&context->compute_lock);
        qrun_status status = sample_rows(&piece, n_on_device, err);
        n_on_device += piece.n_on_device;
        if (status == QRUN_OK && n_next == step->n_next) { status = take_sampled(session, err); }
        pthread_mutex_unlock(&context->compute_lock);
        if (status != QRUN_OK) { return status; }
        if (piece.n_on_device < piece.n_next) {
            qr_threads_run(context->threads, piece.n_next, sample_on_host, &piece);
        }
    }
    return QRUN_OK;
}

/* ---- Delivering tokens ------------------------------------------------------------------------------------------- */

static bool is_end(const qrun_session *session, int32_t token) {
    const qr_token_ids *eos = &session->model->generation.eos;
    for (int i = 0; i < eos->n; i++) {
        if (eos->ids[i] == token) { return true; }
    }
    return false;
}

/* Adds the token to its sequence, sends its event, and ends the sample where it was the last. */
static void deliver_token(qrun_session *session, const qr_next_token *next) {
    qr_sequence *sequence = next->sequence;
    qr_request *request = sequence->request;
    if (sequence->state != QR_SEQUENCE_RUNNING) { return; } /* its request failed earlier in this step */
    if (next->is_broken) {
        fail_request(session, request, "the model computed non-finite values; are its weights intact?");
        return;
    }
    if (sequence->first_token_time == 0) { sequence->first_token_time = qr_now_seconds(); }
    if (!request->ignore_eos && is_end(session, next->token)) {
        finish(session, sequence, "stop", false);
        return;
    }
    sequence->tokens[sequence->n_tokens++] = next->token;
    session->counts.completion_tokens++;
    qrun_event event = {.type = QRUN_EVENT_TOKEN,
                        .token_id = next->token,
                        .has_logprob = request->logprobs >= 0,
                        .logprob = next->logprob,
                        .top = next->top,
                        .n_top = next->n_top};
    bool stopped;
    qr_error err = {0};
    if (qr_answer_push(&sequence->answer, next->token, &event.text, &event.text_bytes, &stopped, &err) != QRUN_OK) {
        fail_request(session, request, err.message);
        return;
    }
    send(sequence, &event);
    if (stopped) {
        finish(session, sequence, "stop", true);
    } else if (sequence->n_tokens == request->capacity) {
        finish(session, sequence, "length", false);
    }
}

static void deliver_tokens(qrun_session *session) {
    const qr_step *step = &session->step;
    commit(session);
    for (int64_t i = 0; i < step->n_next; i++) { release_held(session, step->next[i].sequence); }
    for (int64_t i = 0; i < step->n_next; i++) { deliver_token(session, &step->next[i]); }
}

/* ---- The step ---------------------------------------------------------------------------------------------------- */

static int32_t count_waiting(const qrun_session *session) {
    int32_t n = 0;
    for (const qr_request *request = session->live; request != NULL; request = request->next) {
        for (int32_t i = 0; i < request->n_samples; i++) {
            n += request->sequences[i].state == QR_SEQUENCE_WAITING || request->sequences[i].state == QR_SEQUENCE_HELD;
        }
    }
    return n;
}

static bool update_stats(qrun_session *session, double seconds, int64_t prompt_tokens) {
    qr_kv_stats pages;
    qr_kv_get_stats(session->cache, &pages);
    const qr_replay_stats *replays = qr_forward_replays(session->forward);
    qrun_session_stats *counts = &session->counts;
    counts->n_running = session->n_running;
    counts->pages_used = pages.n_used;
    counts->pages_peak = pages.peak_used;
    counts->replayed_steps = replays->n_replayed;
    memcpy(counts->replay_failure, replays->reason, sizeof counts->replay_failure);
    counts->step_seconds += seconds;
    if (prompt_tokens > 0) { counts->prefill_seconds += seconds; }
    counts->prompt_tokens += prompt_tokens;
    counts->n_waiting = count_waiting(session);
    pthread_mutex_lock(&session->lock);
    session->stats = *counts;
    for (const qr_request *request = session->inbox; request != NULL; request = request->next) {
        session->stats.n_waiting += request->n_samples;
    }
    const bool has_work = session->live != NULL || session->inbox != NULL;
    pthread_mutex_unlock(&session->lock);
    return has_work;
}

/* Prompt tokens of the step, computed for the first time or again. */
static int64_t count_prompt_tokens(const qrun_session *session) {
    int64_t n = 0;
    for (int32_t i = 0; i < session->n_running; i++) {
        const qr_sequence *sequence = session->running[i];
        n += qr_min(sequence->n_step, qr_max(sequence->request->n_prompt - sequence->kv.n_tokens, 0));
    }
    return n;
}

static qrun_status run_step(qrun_session *session, int64_t *prompt_tokens, qr_error *err) {
    drain_descriptor(session);
    take_inbox(session);
    take_cancellations(session);
    *prompt_tokens = 0;
    if (session->live == NULL) { return QRUN_OK; }
    if (!qr_schedule(session)) {
        return qr_fail(err, QRUN_ERROR_INTERNAL, "the scheduler found nothing to compute although requests wait");
    }
    *prompt_tokens = count_prompt_tokens(session);
    qrun_status status = compute(session, err);
    if (status == QRUN_OK) {
        session->counts.steps++;
        status = sample_tokens(session, err);
    }
    if (status == QRUN_OK) { deliver_tokens(session); }
    /* Pages may have been reserved or half written: a later step computes everything again. */
    if (status != QRUN_OK) { qr_requeue_all(session); }
    sweep(session);
    return status;
}

qrun_status qrun_session_step(qrun_session *session, bool *has_work, qrun_error *error) {
    *has_work = false;
    if (atomic_exchange(&session->stepping, true)) {
        return qr_fail(error, QRUN_ERROR_BUSY, "another thread is stepping this session");
    }
    const double start = qr_now_seconds();
    int64_t prompt_tokens;
    const qrun_status status = run_step(session, &prompt_tokens, error);
    *has_work = update_stats(session, qr_now_seconds() - start, prompt_tokens);
    atomic_store(&session->stepping, false);
    return status;
}
