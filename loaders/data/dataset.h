/* Training data: from a file of examples to token ids with a mask of the tokens that count in the loss.
 *
 * The file is JSON Lines or one JSON array (the first character decides), UTF-8, strict JSON. Its format is that
 * of its first example, and every other example must have it too:
 *
 *   messages           {"messages": [{"role", "content"}, …], "tools": […]}, through the chat template. What the
 *                      assistant wrote counts, the end of its turn included (data/chat.h says how it is found).
 *   prompt/completion  {"prompt": text, "completion": text}, tokenised as one text after what the tokenizer puts first
 *                      (BOS). The completion counts, and the EOS after it.
 *   alpaca             {"instruction", "input" (optional), "output"}. With a chat template: one user message, the input
 *                      two line ends below the instruction, and the answer. Without: prompt/completion in the wording
 *                      of Stanford Alpaca.
 *   question/answer    {"question", "answer"}, as GSM8K. With a chat template: one user message and the answer.
 *                      Without: prompt/completion, "Question: …\nAnswer: …".
 *   sharegpt           {"conversations": [{"from", "value"}, …], "system": text}, read as messages. With "role" and
 *                      "content" instead of "from" and "value" they are messages by another name.
 *   text               {"text": text}. Everything counts but what the tokenizer puts first, and the EOS after it.
 *
 * EOS is added where the tokenizer names one and the example does not end in it already; to messages only where the
 * last answer ends in no special token at all, so that a model always learns to stop. The text of a special token
 * becomes that token, as everywhere in the Hugging Face libraries. An example longer than seq_len tokens keeps its
 * beginning. The first token of an example never counts: nothing comes before it that could predict it.
 *
 * Everything is tokenised once, into a file that is mapped afterwards and found again by the content of what made it
 * (data/cache.h). A dataset does not change after it was opened: any number of threads may read it. */
#ifndef QR_LOADERS_DATA_DATASET_H
#define QR_LOADERS_DATA_DATASET_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buffer.h"
#include "base/status.h"
#include "base/threads.h"
#include "loaders/template/chat_template.h"
#include "loaders/tokenizer/tokenizer.h"

typedef struct qr_dataset qr_dataset;

typedef enum qr_dataset_format {
    QR_DATASET_MESSAGES,
    QR_DATASET_PROMPT_COMPLETION,
    QR_DATASET_ALPACA,
    QR_DATASET_TEXT,
    QR_DATASET_QUESTION_ANSWER,
    QR_DATASET_SHAREGPT,
    QR_DATASET_FORMAT_COUNT
} qr_dataset_format;

/* "messages", "prompt/completion", "alpaca", "text", "question/answer", "sharegpt". */
const char *qr_dataset_format_name(qr_dataset_format format);

typedef struct qr_dataset_options {
    const char *path;
    const char *cache_folder; /* made where it is missing */
    const char *model_folder; /* its tokenizer and template files are part of the cache's key */
    int64_t seq_len;          /* the most tokens of an example, at least 2 */
    bool skip_bad;            /* examples that cannot be used are counted and left out, instead of ending it all */
    const char *template_arguments; /* a JSON object for the chat template (enable_thinking, …), or NULL */
    int64_t now; /* unix time for templates that write the date. Keep it with a run: other dates are other tokens */
    qr_threads *threads;                                                   /* NULL: the calling thread alone */
    bool (*progress)(void *user, int64_t done_bytes, int64_t total_bytes); /* false ends it; may be NULL */
    void *progress_user;
} qr_dataset_options;

typedef struct qr_dataset_info {
    int64_t n_examples; /* that can be had from qr_dataset_get */
    int64_t n_tokens, n_targets;
    int64_t longest_tokens;
    int64_t n_without_target;               /* examples left out because no token counts */
    int64_t n_truncated, n_cut_tokens;      /* examples longer than seq_len; the tokens beyond it */
    int64_t n_bad;                          /* examples left out by skip_bad */
    int32_t format;                         /* qr_dataset_format */
    int32_t from_cache;                     /* 1: tokenised earlier */
    char first_bad[QR_ERROR_MESSAGE_BYTES]; /* why the first of n_bad was left out */
} qr_dataset_info;

/* chat_template may be NULL, where the model has none; the tokenizer must outlive the dataset. QRUN_ERROR_INPUT with
 * file, line and reason for what cannot be used; a set in which no token counts is refused. QRUN_ERROR_UNSUPPORTED for
 * messages without a chat template. QRUN_ERROR_CANCELLED when progress says so. */
qrun_status qr_dataset_open(const qr_dataset_options *options, const qr_tokenizer *tokenizer,
                            const qr_chat_template *chat_template, qr_dataset **dataset, qr_error *err);
/* For measuring: n_examples of n_tokens (at least 2) random ids below `vocab`, every token but the first a target. It
 * lives in memory, and has no text to show. */
qrun_status qr_dataset_create_random(int64_t n_examples, int64_t n_tokens, int64_t vocab, uint64_t seed,
                                     qr_dataset **dataset, qr_error *err);
void qr_dataset_close(qr_dataset *dataset); /* NULL is fine */

const qr_dataset_info *qr_dataset_get_info(const qr_dataset *dataset);
/* Of the data file's bytes, and of all else that the tokens depend on except the sequence length and the date. */
uint64_t qr_dataset_data_hash(const qr_dataset *dataset);
uint64_t qr_dataset_tokenizer_hash(const qr_dataset *dataset);
static inline int64_t qr_dataset_count(const qr_dataset *dataset) { return qr_dataset_get_info(dataset)->n_examples; }

/* An example, lent from the map. */
typedef struct qr_example {
    const int32_t *ids;       /* [n_tokens] */
    const uint8_t *is_target; /* [n_tokens]: 1 where the loss of predicting ids[t] from ids[0 … t − 1] counts */
    int64_t n_tokens, n_targets;
    int64_t line; /* where it begins in the data file, from 1 */
} qr_example;

/* 0 ≤ i < qr_dataset_count. */
qr_example qr_dataset_get(const qr_dataset *dataset, int64_t i);

/* Appends the text of example i with every run of target tokens between the two marks. */
qrun_status qr_dataset_show(const qr_dataset *dataset, int64_t i, const char *open_mark, const char *close_mark,
                            qr_buffer *out, qr_error *err);

#endif
