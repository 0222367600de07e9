/* One example of a data file, from its JSON to tokens and mask. */
#ifndef QR_LOADERS_DATA_EXAMPLE_H
#define QR_LOADERS_DATA_EXAMPLE_H

#include "loaders/data/columns.h"
#include "loaders/data/dataset.h"
#include "loaders/data/messages.h"
#include "loaders/data/source.h"
#include "loaders/data/spans.h"

/* What every example of a file is made with. Immutable once made. */
typedef struct qr_example_encoder {
    const qr_tokenizer *tokenizer;
    const qr_chat_template *chat_template; /* or NULL */
    qr_json *template_arguments;           /* or NULL */
    qr_columns columns;
    int64_t now, seq_len;
    bool preferences;
    qr_tokens first, last; /* what the tokenizer puts around a text of its own accord */
} qr_example_encoder;

qrun_status qr_example_encoder_create(const qr_dataset_options *options, const qr_tokenizer *tokenizer,
                                      const qr_chat_template *chat_template, qr_example_encoder *encoder,
                                      qr_error *err);
void qr_example_encoder_free(qr_example_encoder *encoder); /* fine for a zeroed one */

enum { QR_EXAMPLE_COLUMNS = 3 }; /* the most that a format has */

/* Room for one example, used again for the next. Zero-initialise before first use. */
typedef struct qr_encoded_example {
    qr_dataset_format format;
    qr_tokens tokens;    /* cut at seq_len */
    qr_buffer is_target; /* [tokens.n] */
    int64_t n_targets;
    int64_t n_chosen;      /* of a pair, as in qr_example; else 0 */
    int64_t n_cut_tokens;  /* beyond seq_len */
    int64_t n_cut_targets; /* among these */
    qr_marked_text marked;
    qr_message_notes notes;
    qr_tokens chosen; /* of a pair, while the rejected answer is encoded; and its mask */
    qr_buffer chosen_is_target;
    char *columns[QR_EXAMPLE_COLUMNS]; /* texts of columns that were put together of parts, or NULL */
} qr_encoded_example;

void qr_encoded_example_free(qr_encoded_example *example);

/* QRUN_ERROR_INPUT where the example cannot be used; messages do not name the position in the file. */
qrun_status qr_example_encode(const qr_example_encoder *encoder, const qr_json *root, qr_encoded_example *example,
                              qr_error *err);

/* The same of a piece of plain text: a paragraph, cut at seq_len, or a stretch of a text that runs on, whole. The first
 * token of such a stretch may be a target. */
qrun_status qr_example_encode_text(const qr_example_encoder *encoder, const qr_dataset_source *source,
                                   const qr_dataset_piece *piece, qr_encoded_example *example, qr_error *err);

#endif
