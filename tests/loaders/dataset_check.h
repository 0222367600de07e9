/* What the tests of data sets share: the example model's tokenizer and template, and data files made in place. */
#ifndef QR_TESTS_LOADERS_DATASET_CHECK_H
#define QR_TESTS_LOADERS_DATASET_CHECK_H

#include "check.h"

#include "base/sizes.h"
#include "loaders/data/dataset.h"
#include "temporary.h"

#define EXAMPLE_MODEL QRUN_SOURCE_DIR "/examples/model"

typedef struct example_model {
    qr_tokenizer *tokenizer;
    qr_chat_template *chat_template;
} example_model;

static inline example_model example_model_open(void) {
    example_model model;
    qr_error err = {0};
    CHECK_MSG(qr_tokenizer_open(EXAMPLE_MODEL, &model.tokenizer, &err) == QRUN_OK, "%s", err.message);
    CHECK_MSG(qr_chat_template_open(EXAMPLE_MODEL, &model.chat_template, &err) == QRUN_OK, "%s", err.message);
    return model;
}

static inline void example_model_close(const example_model *model) {
    qr_tokenizer_destroy(model->tokenizer);
    qr_chat_template_free(model->chat_template);
}

static inline qr_dataset_options dataset_options(const temporary_folder *folder, const char *path, int64_t seq_len) {
    static char cache[4096];
    snprintf(cache, sizeof cache, "%s/cache", folder->path);
    return (qr_dataset_options){.path = path, .cache_folder = cache, .model_folder = EXAMPLE_MODEL, .seq_len = seq_len};
}

/* JSON here is short: single quotes stand for double ones. */
static inline const char *dataset_write(const temporary_folder *folder, const char *name, const char *text) {
    char json[8192];
    snprintf(json, sizeof json, "%s", text);
    for (char *c = json; *c != '\0'; c++) {
        if (*c == '\'') { *c = '"'; }
    }
    return temporary_text(folder, name, json);
}

#endif
