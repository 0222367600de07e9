/* The examples of a data file as pieces of its text, one after the other: lines or elements of a JSON array, records of
 * a table, paragraphs, or stretches of one text. Nothing but the structure between the examples is checked here; each
 * piece is then read strictly by whoever takes it. */
#ifndef QR_LOADERS_DATA_SOURCE_H
#define QR_LOADERS_DATA_SOURCE_H

#include "base/file_map.h"
#include "base/status.h"
#include "loaders/data/csv.h"
#include "loaders/data/dataset.h"

enum { QR_STRETCH_BYTES = 1 << 16 }; /* of a text that runs on: the most of a piece */

typedef struct qr_dataset_source {
    const char *path; /* lent */
    qr_file_form form;
    qr_file_map map; /* what the text lies in; empty where that is lent */
    const char *text;
    size_t size;
    size_t at;
    int64_t line; /* of text[at], from 1 */
    bool is_array, is_done;
    int64_t n_pieces;
    qr_csv_header header; /* of a table */
} qr_dataset_source;

/* A piece of the text: one line without its end, one element of the array, one record … */
typedef struct qr_dataset_piece {
    const char *text;
    size_t n_bytes;
    int64_t line;
    bool begins_text, ends_text; /* of a text that runs on: whether its beginning and its end are in the piece */
} qr_dataset_piece;

/* Opens options->path, or a file in that folder. Refuses a file that is empty or not of its form. Skips a byte-order
 * mark. Close after failures too. */
qrun_status qr_dataset_source_open(qr_dataset_source *source, const qr_dataset_options *options, const char *path,
                                   qr_error *err);
/* The same for text[0, size) that is in memory already, of a zeroed source with its form (AUTO: JSON); `path` names it
 * in messages. */
qrun_status qr_dataset_source_open_text(qr_dataset_source *source, const char *path, const char *text, size_t size,
                                        qr_error *err);
void qr_dataset_source_close(qr_dataset_source *source);

/* *found is false after the last piece. Lines of white space are not pieces. */
qrun_status qr_dataset_source_next(qr_dataset_source *source, qr_dataset_piece *piece, bool *found, qr_error *err);

/* Whether pieces are plain text, not values to be parsed. */
static inline bool qr_dataset_source_is_text(const qr_dataset_source *source) {
    return source->form == QR_FORM_TEXT || source->form == QR_FORM_PARAGRAPHS;
}

/* Parses a piece that is no text; messages carry file, line and column. The source is only read: threads may share it.
 */
qrun_status qr_dataset_piece_parse(const qr_dataset_source *source, const qr_dataset_piece *piece, qr_json **root,
                                   qr_error *err);

/* Appends a piece of plain text, with LF for CRLF. */
qrun_status qr_dataset_piece_text(const qr_dataset_source *source, const qr_dataset_piece *piece, qr_buffer *text,
                                  qr_error *err);

#endif
