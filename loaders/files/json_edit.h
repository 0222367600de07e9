/* Changing one member of a JSON object in its text, so that the rest stays as its author wrote it, byte for byte:
 * order, spacing, digits. */
#ifndef QR_LOADERS_FILES_JSON_EDIT_H
#define QR_LOADERS_FILES_JSON_EDIT_H

#include "base/buffer.h"
#include "loaders/files/json.h"

/* Appends to *out the object text[0, n_bytes) with its member `key` set to `value` (JSON text): replacing its value, or
 * as a new last member, indented by two spaces. NULL removes the member. The text is checked; `what` names it in
 * messages. */
qrun_status qr_json_edit_set(const char *text, size_t n_bytes, const char *what, const char *key, const char *value,
                             qr_buffer *out, qr_error *err);

/* The range of the value of the member `key`: text[*begin, *end), spaces around it included. *begin = *end = 0 when
 * there is none or the text is not an object. The text is checked as above. */
qrun_status qr_json_edit_find(const char *text, size_t n_bytes, const char *what, const char *key, size_t *begin,
                              size_t *end, qr_error *err);

#endif
