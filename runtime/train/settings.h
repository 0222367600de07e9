/* The settings of a run, checked and with defaults filled in. A field that changes the result belongs in the run's
 * fingerprint too (qr_trainer_make_fingerprint, in settings.c as well). */
#ifndef QR_RUNTIME_TRAIN_SETTINGS_H
#define QR_RUNTIME_TRAIN_SETTINGS_H

#include "loaders/data/epoch_batches.h"
#include "runtime/pass/preference.h"
#include "runtime/pass/whole_parameters.h"
#include "runtime/train/initial_adapter.h"
#include "runtime/train/loss_scale.h"
#include "runtime/train/optimizer.h"

enum { QR_DATE_BYTES = 16, QR_MAX_ZERO = 3 };

typedef struct qr_train_settings {
    char *out, *targets, *modules; /* modules: NULL: none */
    char *expert_targets;          /* NULL, or empty: none */
    char *layers;                  /* NULL: all */
    qr_adapter *adapter;           /* to begin from; NULL: none */
    qr_lora_options lora;          /* unless every weight is trained */
    qr_whole_options whole;
    qr_preference preference;
    qr_optimizer_options optimizer;
    qrun_schedule schedule;
    qr_loss_scale loss_scale; /* that the run begins with */
    double learning_rate, warmup, max_grad_norm, epochs, eval_fraction;
    int64_t seq_tokens, batch_size, grad_accum, max_steps;
    int64_t grad_sums; /* parts of a step's micro-batches (runtime/ranks/sum_order.h) */
    qr_batch_mode batching;
    int64_t batch_tokens;                  /* the most of a micro-batch, whatever the mode */
    bool has_batch_tokens;                 /* given; else batch_size · seq_tokens */
    bool auto_seq_tokens, auto_batch_size; /* as much as memory allows: fit.c settles them */
    int64_t tile_rows;                     /* as given; 0: chosen by the memory */
    bool offload_gradients;                /* and values, and the optimiser's states: the processor updates */
    int32_t zero;                          /* 1: each rank has the optimiser's states of its shard */
    int32_t n_ranks, rank; /* of a plan, or those that were launched; rank QRUN_AUTO: the one that needs the most */
    uint64_t seed;
    int64_t eval_every, save_every, keep;
    int64_t patience; /* evaluations without improvement; 0: no early stopping */
    double threshold; /* that an improvement is larger than */
    bool load_best;
    int64_t now;   /* unix time that chat templates see: the day on which the run began, also after a resume */
    bool has_date; /* the day was given */
} qr_train_settings;

/* Every rule about the fields of params is checked here, and only here. Free the settings also after an error. */
qrun_status qr_train_settings_make(const qrun_model *model, const qrun_train_params *params,
                                   qr_train_settings *settings, qr_error *err);
/* "2026-11-22" of a unix time. */
void qr_train_settings_date(int64_t now, char date[QR_DATE_BYTES]);
void qr_train_settings_free(qr_train_settings *settings); /* fine for a zeroed one */

#endif
