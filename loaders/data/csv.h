/* Tables of texts, as RFC 4180 has them: records of fields, the first record the names of the columns.
 *
 * The separator is a comma, or another character. A field that begins with a quote ends at the next single one; two in
 * a row are one quote. So it may hold separators and line ends. A quote inside a field that does not begin with one
 * stands for itself. Lines end in LF or CRLF; empty lines are no records. */
#ifndef QR_LOADERS_DATA_CSV_H
#define QR_LOADERS_DATA_CSV_H

#include <stdint.h>

#include "base/status.h"
#include "loaders/files/json.h"

enum { QR_CSV_MAX_COLUMNS = 4096, QR_CSV_RECORD_BYTES = 1 << 26 };

typedef struct qr_csv_header {
    char separator;
    char **names; /* [n_names]; "": a column without a name, which is passed over */
    size_t n_names;
} qr_csv_header;

/* Where the record that begins at text[0] ends, before its line end; *n_lines: line ends inside it. False where a
 * quoted field is not closed in the text, or in QR_CSV_RECORD_BYTES. */
bool qr_csv_find_end(const char *text, size_t size, char separator, size_t *n_bytes, int64_t *n_lines);

/* Names from the first record, text[0, n_bytes). Messages have no position. Free the header also after an error. */
qrun_status qr_csv_header_parse(const char *text, size_t n_bytes, char separator, qr_csv_header *header, qr_error *err);
void qr_csv_header_free(qr_csv_header *header); /* fine for a zeroed one */

/* A record as an object of texts by the names of the columns. */
qrun_status qr_csv_record_parse(const qr_csv_header *header, const char *text, size_t n_bytes, qr_json **root,
                                qr_error *err);

#endif
