/* The forward pass, written once against ops: a ragged batch of tokens in, K/V into pages, logits of chosen rows out.
 * Prompt chunks, decode steps and evaluation are the same thing here.
 *
 * A step: begin, fill the batch, run, then logits. Only calls that return values to the host wait for the device.
 *
 * A step may go ahead of the one before: it is begun and issued before the tokens that the one before sampled are read.
 * Its batch then has ids of −1 − k where they would be those of sample k. So at most two steps are issued and not
 * read. */
#ifndef QR_RUNTIME_GENERATE_FORWARD_H
#define QR_RUNTIME_GENERATE_FORWARD_H

#include "runtime/cache/page_store.h"
#include "runtime/generate/batch.h"
#include "runtime/generate/replay.h"
#include "runtime/model/model.h"

/* What a forward pass is made for: fixes the sizes of its buffers. */
typedef struct qr_forward_limits {
    int64_t max_tokens;     /* T of one step */
    int64_t max_sequences;  /* S of one step */
    int64_t max_blocks;     /* entries of a sequence's block table */
    int64_t max_logit_rows; /* rows through the output head at once */
    int64_t n_rope_slots;   /* sets of rotary frequencies held */
    qr_kv_format kv_format;
} qr_forward_limits;

/* A copy among the states of sequences: those of slots first, then the snapshots. */
typedef struct qr_state_copy {
    int32_t src, dst;
} qr_state_copy;

/* Between two steps a slot is restored, restored once more where its length class changes, forked into, and its state
 * is kept at the end of a prompt and at the end of a sample. So there are as many copies for each at most. */
enum { QR_STATE_COPIES = 5 };

typedef struct qr_forward qr_forward;

/* Adds what a forward pass of these limits takes to the plan: activations, workspace, tables, logits. The model may be
 * described and not loaded. */
qrun_status qr_forward_plan(qrun_model *model, const qr_forward_limits *limits, qr_plan *plan, qr_error *err);

/* `pages` is the pool's memory (device): page p begins at pages + p · qr_page_bytes. `states` (device, NULL where the
 * model has no layers with a state): that of slot s begins at states + s · qr_recurrent_state_floats. */
qrun_status qr_forward_create(qrun_model *model, const qr_forward_limits *limits, void *pages, float *states,
                              qr_forward **forward, qr_error *err);
void qr_forward_destroy(qr_forward *forward); /* NULL is fine */

/* Sets the rotary frequencies of one slot for a sequence of n_tokens that can grow to most_tokens (rope.h). */
qrun_status qr_forward_set_rope(qr_forward *forward, int64_t slot, int64_t n_tokens, int64_t most_tokens,
                                qr_error *err);

/* The tables of the next step, in host memory, for the caller to fill (all but row_dora and row_plain); lent until the
 * next begin. Waits for an earlier step whose tables were at the same place, and may not have been read yet. */
qrun_status qr_forward_begin(qr_forward *forward, const qr_batch_sizes *sizes, qr_batch **batch, qr_error *err);

/* Copies the batch in and runs the layers: K/V of every token is in its page afterwards, and the last hidden states
 * stay until the next run. */
qrun_status qr_forward_run(qr_forward *forward, qr_error *err);

/* Copies whole pages, in order, before the next run. */
qrun_status qr_forward_copy_pages(qr_forward *forward, qr_kv_copy *copies, int64_t n, qr_error *err);
/* The same of states. */
qrun_status qr_forward_copy_states(qr_forward *forward, qr_state_copy *copies, int64_t n, qr_error *err);

/* Logits of n (≤ max_logit_rows) of the batch's `rows`, from the first on; they stay on the device until the next call
 * of these. */
qrun_status qr_forward_head(qr_forward *forward, int64_t first, int64_t n, qr_error *err);
/* Of the rows of the last qr_forward_head, n from the first on into host memory [n, V]. */
qrun_status qr_forward_copy_logits(qr_forward *forward, int64_t first, int64_t n, float *logits, qr_error *err);

/* Takes n of the batch's `samples`, from index first, from the rows of the last qr_forward_head. */
qrun_status qr_forward_sample(qr_forward *forward, int64_t first, int64_t n, qr_error *err);

/* The tokens sampled by the first n of them, in host memory; lent until the next begin. Waits. */
qrun_status qr_forward_sampled(qr_forward *forward, int64_t n, const qr_sampled **sampled, qr_error *err);

/* The same in two parts, where steps can go ahead (qr_forward_can_go_ahead): begin is called once all of a step is
 * issued, and end waits for that step, and not for one that was issued since. copy->sampled is lent until the second
 * begin after this one. */
typedef struct qr_sampled_copy {
    const qr_sampled *sampled; /* [n], after end */
    int64_t step;
    uint64_t ticket;
} qr_sampled_copy;
qrun_status qr_forward_sampled_begin(qr_forward *forward, int64_t n, qr_sampled_copy *copy, qr_error *err);
qrun_status qr_forward_sampled_end(qr_forward *forward, const qr_sampled_copy *copy, qr_error *err);

/* Whether the backend works on its own after a step has been issued. Not while ops are timed: one step after the other
 * is measured then. Not where the host takes part in each step: ranks share it, layers are offloaded, or the processor
 * computes experts. */
bool qr_forward_can_go_ahead(const qr_forward *forward);

/* --- Decode steps: sequences of one token each, all of which want logits and one sample, no more than max_logit_rows.
 * Where the backend can record them, sizes are raised to one of few, the step is padded to them (qr_batch_pad), and
 * steps of equal sizes are replayed. --- */

/* Raises the sizes of a decode step to those that are recorded. False if the backend does not record or they are too
 * large: such a step is run as any other. */
bool qr_forward_decode_sizes(const qr_forward *forward, qr_batch_sizes *sizes);

/* run, head and sampling in one, of a batch with such sizes. */
qrun_status qr_forward_decode(qr_forward *forward, qr_error *err);

const qr_replay_stats *qr_forward_replays(const qr_forward *forward);

/* Logits of n (≤ max_logit_rows) tokens of the last run, from token `first` on, into host memory [n, V]. */
qrun_status qr_forward_logits(qr_forward *forward, int64_t first, int64_t n, float *logits, qr_error *err);

/* The same, but only the negative log-likelihood of one target id per token: targets, nll [n]. */
qrun_status qr_forward_nll(qr_forward *forward, int64_t first, const int32_t *targets, int64_t n, float *nll,
                           qr_error *err);

/* Hidden states of the same after the final norm, into host memory [n, D]. */
qrun_status qr_forward_hidden(qr_forward *forward, int64_t first, int64_t n, float *hidden, qr_error *err);

/* --- A model that is split among ranks (split_ranks.h): calls above are rank 0's, and the others follow. --- */

/* The session's store of kept pages, lent; NULL: none. */
void qr_forward_set_store(qr_forward *forward, qr_page_store *store);
/* Of the ranks that share the model's pages; what it holds is lent. Fine before a store is set. */
qr_page_ranks qr_forward_page_ranks(const qr_forward *forward);

/* Does what rank 0 announces next; *ends: that was the last. */
qrun_status qr_forward_follow(qr_forward *forward, bool *ends, qr_error *err);
/* Rank 0 has nothing to compute: all meet, so that none is taken for silent. Nothing for a whole model. */
qrun_status qr_forward_idle(const qr_forward *forward, qr_error *err);
/* The others need not wait for rank 0 any more. */
void qr_forward_end(const qr_forward *forward);

/* How K/V are stored where nothing else is asked for: in the type that the model computes in. */
qr_kv_format qr_kv_format_of_model(const qrun_model *model);

/* Bytes of a page: the layers of the largest group. */
size_t qr_page_bytes(const qrun_model *model, qr_kv_format format);
/* The type with the smallest pages. Latents are not held in INT8: one scale would be for the latent and for the part of
 * the keys that rotates, which may be a hundred times as large. */
qr_kv_format qr_kv_smallest_format(const qrun_model *model);

#endif
