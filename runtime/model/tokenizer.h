/* The tokenizer and the chat template of a model folder, as the public interface gives them. */
#ifndef QR_RUNTIME_MODEL_TOKENIZER_H
#define QR_RUNTIME_MODEL_TOKENIZER_H

#include "loaders/tokenizer/tokenizer.h"

typedef struct qr_chat_template qr_chat_template;

struct qrun_tokenizer {
    qr_tokenizer *tokenizer;
    qr_chat_template *chat_template; /* NULL: none */
};

/* Reads tokenizer.json and the chat template of a folder, where it has a tokenizer.json; else *tokenizer is NULL, also
 * where the path is no folder. The caller ends with qrun_tokenizer_destroy. */
qrun_status qr_folder_tokenizer_open_optional(const char *folder, qrun_tokenizer **tokenizer, qr_error *err);

#endif
