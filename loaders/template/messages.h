/* The messages of a conversation as a chat template sees them. */
#ifndef QR_LOADERS_TEMPLATE_MESSAGES_H
#define QR_LOADERS_TEMPLATE_MESSAGES_H

#include <stdbool.h>

#include "base/status.h"
#include "loaders/files/json.h"

/* A list whose nodes are its own; what they hold is lent from the messages. */
typedef struct qr_template_messages {
    qr_json list;
    qr_json *nodes;
} qr_template_messages;

/* What a template sees as the content of a message that calls tools and says nothing: clients pass null, or leave it
 * out. */
typedef enum qr_bare_content { QR_BARE_EMPTY, QR_BARE_NONE, QR_BARE_LEFT_OUT } qr_bare_content;

/* Whether it calls tools and has no content, or one that is null. */
bool qr_message_is_bare_call(const qr_json *message);

/* A copy without what was thought, to be freed with cJSON_Delete; NULL: nothing was, or no memory. */
qr_json *qr_message_without_thoughts(const qr_json *message);

/* As transformers prepares them (chat_template.h): without members that are null, and with what was thought under the
 * names that templates read. QRUN_ERROR_INPUT where messages are not an array of objects. */
qrun_status qr_template_messages_prepare(const qr_json *messages, qr_bare_content bare, qr_template_messages *prepared,
                                         qr_error *err);
void qr_template_messages_free(qr_template_messages *prepared);

#endif
