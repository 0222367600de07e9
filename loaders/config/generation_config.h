/* generation_config.json: what the model's authors suggest for sampling. */
#ifndef QR_LOADERS_CONFIG_GENERATION_CONFIG_H
#define QR_LOADERS_CONFIG_GENERATION_CONFIG_H

#include "base/status.h"
#include "loaders/config/generation_rules.h"
#include "loaders/config/model_config.h"
#include "loaders/config/token_ids.h"

typedef struct qr_generation_config {
    qr_token_ids eos;                   /* any of them ends a text */
    int64_t bos_token_id, pad_token_id; /* -1 = none */
    bool do_sample;                     /* false: greedy */
    double temperature;                 /* > 0 */
    int64_t top_k;                      /* 0 = off */
    double top_p;                       /* 1 = off */
    double min_p;                       /* 0 = off */
    double repetition_penalty;          /* 1 = off */
    int64_t max_new_tokens;             /* 0 = not given */
    int64_t max_length;                 /* prompt included; 0 = not given, or max_new_tokens is */
    qr_generation_rules rules;
    char *text;       /* the file's own; NULL: there is none */
    char *not_obeyed; /* one line: the members that transformers obeys and qrun does not; NULL: none */
} qr_generation_config;

/* Reads <folder>/generation_config.json; a folder without one has transformers' defaults. Ids come from `model`
 * unless the file gives them. After an error too *config can be freed. */
qrun_status qr_generation_config_read(const char *folder, const qr_model_config *model, qr_generation_config *config,
                                      qr_error *err);
qrun_status qr_generation_config_parse(const qr_json *root, const char *what, const qr_model_config *model,
                                       qr_generation_config *config, qr_error *err);

void qr_generation_config_free(qr_generation_config *config); /* fine for a zeroed one */

#endif
