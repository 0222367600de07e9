#include "kernels/timeline/op_tensors.h"

#include <assert.h>

static void add_reads(qr_op_tensors *t, const void *const *addresses, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (addresses[i] == NULL) { continue; }
        assert(t->n_reads < QR_MOST_OP_READS);
        t->reads[t->n_reads++] = addresses[i];
    }
}

/* An argument in the place of one that is read is worked on in place. */
static void add_writes(qr_op_tensors *t, const void *const *addresses, size_t n) {
    for (size_t i = 0; i < n; i++) {
        bool is_read = addresses[i] == NULL;
        for (int r = 0; r < t->n_reads; r++) { is_read = is_read || t->reads[r] == addresses[i]; }
        if (is_read) { continue; }
        assert(t->n_writes < QR_MOST_OP_WRITES);
        t->writes[t->n_writes++] = addresses[i];
    }
}

#define LIST(add, ...)                                 \
    do {                                               \
        const void *const list_[] = {__VA_ARGS__};     \
        add(t, list_, sizeof list_ / sizeof list_[0]); \
    } while (0)
#define READS(...) LIST(add_reads, __VA_ARGS__) /* and what is added to */
#define WRITES(...) LIST(add_writes, __VA_ARGS__)
#define ROUTING(routing) \
    READS((routing).expert, (routing).slot, (routing).slot_row, (routing).share, (routing).expert_start)
#define SEQUENCES(sequences) READS((sequences).start, (sequences).first_position, (sequences).slot, (sequences).states)

/* After what is read. */
static void add_or_write(qr_op_tensors *t, bool adds, const void *address) {
    if (adds) {
        READS(address);
    } else {
        WRITES(address);
    }
}

/* The function of an op: `a` is its arguments. */
#define TENSORS(op, ...)                                        \
    static void list_##op(const void *args, qr_op_tensors *t) { \
        const qr_##op##_args *a = args;                         \
        __VA_ARGS__;                                            \
    }

/* ---- Forward ----------------------------------------------------------------------------------------------------- */

TENSORS(quantize, (void)a, (void)t) /* host memory */
TENSORS(embedding, READS(a->ids, a->sampled); add_or_write(t, a->accumulate, a->dst))
TENSORS(gather_rows, READS(a->src, a->rows); WRITES(a->dst))
TENSORS(rms_norm, READS(a->src, a->weight); WRITES(a->dst))
TENSORS(layer_norm, READS(a->src, a->weight, a->bias); WRITES(a->dst))
TENSORS(
    linear, READS(a->x, a->bias); if (a->lora != NULL) {
        READS(a->lora->x, a->lora->factors, a->lora->row_adapter);
    } add_or_write(t, a->accumulate, a->y))
TENSORS(route, READS(a->logits, a->scale);
        WRITES(a->routing.expert, a->routing.slot, a->routing.slot_row, a->routing.share, a->routing.expert_start))
TENSORS(expert_fetch, ROUTING(a->routing); WRITES(a->device)) /* and host memory */
TENSORS(expert_linear, ROUTING(a->routing); READS(a->x); WRITES(a->y))
TENSORS(expert_bias, ROUTING(a->routing); READS(a->bias, a->y))
TENSORS(expert_sum, ROUTING(a->routing); READS(a->src); add_or_write(t, a->accumulate, a->dst))
TENSORS(expert_lora, ROUTING(a->routing); READS(a->factors, a->row_adapter, a->x, a->y))
TENSORS(share_rows, READS(a->g, a->x))
TENSORS(lora, READS(a->factors, a->row_adapter, a->x, a->y))
TENSORS(dora_norm, READS(a->a, a->b, a->magnitude); WRITES(a->norm, a->ratio))
TENSORS(dora, READS(a->factors, a->row_adapter, a->src, a->bias, a->dst))
TENSORS(head_linear, READS(a->factors, a->row_adapter, a->x); WRITES(a->y))
TENSORS(rope_table, READS(a->inv_freq, a->factor, a->token_slot, a->position); WRITES(a->cos_table, a->sin_table))
TENSORS(rope, READS(a->x, a->cos_table, a->sin_table))
TENSORS(kv_write, READS(a->k, a->v, a->token_page, a->position, a->pages))
TENSORS(attention, READS(a->q, a->q_start, a->first_position, a->block_table, a->pages, a->sinks); WRITES(a->dst))
TENSORS(copy_heads, READS(a->src); add_or_write(t, a->accumulate, a->dst))
TENSORS(head_gate, READS(a->x, a->gate); WRITES(a->dst))
TENSORS(conv1d_causal, READS(a->x, a->weight, a->bias); SEQUENCES(a->sequences); WRITES(a->dst))
TENSORS(gated_delta, READS(a->qkv, a->a, a->b, a->a_log, a->dt_bias); SEQUENCES(a->sequences); WRITES(a->dst))
TENSORS(state_space, READS(a->xbc, a->dt, a->a_log, a->dt_bias, a->skip); SEQUENCES(a->sequences); WRITES(a->dst))
TENSORS(activation, READS(a->x); WRITES(a->dst))
TENSORS(gate, READS(a->g, a->u); WRITES(a->dst))
TENSORS(clamped_gate, READS(a->g, a->u); WRITES(a->dst))
TENSORS(xielu, READS(a->x, a->alpha_p, a->alpha_n, a->beta, a->eps); WRITES(a->dst))
TENSORS(gaussian_topk, READS(a->x); WRITES(a->dst))
TENSORS(stream_coefs, READS(a->x, a->router, a->mixes); WRITES(a->dst))
TENSORS(stream_predict, READS(a->streams, a->coefs); WRITES(a->active))
TENSORS(stream_correct, READS(a->streams, a->coefs, a->x, a->scale); WRITES(a->dst))
TENSORS(stream_level, READS(a->streams))
TENSORS(add, READS(a->x, a->y))
TENSORS(scale, READS(a->x, a->by))
TENSORS(scale_columns, READS(a->x))
TENSORS(softcap, READS(a->x))
TENSORS(nll, READS(a->logits, a->target); WRITES(a->dst))
TENSORS(sample, READS(a->logits, a->samples); WRITES(a->dst))

/* All of lora_backward but dx, which linear_backward may overwrite before. */
static void list_lora_products(const qr_lora_backward_args *a, qr_op_tensors *t) {
    READS(a->a, a->b, a->da, a->db, a->x, a->dy, a->dy_rounded);
}

/* ---- Backward ---------------------------------------------------------------------------------------------------- */

TENSORS(
    linear_backward, READS(a->dy);
    if (a->lora != NULL) { list_lora_products(a->lora, t); } add_or_write(t, a->accumulate, a->dx))
TENSORS(weight_backward, READS(a->x, a->dy, a->dw, a->dbias))
TENSORS(expert_linear_backward, ROUTING(a->routing); READS(a->dy); add_or_write(t, a->accumulate, a->dx))
TENSORS(expert_share_backward, ROUTING(a->routing); READS(a->h, a->dh); WRITES(a->dshare))
TENSORS(expert_lora_backward, ROUTING(a->routing); READS(a->a, a->b, a->da, a->db, a->x, a->dy, a->dx))
TENSORS(expert_weight_backward, ROUTING(a->routing); READS(a->x, a->dy, a->dw, a->dbias))
TENSORS(expert_bias_backward, ROUTING(a->routing); READS(a->bias, a->dy, a->dshare))
TENSORS(route_backward, ROUTING(a->routing); READS(a->logits, a->scale, a->dshare, a->dscale); WRITES(a->dlogits))
TENSORS(share_rows_backward, READS(a->g, a->x, a->dx); WRITES(a->dg))
TENSORS(lora_backward, READS(a->a, a->b, a->da, a->db, a->x, a->dy, a->dy_rounded, a->dx))
TENSORS(dora_backward, READS(a->dy, a->z, a->norm, a->dmagnitude))
TENSORS(rms_norm_backward, READS(a->x, a->weight, a->dy, a->dweight); add_or_write(t, a->accumulate, a->dx))
TENSORS(layer_norm_backward, READS(a->x, a->weight, a->dy, a->dweight, a->dbias); add_or_write(t, a->accumulate, a->dx))
TENSORS(rope_backward, READS(a->dx, a->cos_table, a->sin_table))
TENSORS(attention_packed, READS(a->q, a->k, a->v, a->seq_start, a->sinks); WRITES(a->dst, a->lse))
TENSORS(attention_packed_backward, READS(a->forward.q, a->forward.k, a->forward.v, a->forward.dst, a->forward.lse,
                                         a->forward.seq_start, a->forward.sinks, a->dout, a->dsinks);
        WRITES(a->dq, a->dk, a->dv))
TENSORS(head_gate_backward, READS(a->forward.x, a->forward.gate, a->dy); WRITES(a->dx, a->dgate))
TENSORS(conv1d_causal_backward, READS(a->forward.x, a->forward.weight, a->forward.bias, a->dy, a->dweight, a->dbias);
        SEQUENCES(a->forward.sequences); WRITES(a->dx))
TENSORS(gated_delta_backward, READS(a->forward.qkv, a->forward.a, a->forward.b, a->forward.a_log, a->forward.dt_bias,
                                    a->dy, a->da_log, a->ddt_bias);
        SEQUENCES(a->forward.sequences); WRITES(a->dqkv, a->da, a->db))
TENSORS(state_space_backward, READS(a->forward.xbc, a->forward.dt, a->forward.a_log, a->forward.dt_bias,
                                    a->forward.skip, a->dy, a->da_log, a->ddt_bias, a->dskip);
        SEQUENCES(a->forward.sequences); WRITES(a->dxbc, a->ddt))
TENSORS(activation_backward, READS(a->x, a->dy); WRITES(a->dx))
TENSORS(gate_backward, READS(a->g, a->u, a->dy); WRITES(a->dg, a->du))
TENSORS(xielu_backward, READS(a->forward.x, a->forward.alpha_p, a->forward.alpha_n, a->forward.beta, a->forward.eps);
        READS(a->dy, a->dalpha_p, a->dalpha_n); WRITES(a->dx))
TENSORS(gaussian_topk_backward, READS(a->forward.x, a->dy); WRITES(a->dx))
TENSORS(stream_coefs_backward, READS(a->forward.x, a->forward.router, a->forward.mixes);
        READS(a->dcoefs, a->drouter, a->dmixes); WRITES(a->dx))
TENSORS(stream_predict_backward, READS(a->streams, a->coefs, a->dactive, a->dstreams); WRITES(a->dcoefs))
TENSORS(stream_correct_backward, READS(a->active, a->coefs, a->x, a->scale, a->dy, a->dstreams, a->dscale);
        WRITES(a->dx, a->dcoefs))
TENSORS(stream_level_backward, READS(a->streams, a->dstreams))
TENSORS(clamped_gate_backward, READS(a->forward.g, a->forward.u, a->dy); WRITES(a->dg, a->du))

/* ---- The loss, and what is around ------------------------------------------------------------------------------- */

TENSORS(cross_entropy, READS(a->logits, a->target, a->weight); WRITES(a->loss))
TENSORS(embedding_backward, READS(a->ids, a->dy, a->dtable))
TENSORS(scatter_rows, READS(a->src, a->rows); WRITES(a->dst))
TENSORS(dropout, READS(a->x, a->row_key); WRITES(a->dst))
TENSORS(round_act, READS(a->src); WRITES(a->dst))
TENSORS(store_weight, READS(a->src))

/* ---- The update -------------------------------------------------------------------------------------------------- */

TENSORS(sum_squares, READS(a->x); WRITES(a->dst, a->n_nonfinite))
TENSORS(adamw, READS(a->p, a->g, a->m, a->v))
TENSORS(adamw8bit, READS(a->p, a->g, a->m, a->v, a->m_absmax, a->v_absmax))
TENSORS(sgd, READS(a->p, a->g, a->m))
TENSORS(adafactor, READS(a->p, a->g, a->row_moment, a->col_moment); WRITES(a->update))

typedef void (*list_fn)(const void *args, qr_op_tensors *t);

static const list_fn lists[QR_OP_COUNT] = {
#define QR_X(name) [QR_OP_##name] = list_##name,
    QR_OPS(QR_X)
#undef QR_X
};

void qr_op_list_tensors(qr_op op, const void *args, qr_op_tensors *tensors) {
    tensors->n_reads = tensors->n_writes = 0;
    lists[op](args, tensors);
}
