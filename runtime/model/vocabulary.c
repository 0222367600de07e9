#include "runtime/model/vocabulary.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/half.h"
#include "base/sizes.h"
#include "runtime/model/modules.h"

int64_t qr_model_tokenizer_ids(const qrun_model *model) {
    return model->tokenizer != NULL ? qr_tokenizer_vocab_size(model->tokenizer->tokenizer) : 0;
}

bool qr_new_token_find(const qrun_model *model, const qr_dataset *dataset, int32_t *id, int64_t *found) {
    if (dataset == NULL || qr_model_tokenizer_ids(model) <= model->shape.vocab) { return false; }
    for (int64_t i = 0; i < qr_dataset_count(dataset); i++) {
        const qr_example example = qr_dataset_get(dataset, i);
        for (int64_t t = 0; t < example.n_tokens; t++) {
            if (example.ids[t] < model->shape.vocab) { continue; }
            *id = example.ids[t];
            *found = i;
            return true;
        }
    }
    return false;
}

/* The message is the advice: `before`, the field that trains rows for new tokens, `after`. */
static qrun_status refuse(const qrun_model *model, const char *subject, int32_t id, const char *before,
                          const char *after, qr_error *err) {
    size_t n_bytes = 0;
    const char *text = qr_tokenizer_token(model->tokenizer->tokenizer, id, &n_bytes);
    if (qr_model_has_short_head(model)) {
        return qr_fail(
            err, QRUN_ERROR_UNSUPPORTED,
            "%s has the token \"%.*s\" (%d), and the model's head has %lld rows; tokens beyond, of images and "
            "sounds, are not supported",
            subject, (int)qr_min((int64_t)n_bytes, 60), text != NULL ? text : "", id, (long long)model->shape.vocab);
    }
    return qr_fail(err, QRUN_ERROR_INPUT,
                   "%s has the token \"%.*s\" (%d), and the model's tables have %lld rows; %s "
                   "`modules_to_save=%s,%s`%s",
                   subject, (int)qr_min((int64_t)n_bytes, 60), text != NULL ? text : "", id,
                   (long long)model->shape.vocab, before, qr_module_short_name(model->family, QR_ROLE_EMBEDDING),
                   qr_module_short_name(model->family, QR_ROLE_HEAD), after);
}

qrun_status qr_new_token_refuse(const qrun_model *model, const qr_dataset *dataset, int64_t example, int32_t id,
                                qr_error *err) {
    char subject[48];
    (void)snprintf(subject, sizeof subject, "line %lld:", (long long)qr_dataset_get(dataset, example).line);
    const qrun_status status = refuse(model, subject, id, "to train rows for new tokens give", ", or `full`", err);
    qr_error_prefix(err, qr_dataset_get_file(dataset, qr_dataset_file_of(dataset, example)).path);
    return status;
}

qrun_status qr_token_id_check(const qrun_model *model, int32_t id, int64_t position, const char *what, qr_error *err) {
    const int64_t vocab = model->shape.vocab;
    if (id >= 0 && id < vocab) { return QRUN_OK; }
    if (id < vocab || id >= qr_model_tokenizer_ids(model)) {
        return qr_fail(err, QRUN_ERROR_INPUT, "token %d at position %lld of the %s is outside the vocabulary of %lld",
                       id, (long long)position, what, (long long)vocab);
    }
    char subject[48];
    (void)snprintf(subject, sizeof subject, "the %s", what);
    return refuse(model, subject, id, "use the adapter that was trained with it, or fine-tune one with", "", err);
}

/* The mean row, summed in double, in the stored type at dst. */
static qrun_status mean_row(const qr_safetensors_tensor *stored, void *dst, qr_error *err) {
    const int64_t n = stored->dims[0], cols = stored->dims[1];
    double *sums = qr_alloc_zeroed((size_t)cols * sizeof *sums);
    float *row = qr_alloc_array((size_t)cols, sizeof *row);
    qrun_status status = QRUN_OK;
    if (sums == NULL || row == NULL) { QR_TRY(qr_fail_memory(err, stored->name, (size_t)cols * sizeof *sums)); }
    for (int64_t r = 0; r < n; r++) {
        qr_elements_to_f32(stored->dtype, stored->data, r * cols, cols, row);
        for (int64_t c = 0; c < cols; c++) { sums[c] += (double)row[c]; }
    }
    for (int64_t c = 0; c < cols; c++) { row[c] = (float)(sums[c] / (double)n); }
    qr_elements_from_f32(stored->dtype, row, cols, dst);
out:
    qr_free(sums);
    qr_free(row);
    return status;
}

qrun_status qr_new_token_rows(const qr_safetensors_tensor *stored, int64_t n_rows, void **table, qr_error *err) {
    const size_t row_bytes = (size_t)stored->dims[1] * qr_dtype_bytes(stored->dtype);
    unsigned char *made = qr_alloc_array((size_t)n_rows, row_bytes);
    *table = NULL;
    if (made == NULL) { return qr_fail_memory(err, stored->name, (size_t)n_rows * row_bytes); }
    memcpy(made, stored->data, stored->n_bytes);
    unsigned char *first = made + stored->n_bytes;
    const qrun_status status = n_rows > stored->dims[0] ? mean_row(stored, first, err) : QRUN_OK;
    if (status != QRUN_OK) {
        qr_free(made);
        return status;
    }
    for (int64_t r = stored->dims[0] + 1; r < n_rows; r++) { memcpy(made + (size_t)r * row_bytes, first, row_bytes); }
    *table = made;
    return QRUN_OK;
}
