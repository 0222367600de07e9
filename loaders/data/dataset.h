/* Training data: from files of examples to token ids with a mask of the tokens that count in the loss.
 *
 * A file lies in one of these forms, in UTF-8; its name decides where nobody says which (qr_file_form_of):
 *
 *   json        JSON Lines or one JSON array (the first character decides), strict JSON
 *   csv, tsv    a table whose first record names the columns (data/csv.h); a record is an object of texts
 *   text        one text that runs on from row to row of seq_len tokens, with BOS before it and EOS after it
 *   paragraphs  each paragraph is a text of its own; empty lines are between them
 *
 * It may be in gzip or Zstandard, and it may be a pipe (data/contents.h). A folder stands for all files in it, in the
 * order of their names; it needs a form that somebody says.
 *
 * The format of JSON and of tables is that of the first example, and every other example must have it too:
 *
 *   messages           {"messages": [{"role", "content"}, …], "tools": […]}, through the chat template. What the
 *                      assistant wrote counts, the end of its turn included (data/chat.h says how it is found), unless
 *                      a message says otherwise (data/messages.h).
 *   prompt/completion  {"prompt": text, "completion": text}, tokenised as one text after what the tokenizer puts first
 *                      (BOS). The completion counts, and the EOS after it. "response" is as good as "completion". Both
 *                      may be lists of messages instead (TRL's conversational form): the conversation is then their
 *                      sum, and what the assistant wrote in the completion counts.
 *   alpaca             {"instruction", "input" (optional), "output"}. With a chat template: one user message, the input
 *                      two line ends below the instruction, and the answer. Without: prompt/completion in the wording
 *                      of Stanford Alpaca.
 *   question/answer    {"question", "answer"}, as GSM8K. With a chat template: one user message and the answer.
 *                      Without: prompt/completion, "Question: …\nAnswer: …".
 *   input/output       {"input", "output"}. With a chat template: one user message and the answer. Without:
 *                      prompt/completion.
 *   sharegpt           {"conversations": [{"from", "value"}, …], "system": text}, read as messages. With "role" and
 *                      "content" instead of "from" and "value" they are messages by another name.
 *   text               {"text": text}. Everything counts but what the tokenizer puts first, and the EOS after it.
 *
 * With `preferences` an example is a pair of answers to the same prompt, in one of these formats (TRL's):
 *
 *   preference           {"prompt": text, "chosen": text, "rejected": text}, as two examples of prompt/completion
 *   preference messages  {"chosen": messages, "rejected": messages}, with "prompt" (messages) before both, or with the
 *                        messages that both begin with. What the assistant wrote after these counts. A "prompt" that
 *                        is a text is left out where the conversations do not begin with the assistant's words.
 *
 * A pair has at most seq_len tokens in all: of one that is longer, both answers keep their beginnings, each at least
 * half of seq_len tokens of what it has with its prompt.
 *
 * A text may also be a list of {"type": "text", "text": …}, which are put together; nothing else becomes a text.
 *
 * EOS is added where the tokenizer names one and the example does not end in it already. To messages it is added only
 * where the last answer ends in no special token at all. So a model always learns to stop. The text of a special token
 * becomes that token, as everywhere in the Hugging Face libraries. An example longer than seq_len tokens keeps its
 * beginning. The first token of an example never counts: nothing comes before it that could predict it.
 *
 * Each file is tokenised once, into a file that is mapped afterwards and found again by the content of what made it
 * (data/cache.h). Several files follow each other in one data set. It does not change after it was opened: any number
 * of threads may read it. */
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
    QR_DATASET_INPUT_OUTPUT,
    QR_DATASET_PROMPT_MESSAGES, /* prompt and completion as lists of messages */
    QR_DATASET_PREFERENCE,
    QR_DATASET_PREFERENCE_MESSAGES,
    QR_DATASET_FORMAT_COUNT
} qr_dataset_format;

/* "messages", "prompt/completion", "alpaca", "text", "question/answer", "sharegpt", "input/output",
 * "prompt/completion messages", "preference", "preference messages". */
const char *qr_dataset_format_name(qr_dataset_format format);
static inline bool qr_dataset_format_is_preference(qr_dataset_format format) {
    return format == QR_DATASET_PREFERENCE || format == QR_DATASET_PREFERENCE_MESSAGES;
}

/* How examples lie in a file. */
typedef enum qr_file_form {
    QR_FORM_AUTO, /* by the file's name */
    QR_FORM_JSON,
    QR_FORM_CSV,
    QR_FORM_TSV,
    QR_FORM_TEXT,
    QR_FORM_PARAGRAPHS
} qr_file_form;

/* By the ending, with .gz or .zst after it or not: .csv, .tsv, .txt and .md (text); JSON for every other name. */
qr_file_form qr_file_form_of(const char *path);

/* QRUN_ERROR_ARGUMENT unless the columns are as in qr_dataset_options. */
qrun_status qr_dataset_columns_check(const char *columns, qr_error *err);

typedef struct qr_dataset_options {
    const char *path; /* a file, a pipe ("-": stdin) or a folder */
    qr_file_form form;
    /* Other names of members or columns, "prompt=question,completion=answer": ours, then the file's. Only those that
     * are named are then read. NULL: none. */
    const char *columns;
    const char *cache_folder; /* made where it is missing */
    const char *model_folder; /* its tokenizer and template files are part of the cache's key */
    int64_t seq_len;          /* the most tokens of an example, at least 2 */
    bool preferences;         /* examples are pairs of a chosen and a rejected answer */
    bool skip_bad;            /* examples that cannot be used are counted and left out, instead of ending it all */
    const char *template_arguments; /* a JSON object for the chat template (enable_thinking, …), or NULL */
    /* What the clock on the wall shows in templates that write the date, in seconds since 1970 as if it hung in UTC. So
     * it means the same in every time zone. Keep it with a run: other dates are other tokens. */
    int64_t now;
    qr_threads *threads;                                                   /* NULL: the calling thread alone */
    bool (*progress)(void *user, int64_t done_bytes, int64_t total_bytes); /* false ends it; may be NULL */
    void *progress_user;
} qr_dataset_options;

enum { QR_DATASET_NAMES_BYTES = 256 };

typedef struct qr_dataset_info {
    int64_t n_examples; /* that can be had from qr_dataset_get */
    int64_t n_tokens, n_targets;
    int64_t longest_tokens;
    int64_t n_without_target;               /* examples left out because no token counts */
    int64_t n_truncated, n_cut_tokens;      /* examples longer than seq_len; the tokens beyond it */
    int64_t n_bad;                          /* examples left out by skip_bad */
    int32_t format;                         /* qr_dataset_format; of several files, the first one's */
    int32_t from_cache;                     /* 1: tokenised earlier */
    char first_bad[QR_ERROR_MESSAGE_BYTES]; /* why the first of n_bad was left out */
    /* Members of messages that only the chat template may know: "mood", "likes" …; empty: there are none. */
    char unknown_members[QR_DATASET_NAMES_BYTES];
    int64_t unknown_line; /* of the first message with one */
} qr_dataset_info;

/* chat_template may be NULL, where the model has none; the tokenizer must outlive the dataset. QRUN_ERROR_INPUT with
 * file, line and reason for what cannot be used; a set in which no token counts is refused. QRUN_ERROR_UNSUPPORTED for
 * messages without a chat template. QRUN_ERROR_CANCELLED when progress says so. */
qrun_status qr_dataset_open(const qr_dataset_options *options, const qr_tokenizer *tokenizer,
                            const qr_chat_template *chat_template, qr_dataset **dataset, qr_error *err);
/* Moves the files of `more` to the end of *dataset, and closes `more` unless it fails. */
qrun_status qr_dataset_append(qr_dataset *dataset, qr_dataset *more, qr_error *err);
/* For measuring: n_examples of n_tokens (at least 2) random ids below `vocab`, every token but the first a target. With
 * `preferences` each is a pair of two halves (at least 2 tokens each). It lives in memory, and has no text to show. */
qrun_status qr_dataset_create_random(int64_t n_examples, int64_t n_tokens, int64_t vocab, uint64_t seed,
                                     bool preferences, qr_dataset **dataset, qr_error *err);
void qr_dataset_close(qr_dataset *dataset); /* NULL is fine */

/* QRUN_ERROR_IO when a file of tokens was cut short since it was opened, so that examples read since may be zeros. */
qrun_status qr_dataset_check(const qr_dataset *dataset, qr_error *err);

const qr_dataset_info *qr_dataset_get_info(const qr_dataset *dataset); /* of all files together */

typedef struct qr_dataset_file {
    const char *path;            /* lent; "" for random tokens */
    int64_t first;               /* its examples are first … first + info->n_examples − 1 of the data set */
    const qr_dataset_info *info; /* lent */
} qr_dataset_file;

int64_t qr_dataset_count_files(const qr_dataset *dataset);
qr_dataset_file qr_dataset_get_file(const qr_dataset *dataset, int64_t file);
int64_t qr_dataset_file_of(const qr_dataset *dataset, int64_t example); /* which file it is from */

/* Of the files' bytes, how they are read, and of all else that the tokens depend on except the sequence length and the
 * date. */
uint64_t qr_dataset_data_hash(const qr_dataset *dataset);
uint64_t qr_dataset_tokenizer_hash(const qr_dataset *dataset);
static inline int64_t qr_dataset_count(const qr_dataset *dataset) { return qr_dataset_get_info(dataset)->n_examples; }

/* An example, lent from the map. A pair is one example: the chosen answer, then the rejected one, each after its own
 * copy of the prompt. */
typedef struct qr_example {
    const int32_t *ids;       /* [n_tokens] */
    const uint8_t *is_target; /* [n_tokens]: 1 where the loss of predicting ids[t] from ids[0 … t − 1] counts */
    int64_t n_tokens, n_targets;
    int64_t n_chosen; /* of a pair: tokens of the chosen answer with its prompt; else 0 */
    int64_t line;     /* where it begins in its file, from 1 */
} qr_example;

/* 0 ≤ i < qr_dataset_count. */
qr_example qr_dataset_get(const qr_dataset *dataset, int64_t i);

/* Appends the text of example i with every run of target tokens between the two marks; of a pair, the rejected answer
 * with its prompt on a new line. */
qrun_status qr_dataset_show(const qr_dataset *dataset, int64_t i, const char *open_mark, const char *close_mark,
                            qr_buffer *out, qr_error *err);

#endif
