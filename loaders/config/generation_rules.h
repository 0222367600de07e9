/* What generation_config.json says about a next token, beyond penalties, temperature and the like: ids and sequences
 * that are excluded, favoured or forced, and further cutoffs of sampling. Requests may bring the same members. Names,
 * forms and meaning are those of transformers 5; runtime/generate/logit_rules.h and cutoffs.h apply them. */
#ifndef QR_LOADERS_CONFIG_GENERATION_RULES_H
#define QR_LOADERS_CONFIG_GENERATION_RULES_H

#include "loaders/config/token_ids.h"

typedef struct qr_id_list {
    int32_t *ids; /* [n] */
    int64_t n;
} qr_id_list;

/* Token sequences one after the other; sequence i is ids[ends[i − 1], ends[i]), the first from 0, and not empty. */
typedef struct qr_sequence_list {
    int32_t *ids;
    int64_t *ends; /* [n] */
    float *biases; /* [n]; NULL where sequences have none */
    int64_t n;
} qr_sequence_list;

typedef struct qr_generation_rules {
    qr_sequence_list sequence_bias; /* added to the logit that would complete the sequence */
    qr_sequence_list bad_words;     /* never completed */
    qr_id_list suppress, begin_suppress;
    double encoder_repetition_penalty;    /* 1: off; of the prompt's ids */
    int64_t no_repeat_ngram_size;         /* 0: off, as the next three */
    int64_t encoder_no_repeat_ngram_size; /* n-grams of the prompt */
    int64_t min_length, min_new_tokens;   /* before which no end token comes */
    int64_t forced_bos;                   /* after a prompt of one token; −1: none */
    qr_token_ids forced_eos;              /* as the last token of the longest answer; none: off */
    int64_t decay_start;                  /* exponential_decay_length_penalty: tokens of the answer before it begins */
    double decay_factor;                  /* 0: off */
    double typical_p;                     /* 1: off; of what top_k, top_p and min_p leave, as the next two */
    double epsilon_cutoff, eta_cutoff;    /* 0: off */
    int64_t n_bytes;                      /* of the lists */
} qr_generation_rules;

#define QR_GENERATION_RULES_INIT \
    { .encoder_repetition_penalty = 1, .forced_bos = -1, .typical_p = 1 }

/* Whether a member of generation_config.json is read here. */
bool qr_generation_rules_know(const char *key);

/* Reads the members that `object` has over those that *rules has. Ids of tokens are below vocab; suppress_tokens and
 * begin_suppress_tokens of the model's own file (of_model) may have others, which mean nothing. After an error *rules
 * can still be freed. */
qrun_status qr_generation_rules_read(const qr_json *object, const char *what, int64_t vocab, bool of_model,
                                     qr_generation_rules *rules, qr_error *err);
void qr_generation_rules_free(qr_generation_rules *rules); /* fine for zeroed ones */

/* Whether they change nothing. */
bool qr_generation_rules_are_neutral(const qr_generation_rules *rules);

#endif
