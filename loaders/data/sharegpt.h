/* Conversations in the form of ShareGPT, as messages. */
#ifndef QR_LOADERS_DATA_SHAREGPT_H
#define QR_LOADERS_DATA_SHAREGPT_H

#include "loaders/files/json.h"

/* conversations: a list of {"from", "value"}, from "human", "gpt" and "system" or the names that go by them. system: a
 * text that goes before them, or NULL. *messages is a list of {"role", "content"}, to be freed. */
qrun_status qr_sharegpt_to_messages(const qr_json *conversations, const qr_json *system, qr_json **messages,
                                    qr_error *err);

#endif
