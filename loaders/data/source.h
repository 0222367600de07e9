/* The examples of a data file as pieces of its text, one after the other: JSON Lines or one JSON array. Nothing but the
 * structure between the examples is checked here; each piece is then parsed strictly by whoever reads it. */
#ifndef QR_LOADERS_DATA_SOURCE_H
#define QR_LOADERS_DATA_SOURCE_H

#include "base/file.h"
#include "base/status.h"
#include "loaders/files/json.h"

typedef struct qr_dataset_source {
    const char *path; /* lent */
    qr_file_map map;
    size_t at;
    int64_t line; /* of text[at], from 1 */
    bool is_array, is_done;
    int64_t n_pieces;
} qr_dataset_source;

/* A piece of the map: one line without its end, or one element of the array. */
typedef struct qr_dataset_piece {
    const char *text;
    size_t n_bytes;
    int64_t line;
} qr_dataset_piece;

/* Refuses a file that is empty or not text. Skips a byte-order mark. Close after failures too. */
qrun_status qr_dataset_source_open(qr_dataset_source *source, const char *path, qr_error *err);
void qr_dataset_source_close(qr_dataset_source *source);

/* *found is false after the last piece. Lines of white space are not pieces. */
qrun_status qr_dataset_source_next(qr_dataset_source *source, qr_dataset_piece *piece, bool *found, qr_error *err);

/* Parses a piece; messages carry file, line and column. */
qrun_status qr_dataset_piece_parse(const char *path, const qr_dataset_piece *piece, qr_json **root, qr_error *err);

#endif
