/* The messages of a conversation as training takes them: what the chat template sees, and which of them count.
 *
 *   role, content    "from" and "value" in ShareGPT's form, whose speakers become roles. A content is a text, or a list
 *                    of {"type": "text", "text": …}, whose texts are put together. It may be null or absent only where
 *                    the assistant calls tools instead.
 *   weight           0 or 1: whether the assistant's message counts (OpenAI's fine-tuning files)
 *   train, training  true or false: whether a message counts, whoever wrote it (axolotl)
 *
 * Without weight and train the assistant's messages count, and no others (of a prompt and its answer, those of the
 * answer); null is as good as neither, because files
 * written from tables have every member in every message. The template does not see them. */
#ifndef QR_LOADERS_DATA_MESSAGES_H
#define QR_LOADERS_DATA_MESSAGES_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buffer.h"
#include "loaders/files/json.h"

/* Everything is lent and must outlive what is read from it. */
typedef struct qr_messages_source {
    const qr_json *list;   /* of messages; of turns where is_sharegpt */
    const qr_json *answer; /* messages after these, the only ones that count of themselves; or NULL */
    size_t n_prompt;       /* without `answer`: of the list, messages that do not count of themselves */
    const qr_json *system; /* a text to begin with, of the role "system"; or NULL */
    bool is_sharegpt;      /* "from" and "value" instead of "role" and "content" */
} qr_messages_source;

typedef struct qr_messages {
    qr_json *nodes; /* [n], a list linked by `next`: each with a string "role" */
    bool *counts;   /* [n] */
    size_t n;
    size_t n_added;   /* 1 where `system` is the first of them; else 0 */
    qr_json *members; /* of all nodes */
    char **texts;     /* [n]: of contents that were put together, or NULL */
} qr_messages;

/* What should be said of a conversation that is good. */
typedef struct qr_message_notes {
    qr_buffer unknown_members; /* names of members that are not read here, or that the chat template leaves out, each
                                * with its NUL */
    bool sets_aside;           /* an answer of the assistant's does not count */
} qr_message_notes;

/* Fails with QRUN_ERROR_INPUT and the number of the message, from 1. Adds to *notes. Free also after failures. */
qrun_status qr_messages_read(const qr_messages_source *source, qr_messages *messages, qr_message_notes *notes,
                             qr_error *err);
void qr_messages_free(qr_messages *messages); /* fine for a zeroed one */

const char *qr_message_role(const qr_json *node);
/* The member "content", which may be changed for a while; NULL where the message has none. */
qr_json *qr_message_content(const qr_json *node);

/* A text, or the texts of a list of parts put together; `where` names the value in messages. *text lends from the value
 * or from *joined, which the caller frees (NULL: nothing was put together). */
qrun_status qr_content_text(const qr_json *value, const char *where, const char **text, char **joined, qr_error *err);

#endif
