/* The state of a forward pass: for forward.c, which runs it, and forward_plan.c, which says how much memory it takes
 * and makes it. */
#ifndef QR_RUNTIME_GENERATE_FORWARD_INTERNAL_H
#define QR_RUNTIME_GENERATE_FORWARD_INTERNAL_H

#include "runtime/generate/forward.h"
#include "runtime/layers/layer.h"
#include "runtime/ranks/split_ranks.h"

/* The tables of a step, in device memory and in the host memory that they are copied from. */
typedef struct qr_step_tables {
    void *batch;           /* qr_batch at its largest */
    int32_t *targets;      /* [R] */
    qr_sampled *sampled;   /* [S] */
    float *inv_freq[2];    /* [n_rope_slots, half] per rope kind */
    float *rope_factor[2]; /* [n_rope_slots] */
} qr_step_tables;

/* The buffers of a forward pass: device memory in three allocations (activations, tables, logits), the ops'
 * workspace, and one of host memory that copies come from. A buffer is named for what it holds at its widest. */
typedef struct qr_forward_buffers {
    /* activations */
    float *x;               /* [T, D] residual stream */
    float *streams;         /* [T, N, D]: where there are several, as the next */
    float *stream_coefs;    /* [T, N, N] */
    float *residual;        /* [T, R]: of the product beside attention, as the next two */
    void *residual_x;       /* [T, R] act */
    float *residual_branch; /* [T, D] */
    void *normed;           /* [T, D] act */
    float *qkv;             /* [T, (H + 2 KV) · HD] */
    void *attended;         /* [T, H · HD] act */
    float *q_gate;          /* [T, H, 2, HD] or [T, H, HD]; where mlp is when its turn has come, as the next three */
    float *all_heads, *whole_row;   /* [T, (H + KV) · HD] and [T, H · HD] of all ranks */
    float *by_head;                 /* [T, columns] */
    float *latent, *absorbed;       /* as qr_layer_buffers has them, of models with latent attention, as the next */
    void *q_latent, *weighed;       /* [T, H, kv_rank + rotated_dim] act: latents that attention weighed; or its output
                                     * with what is behind short values, [T, H · HD] act */
    float *values;                  /* [T, KV · value_dim]; models with short values only */
    float *delta_latent;            /* [T, 2, gate_rank] */
    void *z_latent, *a_latent;      /* [T, gate_rank] act */
    float *conved;                  /* [T, channels] */
    float *recalled;                /* [T, values] */
    float *sparse_gate;             /* [T, M] of all ranks, where a layer's gate is sparse */
    float *mlp;                     /* [T, 2 M], or [T, M] ungated */
    void *gated;                    /* [T, M] act */
    qr_expert_buffers experts;      /* where the processor computes them: slots [T, D], and no routing */
    qr_expert_buffers on_processor; /* host; only there, as the next two */
    void *processor_x;              /* host, [T, D] act: what they read */
    float *processor_sum;           /* host, [T, D] */
    void *processor_workspace;      /* host */
    float *inputs;                  /* [T, L, P] */
    float *branch;                  /* [T, D]: output of a block that is normed before it is added */
    float *dora;                    /* [T, D]: qkv, which nothing reads after attention, where that is wide enough */
    float *cos_table[2], *sin_table[2]; /* [T, half] per rope kind */
    float *selected;                    /* [R, D]: rows that want logits */
    void *selected_normed;              /* [R, D] act */
    qr_step_tables tables, host;        /* batch and sampled of `host`: the first of those below */
    void *host_batches[2];              /* of steps in turn; one where steps do not go ahead */
    qr_sampled *host_sampled[2];
    /* logits */
    float *logits; /* [R, V] */
    float *nll;    /* [R] */
} qr_forward_buffers;

struct qr_forward {
    qrun_model *model;
    qr_backend *backend;
    qr_forward_limits limits;
    qr_forward_buffers b;
    unsigned char *pages;
    size_t page_bytes;
    float *states;
    qr_plan_memory memory;      /* of the categories made here */
    qr_layer_pass pass;         /* what the ops run with; n_tokens and adapters are the step's */
    qr_layer_pass on_processor; /* the same for experts that the processor computes */
    qr_backend *processor;      /* NULL: it computes none */
    size_t processor_workspace_bytes;
    qr_op_list ops;        /* empty between the calls below */
    qr_batch host, device; /* the step's tables in either memory */
    qr_replay replay;
    qr_split_ranks split;
    qr_kv_copy *copies; /* host, [n_copies]: of pages, as rank 0 announces them; the next of states */
    qr_state_copy *state_copies;
    int64_t n_copies, n_state_copies;
    qr_page_store *store;          /* lent; NULL: none */
    int64_t rope_begin, rope_end;  /* slots that the device does not have yet */
    int64_t n_host;                /* of host_batches */
    int64_t n_begun, n_copies_out; /* steps, and copies of what they sampled */
    bool is_reading[2]; /* the device may not have read that of host_batches yet, or what was copied in with it */
};

/* What the plan runs of a step. */

/* An attend of qr_layer_pass; arg: the forward pass. */
qrun_status qr_forward_attend(void *arg, const qr_layer *layer, const qr_heads *heads, qr_error *err);
/* table: of the model's adapters; NULL: the step has none. */
qr_layer_adapters qr_forward_adapters(const qr_forward *f, const qr_lora_factor *table);
/* The layers of the step whose tables are laid out. */
qrun_status qr_forward_run_layers(qr_forward *f, qr_error *err);
/* Logits of n rows of x [n, D]. */
qrun_status qr_forward_run_head(qr_forward *f, const float *x, int64_t n, qr_error *err);
/* Of n tokens of the last run, from `first` on, against b.tables.targets. */
qrun_status qr_forward_run_nll(qr_forward *f, int64_t first, int64_t n, qr_error *err);
/* The next larger of few numbers of rows of a decode step, and no more than `most`: a kernel's tile is eight. */
int64_t qr_forward_bucket(int64_t n, int64_t most);

#endif
