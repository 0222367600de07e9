/* The messages of a conversation as a chat template sees them. */
#ifndef QR_LOADERS_TEMPLATE_MESSAGES_H
#define QR_LOADERS_TEMPLATE_MESSAGES_H

#include "base/status.h"
#include "loaders/files/json.h"

/* A list whose nodes are its own; what they hold is lent from the messages. */
typedef struct qr_template_messages {
    qr_json list;
    qr_json *nodes;
} qr_template_messages;

/* As transformers prepares them (chat_template.h): without members that are null, and with what was thought under the
 * names that templates read. QRUN_ERROR_INPUT where messages are not an array of objects. */
qrun_status qr_template_messages_prepare(const qr_json *messages, qr_template_messages *prepared, qr_error *err);
void qr_template_messages_free(qr_template_messages *prepared);

#endif
