/* Which way experts in host memory are computed (runtime/model/host_experts.h), and why: as it is asked for, or by a
 * rule about a prompt of 512 tokens, which are one step, and an answer of 128 more, one at a time.
 *
 * Fetched, the prompt moves all experts over the link to the device, and each token of the answer its own. What the
 * device computes is not counted. On the processor, it reads as much from its memory or multiplies, whichever takes
 * longer. The processor has to be faster by half, because its kernels do not reach what is measured. */
#ifndef QR_RUNTIME_ENGINE_EXPERT_WAY_H
#define QR_RUNTIME_ENGINE_EXPERT_WAY_H

#include "runtime/engine/context.h"

enum { QR_EXPERT_NOTE_BYTES = 192 };

typedef struct qr_expert_way {
    bool computed;                   /* by the processor; else fetched */
    char note[QR_EXPERT_NOTE_BYTES]; /* as qrun_model_info.expert_note */
} qr_expert_way;

/* What the rule knows of a model. */
typedef struct qr_expert_work {
    int64_t all_bytes;   /* of all experts of all layers */
    double token_share;  /* of those, what one token goes to */
    double token_flops;  /* its products with them */
    int64_t other_bytes; /* weights on the device besides */
} qr_expert_work;

/* AUTO measures, at the first call of a context, in some tenths of a second. Later calls take the same numbers, so all
 * models of a context are chosen for alike. It makes and releases less memory of either kind than the model will.
 * Where nothing can be measured, experts are fetched, and the note says why. Takes the compute lock. */
void qr_expert_way_choose(qrun_context *context, qrun_expert_compute asked, const qr_expert_work *work,
                          qr_expert_way *way);

/* The rule itself. */
void qr_expert_way_by_rule(const qr_expert_work *work, const qr_expert_speeds *speeds, qr_expert_way *way);

#endif
