/* Other names for the members of examples, or the columns of a table: "prompt=question,completion=answer". */
#ifndef QR_LOADERS_DATA_COLUMNS_H
#define QR_LOADERS_DATA_COLUMNS_H

#include "base/status.h"
#include "loaders/files/json.h"

enum { QR_COLUMNS_MAX = 16 };

typedef struct qr_columns {
    char *text; /* what the names lie in */
    const char *ours[QR_COLUMNS_MAX], *theirs[QR_COLUMNS_MAX];
    int n;
} qr_columns;

/* NULL: none. QRUN_ERROR_ARGUMENT for what is not such a list, and for names that no format has. */
qrun_status qr_columns_parse(const char *text, qr_columns *columns, qr_error *err);
void qr_columns_free(qr_columns *columns); /* fine for a zeroed one */

/* *view becomes an object with our names and the values of root, in nodes [columns->n]: it lends from both. Where there
 * are no columns it is root. QRUN_ERROR_INPUT where root lacks one of the names. */
qrun_status qr_columns_apply(const qr_columns *columns, const qr_json *root, qr_json *nodes, qr_json *view,
                             qr_error *err);

/* Appends the members of an object for a message: "a", "b" and "c"; the first few of many. */
void qr_columns_list(const qr_json *root, qr_buffer *out);

#endif
