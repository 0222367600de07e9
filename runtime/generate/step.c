/* One step of a session: accepts what was submitted and cancelled, runs the forward pass over what the scheduler chose,
 * samples the next tokens and reports them to the callers. Callbacks run without any lock held.
 *
 * A step is issued, and then its tokens are collected. Where the device works on its own, the step after it is issued
 * in between, if the scheduler can tell what it computes (qr_schedule_ahead). The device then has work while the host
 * reads tokens, makes text of them and waits for its caller. The tokens that the second step begins with are read on
 * the device; those of sequences that turn out to have ended are dropped. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/sizes.h"
#include "kernels/timeline/timeline.h"
#include "runtime/generate/answer_form.h"
#include "runtime/generate/prompt_rows.h"
#include "runtime/generate/session.h"
#include "runtime/generate/split_session.h"
#include "runtime/model/adapter.h"

/* ---- Events ------------------------------------------------------------------------------------------------------ */

void qr_request_send(const qr_request *request, int32_t sample, qrun_event *event) {
    event->struct_size = sizeof *event;
    event->request = request->id;
    event->sample = sample;
    if (event->text == NULL) { event->text = ""; }
    if (request->on_event != NULL) { request->on_event(request->user, event); }
}

static double since(double start, double moment) { return start > 0 && moment > 0 ? moment - start : 0; }

static void send_done(const qr_sequence *sequence, const char *reason, const char *text, size_t n_bytes) {
    const qr_request *request = sequence->request;
    const int32_t stop = sequence->answer.has_text ? sequence->answer.stop : -1;
    qrun_event event = {
        .type = QRUN_EVENT_DONE,
        .is_last = request->n_open == 0,
        .text = text,
        .text_bytes = n_bytes,
        .finish_reason = reason,
        .stop_text = stop >= 0 ? request->stops[stop] : NULL,
        .prompt_tokens = (int32_t)request->n_prompt,
        .cached_tokens = (int32_t)sequence->n_cached,
        .completion_tokens = (int32_t)(sequence->n_tokens - request->n_prompt),
        .queue_seconds = since(request->submit_time, request->start_time),
        .first_token_seconds = since(request->submit_time, sequence->first_token_time),
        .total_seconds = qr_now_seconds() - request->submit_time,
    };
    qr_request_send(request, sequence->sample, &event);
}

/* ---- The end of samples and requests ----------------------------------------------------------------------------- */

/* One sample less; after the last one the number of the request is no longer known. */
static void close_sample(qrun_session *session, qr_request *request) {
    session->n_ended++;
    if (--request->n_open > 0) { return; }
    pthread_mutex_lock(&session->lock);
    qr_request_queue_forget(&session->queue, request);
    pthread_mutex_unlock(&session->lock);
    request->next = session->over;
    session->over = request;
}

static void close_sequence(qrun_session *session, qr_sequence *sequence) {
    qr_request *request = sequence->request;
    qr_sequence_leave(session, sequence);
    qr_sequence_set_state(sequence, QR_SEQUENCE_DONE);
    if (request->n_open == 1) { qr_request_list_remove(&session->started, request); }
    close_sample(session, request);
}

/* Frees the requests that are over. */
static void sweep(qrun_session *session) {
    while (session->over != NULL) {
        qr_request *request = session->over;
        session->over = request->next;
        qr_request_destroy(request, session->cache);
        session->counts.n_finished++;
    }
}

void qr_request_fail(qrun_session *session, qr_request *request, qrun_status status, const char *message) {
    for (int32_t i = 0; i < request->n_samples; i++) {
        if (request->sequences == NULL) {
            close_sample(session, request);
        } else if (request->sequences[i].state != QR_SEQUENCE_DONE) {
            close_sequence(session, &request->sequences[i]);
        }
    }
    qrun_event event = {.type = QRUN_EVENT_ERROR, .is_last = true, .message = message, .status = status};
    qr_request_send(request, 0, &event);
}

/* Ends a sample. The event carries the text that was held back, unless a stop string ended the sample or it has none.
 */
static void finish(qrun_session *session, qr_sequence *sequence, const char *reason, bool without_text) {
    const char *text = "";
    size_t n_bytes = 0;
    bool stopped;
    if (!without_text) { (void)qr_answer_finish(&sequence->answer, &text, &n_bytes, &stopped, NULL); }
    qr_state_keep(session, sequence); /* the next turn continues from here */
    close_sequence(session, sequence);
    send_done(sequence, reason, text, n_bytes);
}

/* ---- Taking in --------------------------------------------------------------------------------------------------- */

static void drain_descriptor(const qrun_session *session) {
    uint64_t count;
    while (read(session->event_descriptor, &count, sizeof count) < 0 && errno == EINTR) {}
    while (session->idle_timer >= 0 && read(session->idle_timer, &count, sizeof count) < 0 && errno == EINTR) {}
}

static void end_before_start(qrun_session *session, qr_request *request) {
    for (int32_t i = 0; i < request->n_samples; i++) {
        const qr_sequence none = {.request = request, .sample = i, .n_tokens = request->n_prompt};
        close_sample(session, request);
        send_done(&none, "cancelled", "", 0);
    }
}

/* Those that run end with this step. Of those that wait a step ends a thousand, so that it never takes long. */
static void take_cancellations(qrun_session *session) {
    enum { MOST_SAMPLES = 1024 };
    for (qr_request *request = session->started.first, *next; request != NULL; request = next) {
        next = request->next;
        if (!atomic_load(&request->cancelled)) { continue; }
        for (int32_t i = 0; i < request->n_samples; i++) {
            qr_sequence *sequence = &request->sequences[i];
            if (sequence->state != QR_SEQUENCE_DONE) { finish(session, sequence, "cancelled", false); }
        }
    }
    for (int32_t n = 0; n < MOST_SAMPLES;) {
        pthread_mutex_lock(&session->lock);
        qr_request *request = qr_request_queue_take_cancelled(&session->queue);
        pthread_mutex_unlock(&session->lock);
        if (request == NULL) { break; }
        n += request->n_samples;
        end_before_start(session, request);
    }
    sweep(session);
}

/* ---- The next tokens of a step ----------------------------------------------------------------------------------- */

/* Whether the step computes all known tokens of a sequence, so that its last row gives the next one, if one is wanted.
 */
static bool catches_up(const qr_sequence *sequence) {
    return sequence->kv.n_tokens + sequence->n_step == sequence->n_tokens + sequence->drafts.n &&
           !sequence->request->prompt_only;
}

/* Tokens of a sequence in a step, and the position of the first. */
static int64_t n_step_tokens(const qr_step *step, const qr_sequence *sequence) {
    return step->is_ahead ? sequence->goes_ahead : sequence->n_step;
}
static int64_t first_step_token(const qr_step *step, const qr_sequence *sequence) {
    return sequence->kv.n_tokens + (step->is_ahead ? sequence->n_step : 0);
}

/* Rows of logits that a sequence of the step wants: after its last known token, and after each draft. */
static int64_t count_rows(const qr_sequence *sequence) { return catches_up(sequence) ? 1 + sequence->drafts.n : 0; }

static void add_next_token(qr_step *step, qr_sequence *sequence, int64_t n_ahead) {
    const qr_request *request = sequence->request;
    const bool on_host =
        request->logprobs > 0 || qr_sampling_changes_logits(&request->sampling) || request->grammar != NULL;
    step->next[step->n_next++] = (qr_next_token){
        .sequence = sequence, .n_ahead = n_ahead, .row = step->n_rows, .on_host = on_host, .index = step->n_on_device};
    step->n_on_device += !on_host;
}

/* One next token for each row of logits. The first row of a request has one more for every other sample that starts
 * from it and will get a slot. */
static void list_next_tokens(qrun_session *session, qr_step *step) {
    int32_t n_free = session->n_free_slots;
    step->n_rows = step->n_next = step->n_on_device = step->n_drafts = 0;
    for (int32_t i = 0; i < session->n_running; i++) {
        qr_sequence *sequence = session->running[i];
        if (n_step_tokens(step, sequence) == 0 || !catches_up(sequence)) { continue; }
        qr_request *request = sequence->request;
        add_next_token(step, sequence, 0);
        for (int32_t k = 1; !request->started && k < request->n_samples; k++) {
            qr_sequence *held = &request->sequences[k];
            if (held->state != QR_SEQUENCE_HELD || n_free == 0) { continue; }
            n_free--;
            add_next_token(step, held, 0);
        }
        step->n_rows++;
        for (int64_t d = 1; d <= sequence->drafts.n; d++) {
            add_next_token(step, sequence, d);
            step->n_rows++;
            step->n_drafts++;
        }
    }
}

static bool is_listed(const qr_step *step, const qr_sequence *sequence) {
    for (int64_t i = 0; i < step->n_next; i++) {
        if (step->next[i].sequence == sequence) { return true; }
    }
    return false;
}

/* The prompt of the first sample is computed: the others share its pages, or wait for a slot. The slots go to those
 * whose next tokens are listed, and to no others, though more slots may be free by now. */
static void release_held(qrun_session *session, qr_sequence *first) {
    qr_request *request = first->request;
    if (request->started) { return; }
    request->started = true;
    for (int32_t i = 1; i < request->n_samples; i++) {
        qr_sequence *sequence = &request->sequences[i];
        if (sequence->state != QR_SEQUENCE_HELD) { continue; }
        if (is_listed(&session->step, sequence) && qr_sequence_take_slot(session, sequence)) {
            qr_kv_fork(session->cache, &first->kv, &sequence->kv);
            qr_state_fork(session, first, sequence);
            sequence->n_cached = request->n_prompt;
            sequence->has_run = true;
        } else {
            qr_sequence_set_state(sequence, QR_SEQUENCE_WAITING);
        }
    }
}

/* ---- Computing --------------------------------------------------------------------------------------------------- */

/* Block tables as wide as the longest sequence of the step needs. A step that only decodes has the sizes that the
 * forward pass replays, where it does. */
static qr_batch_sizes measure_step(const qrun_session *session, qr_step *step) {
    qr_batch_sizes sizes = {.n_rows = step->n_rows, .n_samples = step->n_on_device, .table_stride = 1};
    for (int32_t i = 0; i < session->n_running; i++) {
        const qr_sequence *sequence = session->running[i];
        const int64_t n = n_step_tokens(step, sequence);
        if (n == 0) { continue; }
        const int64_t n_blocks = qr_ceil_div(first_step_token(step, sequence) + n, QR_KV_PAGE_TOKENS);
        sizes.n_tokens += n;
        sizes.n_sequences++;
        sizes.table_stride = qr_max(sizes.table_stride, n_blocks);
    }
    step->n_tokens = sizes.n_tokens;
    step->is_decode = sizes.n_tokens == step->n_rows && sizes.n_tokens == step->n_next &&
                      qr_forward_decode_sizes(session->forward, &sizes);
    for (int64_t i = 0; step->is_decode && i < step->n_next; i++) { step->next[i].index = i; }
    return sizes;
}

/* first_row: the first row whose logits exist when the device samples. For a token that the host samples the device
 * takes the greedy one, and nothing reads it. */
static qr_sample_params device_args(const qr_step *step, const qr_next_token *next, int64_t first_row) {
    const qr_sequence *sequence = next->sequence;
    const qr_request *request = sequence->request;
    const int64_t position = sequence->n_tokens + next->n_ahead + (step->is_ahead ? 1 : 0);
    qr_sample_params args = {.temperature = 0.0F};
    if (!next->on_host) { args = qr_sampling_op_args(&request->sampling, sequence->sample, position); }
    args.row = (int32_t)(next->row - first_row);
    args.wants_logprob = request->logprobs == 0;
    return args;
}

/* A decode step has one token a sequence of the batch, so drafts count as sequences there. */
static void add_to_batch(qr_batch *batch, const qr_step *step, const qr_sequence *sequence) {
    const int64_t first = first_step_token(step, sequence), n = n_step_tokens(step, sequence);
    const int64_t n_logits = count_rows(sequence);
    const int32_t adapter = qr_adapter_index(sequence->request->adapter);
    if (!step->is_decode) {
        qr_batch_add(batch, &sequence->kv, sequence->tokens, first, n, sequence->slot, adapter, n_logits);
        return;
    }
    for (int64_t i = first; i < first + n; i++) {
        qr_batch_add(batch, &sequence->kv, sequence->tokens, i, 1, sequence->slot, adapter, 1);
    }
}

/* The tokens that the step under way samples, where the step after it finds them: on the device. */
static void name_unread_tokens(const qr_step *under_way) {
    for (int64_t i = 0; i < under_way->n_next; i++) {
        const qr_sequence *sequence = under_way->next[i].sequence;
        if (sequence != NULL) { sequence->tokens[sequence->n_tokens] = (int32_t)(-1 - under_way->next[i].index); }
    }
}

static void fill_batch(const qrun_session *session, const qr_step *step, qr_batch *batch) {
    const int64_t most = session->sizes.forward.max_logit_rows;
    for (int32_t i = 0; i < session->n_running; i++) {
        const qr_sequence *sequence = session->running[i];
        if (n_step_tokens(step, sequence) > 0) { add_to_batch(batch, step, sequence); }
    }
    for (int64_t i = 0; i < step->n_next; i++) {
        const qr_next_token *next = &step->next[i];
        if (next->on_host && !step->is_decode) { continue; }
        batch->samples[batch->n_samples++] = device_args(step, next, next->row / most * most);
    }
    if (step->is_decode) { qr_batch_pad(batch); }
}

/* What a sequence needs on the device before its first step in a slot. */
static qrun_status prepare_slots(qrun_session *session, qr_error *err) {
    for (int32_t i = 0; i < session->n_running; i++) {
        qr_sequence *sequence = session->running[i];
        if (sequence->has_rope || sequence->n_step == 0) { continue; }
        QR_RETURN_IF_ERROR(qr_forward_set_rope(session->forward, sequence->slot, sequence->n_tokens,
                                               sequence->request->rope_tokens, err));
        sequence->has_rope = true;
        if (sequence->request->start_time == 0) { sequence->request->start_time = qr_now_seconds(); }
    }
    return QRUN_OK;
}

/* Whether the device samples all tokens of a step without the host, from logits that exist at the same time. */
static bool is_sampled_at_once(const qrun_session *session, const qr_step *step) {
    return step->n_tokens == step->n_rows && step->n_rows <= session->sizes.forward.max_logit_rows &&
           step->n_next > 0 && step->n_on_device == step->n_next && qr_forward_can_go_ahead(session->forward);
}

/* The rest of such a step; a decode step has its output head and its sampling already. */
static qrun_status issue_sampling(qrun_session *session, qr_step *step, qr_error *err) {
    qr_forward *forward = session->forward;
    if (!step->is_decode) {
        QR_RETURN_IF_ERROR(qr_forward_head(forward, 0, step->n_rows, err));
        QR_RETURN_IF_ERROR(qr_forward_sample(forward, 0, step->n_next, err));
    }
    QR_RETURN_IF_ERROR(qr_forward_sampled_begin(forward, step->n_next, &step->sampled, err));
    step->is_sampled = true;
    return QRUN_OK;
}

static qrun_status issue(qrun_session *session, qr_step *step, qr_error *err) {
    qrun_context *context = session->model->context;
    qr_batch *batch;
    list_next_tokens(session, step);
    const qr_batch_sizes sizes = measure_step(session, step);
    step->is_sampled = false;
    if (step->is_ahead) { name_unread_tokens(&session->step); }
    qr_compute_lock(context);
    qrun_status status = QRUN_OK;
    qr_timeline_phase(context->backend, step->n_tokens > step->n_rows ? QR_PHASE_prefill : QR_PHASE_decode);
    QR_TRY(qr_forward_begin(session->forward, &sizes, &batch, err));
    fill_batch(session, step, batch);
    QR_TRY(prepare_slots(session, err));
    QR_TRY(qr_forward_copy_pages(session->forward, step->copies, step->n_copies, err));
    QR_TRY(qr_states_copy(session, err));
    QR_TRY(step->is_decode ? qr_forward_decode(session->forward, err) : qr_forward_run(session->forward, err));
    session->counts.steps++;
    session->counts.ahead_steps += step->is_ahead;
    if (is_sampled_at_once(session, step)) { QR_TRY(issue_sampling(session, step, err)); }
    step->is_issued = true;
out:
    qr_compute_unlock(context);
    return status;
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
    const qr_sampling_history history = {.tokens = sequence->tokens,
                                         .n_prompt = request->n_prompt,
                                         .n_tokens = sequence->n_tokens + next->n_ahead,
                                         .capacity = request->capacity,
                                         .eos = &session->model->generation.eos,
                                         .stops = request->stop_ids,
                                         .n_stops = request->n_stop_ids};
    const uint32_t *mask;
    if (!qr_form_mask(session, next, worker, &mask)) { return; }
    next->token = qr_sampler_sample(session->samplers[worker], &request->sampling, &history, sequence->sample, mask,
                                    next->logits);
    if (request->logprobs < 0 || next->token < 0) { return; }
    next->n_top = (int32_t)qr_min(request->logprobs, vocab);
    next->logprob = qr_token_logprobs(next->logits, vocab, next->token, next->n_top, next->top);
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
    const qr_sampled *sampled = step->sampled.sampled;
    const int64_t n = step->is_decode ? step->n_next : step->n_on_device;
    if (step->n_on_device == 0) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(step->is_sampled ? qr_forward_sampled_end(session->forward, &step->sampled, err)
                                        : qr_forward_sampled(session->forward, n, &sampled, err));
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
    if (step->is_sampled) {
        qr_compute_lock(context);
        const qrun_status status = take_sampled(session, err);
        qr_compute_unlock(context);
        return status;
    }
    for (int64_t row = 0; row < step->n_rows; row += session->sizes.forward.max_logit_rows) {
        sampling_piece piece = piece_from(session, row, n_next);
        n_next += piece.n_next;
        qr_compute_lock(context);
        qrun_status status = sample_rows(&piece, n_on_device, err);
        n_on_device += piece.n_on_device;
        if (status == QRUN_OK && n_next == step->n_next) { status = take_sampled(session, err); }
        qr_compute_unlock(context);
        if (status != QRUN_OK) { return status; }
        if (piece.n_on_device < piece.n_next) {
            const double asked = qr_timeline_now(context->backend);
            qr_threads_run(context->threads, piece.n_next, sample_on_host, &piece);
            qr_timeline_put_host(context->backend, "sampling", QR_PHASE_sample, asked);
        }
    }
    return QRUN_OK;
}

/* ---- Drafts ------------------------------------------------------------------------------------------------------ */

/* A draft is accepted if it and those before it are what was sampled. Listed are a sequence's tokens in their order. */
static void accept_drafts(qrun_session *session) {
    const qr_step *step = &session->step;
    for (int64_t i = 0; i < step->n_next; i++) {
        const qr_next_token *next = &step->next[i];
        if (next->sequence == NULL) { continue; }
        qr_drafts *drafts = &next->sequence->drafts;
        const int64_t n = next->n_ahead;
        if (n != drafts->n_accepted || n == drafts->n || next->is_broken) { continue; }
        drafts->n_accepted += next->token == next->sequence->tokens[next->sequence->n_tokens + n];
    }
    for (int64_t i = 0; i < step->n_next; i++) {
        const qr_next_token *next = &step->next[i];
        if (next->sequence == NULL || next->n_ahead > 0) { continue; }
        qr_drafts_learn(&next->sequence->drafts, next->token);
    }
}

/* The K/V of accepted tokens stay. What was written after them is not known to anybody, and is overwritten. */
static void commit(qrun_session *session) {
    for (int32_t i = 0; i < session->n_running; i++) {
        qr_sequence *sequence = session->running[i];
        const qr_drafts *drafts = &sequence->drafts;
        if (sequence->n_step == 0) { continue; }
        qr_kv_commit(session->cache, &sequence->kv, sequence->tokens,
                     sequence->n_step - (drafts->n - drafts->n_accepted));
        if (qr_state_is_due(session, sequence)) { qr_state_keep(session, sequence); }
        session->counts.draft_tokens += drafts->n;
        session->counts.accepted_draft_tokens += drafts->n_accepted;
    }
}

/* ---- Delivering tokens ------------------------------------------------------------------------------------------- */

static bool has_id(const int32_t *ids, int32_t n, int32_t token) {
    for (int32_t i = 0; i < n; i++) {
        if (ids[i] == token) { return true; }
    }
    return false;
}

static bool ends_answer(const qrun_session *session, const qr_request *request, int32_t token) {
    const qr_token_ids *eos = &session->model->generation.eos;
    return has_id(request->stop_ids, request->n_stop_ids, token) ||
           (!request->ignore_eos && has_id(eos->ids, eos->n, token));
}

/* Adds the token to its sequence, sends its event, and ends the sample where it was the last. */
static void deliver_token(qrun_session *session, const qr_next_token *next) {
    qr_sequence *sequence = next->sequence;
    qr_request *request = sequence->request;
    if (sequence->state != QR_SEQUENCE_RUNNING) { return; } /* it ended earlier in this step */
    /* A callback that cancels at a token has that one as the last, drafts or none. */
    if (next->n_ahead > 0 && atomic_load(&request->cancelled)) { return; }
    if (next->is_broken) {
        qr_request_fail(session, request, QRUN_ERROR_INPUT,
                        "the model computed non-finite values; are its weights intact?");
        return;
    }
    if (next->token < 0) {
        qr_request_fail(session, request, next->is_too_much ? QRUN_ERROR_UNSUPPORTED : QRUN_ERROR_ARGUMENT,
                        qr_form_failure(next));
        return;
    }
    if (sequence->first_token_time == 0) { sequence->first_token_time = qr_now_seconds(); }
    if (ends_answer(session, request, next->token)) {
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
                        .n_top = next->n_top,
                        .prompt_tokens = (int32_t)request->n_prompt,
                        .cached_tokens = (int32_t)sequence->n_cached};
    bool stopped, is_over;
    qr_error err = {0};
    if (!qr_form_follow(session, sequence, next->token, &is_over)) {
        qr_request_fail(session, request, QRUN_ERROR_UNSUPPORTED, QR_FORM_TOO_MUCH);
        return;
    }
    if (qr_answer_push(&sequence->answer, next->token, &event.text, &event.text_bytes, &stopped, &err) != QRUN_OK) {
        qr_request_fail(session, request, err.status, err.message);
        return;
    }
    qr_request_send(request, sequence->sample, &event);
    if (stopped || is_over) {
        finish(session, sequence, "stop", stopped);
    } else if (sequence->n_tokens == request->capacity) {
        finish(session, sequence, "length", false);
    }
}

/* A sequence of which the prompt alone was wanted ends with it. */
static void finish_prompts(qrun_session *session) {
    for (int32_t i = session->n_running; i-- > 0;) {
        qr_sequence *sequence = session->running[i];
        const bool is_computed = sequence->kv.n_tokens == sequence->n_tokens;
        if (sequence->request->prompt_only && is_computed) { finish(session, sequence, "length", true); }
    }
}

static void deliver_tokens(qrun_session *session) {
    const qr_step *step = &session->step;
    accept_drafts(session);
    commit(session);
    finish_prompts(session);
    for (int64_t i = 0; i < step->n_next; i++) {
        if (step->next[i].sequence != NULL) { release_held(session, step->next[i].sequence); }
    }
    for (int64_t i = 0; i < step->n_next; i++) {
        const qr_next_token *next = &step->next[i];
        if (next->sequence != NULL && next->n_ahead <= next->sequence->drafts.n_accepted) {
            deliver_token(session, next);
        }
    }
}

/* ---- The step ---------------------------------------------------------------------------------------------------- */

static bool update_stats(qrun_session *session, double seconds, int64_t prompt_tokens) {
    qr_kv_stats pages;
    qr_kv_get_stats(session->cache, &pages);
    const qr_replay_stats *replays = qr_forward_replays(session->forward);
    qrun_session_stats *counts = &session->counts;
    counts->n_running = session->n_running;
    counts->pages_used = pages.n_used;
    counts->pages_shared = pages.n_shared;
    counts->pages_cached = pages.n_cached;
    counts->pages_peak = pages.peak_used;
    counts->replayed_steps = replays->n_replayed;
    memcpy(counts->replay_failure, replays->reason, sizeof counts->replay_failure);
    counts->restored_prompt_tokens = pages.n_brought_tokens;
    qr_page_store_note(session->store, counts->cache_note, sizeof counts->cache_note);
    counts->step_seconds += seconds;
    if (prompt_tokens > 0) { counts->prefill_seconds += seconds; }
    counts->prompt_tokens += prompt_tokens;
    pthread_mutex_lock(&session->lock);
    counts->n_waiting = (int32_t)qr_min(session->queue.n_samples - session->n_ended - session->n_running, INT32_MAX);
    session->stats = *counts;
    const bool has_work = session->queue.root != NULL;
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

/* Of a step that only decodes. One that went ahead took as long as there was between its tokens and those before. */
static void learn_costs(qrun_session *session, double start) {
    const qr_step *step = &session->step;
    const double now = qr_now_seconds(), seconds = now - (step->is_ahead ? session->collected_time : start);
    session->collected_time = now;
    if (step->n_tokens != step->n_rows) { return; }
    qr_draft_costs_learn(&session->draft_costs, step->n_rows, step->n_drafts, seconds);
}

/* The step that went ahead is the one under way from now on; there may be none. Of what it has computed nothing is
 * wanted where no sequence is left. */
static void turn_over(qrun_session *session) {
    qr_step *step = &session->step, *ahead = &session->ahead;
    qr_next_token *next = step->next;
    step->is_issued = ahead->is_issued && session->n_running > 0;
    ahead->is_issued = false;
    if (!step->is_issued) { return; }
    step->next = ahead->next;
    ahead->next = next;
    step->n_tokens = ahead->n_tokens;
    step->n_rows = ahead->n_rows;
    step->n_next = ahead->n_next;
    step->n_on_device = ahead->n_on_device;
    step->n_drafts = ahead->n_drafts;
    step->is_decode = ahead->is_decode;
    step->is_ahead = ahead->is_ahead;
    step->is_sampled = ahead->is_sampled;
    step->sampled = ahead->sampled;
    for (int32_t i = 0; i < session->n_running; i++) {
        qr_sequence *sequence = session->running[i];
        sequence->n_step = sequence->goes_ahead;
        sequence->goes_ahead = false;
        qr_drafts_drop(&sequence->drafts); /* the guess was of the token that is known now */
    }
}

/* The step under way, or the next one, and the one after it. */
static qrun_status issue_steps(qrun_session *session, qr_error *err) {
    if (!session->step.is_issued) { QR_RETURN_IF_ERROR(issue(session, &session->step, err)); }
    if (!qr_schedule_ahead(session)) { return QRUN_OK; }
    session->ahead.is_ahead = true;
    return issue(session, &session->ahead, err);
}

static qrun_status collect(qrun_session *session, double start, qr_error *err) {
    QR_RETURN_IF_ERROR(sample_tokens(session, err));
    QR_RETURN_IF_ERROR(qr_take_prompt_rows(session, err));
    learn_costs(session, start);
    deliver_tokens(session);
    turn_over(session);
    return QRUN_OK;
}

static qrun_status run_step(qrun_session *session, int64_t *prompt_tokens, qr_error *err) {
    drain_descriptor(session);
    take_cancellations(session);
    if (session->n_running == 0) { session->step.is_issued = false; }
    *prompt_tokens = 0;
    const double start = qr_now_seconds(); /* drafting is part of what drafts cost */
    if (!session->step.is_issued) {
        if (!qr_schedule(session)) {
            sweep(session);
            if (session->started.first == NULL) { return qr_forward_idle(session->forward, err); }
            return qr_fail(err, QRUN_ERROR_INTERNAL, "the scheduler found nothing to compute although requests wait");
        }
        session->step.is_ahead = false;
        *prompt_tokens = count_prompt_tokens(session);
    }
    qrun_status status = issue_steps(session, err);
    if (status == QRUN_OK) { status = collect(session, start, err); }
    /* Pages may have been reserved or half written: a later step computes everything again. */
    if (status != QRUN_OK) {
        session->step.is_issued = session->ahead.is_issued = false;
        qr_requeue_all(session);
        qr_states_forget(session);
    }
    sweep(session);
    return status;
}

qrun_status qrun_session_step(qrun_session *session, bool *has_work, qrun_error *error) {
    *has_work = false;
    QR_RETURN_IF_ERROR(qr_split_session_require_leader(session, error));
    if (atomic_exchange(&session->stepping, true)) {
        return qr_fail(error, QRUN_ERROR_BUSY, "this session is in a step; a callback cannot step it");
    }
    const double start = qr_now_seconds();
    int64_t prompt_tokens;
    const qrun_status status = run_step(session, &prompt_tokens, error);
    *has_work = update_stats(session, qr_now_seconds() - start, prompt_tokens);
    atomic_store(&session->stepping, false);
    return status;
}
