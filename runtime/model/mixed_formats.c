#include "runtime/model/mixed_formats.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/params.h"
#include "base/sizes.h"
#include "loaders/files/json_put.h"
#include "runtime/engine/layout.h"
#include "runtime/model/model_open.h"

/* ---- Units ------------------------------------------------------------------------------------------------------- */

typedef struct collect_state {
    qrun_model *model;
    qrun_mixed *mixed;
} collect_state;

/* What a matrix takes where a model's weights lie one after the other. */
static int64_t placed_bytes(const qrun_model *model, const qr_weight_desc *desc, qr_weight_format format) {
    const qr_backend *backend = model->context->backend;
    const qr_weight_desc as = {
        .format = format, .block = qr_weight_is_nf4(format) ? QR_NF4_BLOCK : 0, .rows = desc->rows, .cols = desc->cols};
    qr_layout layout = {0};
    (void)qr_layout_take(&layout, 1, backend->weight_bytes(backend, &as));
    return (int64_t)layout.offset;
}

static qr_mixed_unit *find_unit(const qrun_mixed *mixed, qr_tensor_role role, int64_t layer) {
    for (int32_t i = 0; i < mixed->info.n_matrices; i++) {
        qr_mixed_unit *unit = &mixed->units[i];
        if (unit->role == role && unit->layer == layer) { return unit; }
    }
    return NULL;
}

static qrun_status add_unit(const collect_state *state, const qr_module *module, qr_mixed_unit **unit, qr_error *err) {
    const qrun_model *model = state->model;
    qrun_mixed *mixed = state->mixed;
    char name[QR_STORED_NAME_BYTES];
    QR_RETURN_IF_ERROR(qr_array_grow(&mixed->units, &mixed->capacity, (size_t)mixed->info.n_matrices + 1,
                                     sizeof *mixed->units, "the list of matrices", err));
    qr_family_write_name(model->prefix, model->family->modules[module->role], module->layer, 0, name, sizeof name);
    *unit = &mixed->units[mixed->info.n_matrices];
    **unit = (qr_mixed_unit){.role = module->role, .layer = module->layer, .matrix.name = qr_strdup(name)};
    if ((*unit)->matrix.name == NULL) { return qr_fail_memory(err, "the name of a matrix", strlen(name)); }
    mixed->info.n_matrices++;
    return QRUN_OK;
}

static qrun_status collect(void *arg, const qr_module *module, qr_error *err) {
    const collect_state *state = arg;
    if (module->matrix == NULL || !qr_role_is_quantised(module->role)) { return QRUN_OK; }
    const qr_weight_desc *desc = &module->matrix->desc;
    qr_mixed_unit *unit = find_unit(state->mixed, module->role, module->layer);
    if (unit == NULL) { QR_RETURN_IF_ERROR(add_unit(state, module, &unit, err)); }
    unit->matrix.n_alike++;
    unit->matrix.n_parameters += qr_weight_elements(desc);
    unit->nf4_bytes += placed_bytes(state->model, desc, QR_WEIGHT_NF4_DQ);
    unit->raised_bytes += placed_bytes(state->model, desc, state->mixed->raised);
    return QRUN_OK;
}

static qrun_status choose_raised(const qrun_model *model, qrun_quant raise_to, qr_weight_format *raised,
                                 qr_error *err) {
    const qr_weight_format half = model->config.dtype == QR_DTYPE_F16 ? QR_WEIGHT_F16 : QR_WEIGHT_BF16;
    *raised = raise_to == QRUN_QUANT_BF16 ? half : QR_WEIGHT_INT8;
    if (raise_to == QRUN_QUANT_AUTO || raise_to == QRUN_QUANT_INT8 || raise_to == QRUN_QUANT_BF16) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_ARGUMENT, "`raise_to` is %d; it must be int8 or bf16", (int)raise_to);
}

qrun_status qr_mixed_create(qrun_model *model, qrun_quant raise_to, qrun_mixed **mixed, qr_error *err) {
    qrun_mixed *made = qr_alloc_zeroed(sizeof *made);
    if (made == NULL) { return qr_fail_memory(err, "mixed formats", sizeof *made); }
    *made = (qrun_mixed){.info = QRUN_MIXED_INFO_INIT, .folder = qr_strdup(model->folder)};
    qrun_status status = QRUN_OK;
    if (made->folder == NULL) { QR_TRY(qr_fail_memory(err, "mixed formats", strlen(model->folder))); }
    QR_TRY(choose_raised(model, raise_to, &made->raised, err));
    collect_state state = {.model = model, .mixed = made};
    QR_TRY(qr_model_each_module(model, collect, &state, err));
    made->info.least_bytes = made->info.all_bytes = (int64_t)model->weight_bytes;
    for (int32_t i = 0; i < made->info.n_matrices; i++) {
        made->info.all_bytes += made->units[i].raised_bytes - made->units[i].nf4_bytes;
    }
    *mixed = made;
    made = NULL;
out:
    qrun_mixed_destroy(made);
    return status;
}

void qrun_mixed_destroy(qrun_mixed *mixed) {
    if (mixed == NULL) { return; }
    for (int32_t i = 0; i < mixed->info.n_matrices; i++) { qr_free((char *)(uintptr_t)mixed->units[i].matrix.name); }
    qr_free(mixed->units);
    qr_free(mixed->folder);
    qr_free(mixed->json);
    qr_free(mixed);
}

/* ---- Choosing ---------------------------------------------------------------------------------------------------- */

/* Model order where two are equal, so that the result does not depend on how qsort treats them. */
static int in_model_order(const qr_mixed_unit *a, const qr_mixed_unit *b) {
    return a->layer != b->layer ? (a->layer < b->layer ? -1 : 1) : (int)a->role - (int)b->role;
}

static int compare_descending(double a, double b) { return a > b ? -1 : a < b; }

static double kl_per_byte(const qr_mixed_unit *unit) {
    return unit->matrix.kl / (double)qr_max(unit->raised_bytes - unit->nf4_bytes, 1);
}

static int by_kl_per_byte(const void *a, const void *b) {
    const int order = compare_descending(kl_per_byte(a), kl_per_byte(b));
    return order != 0 ? order : in_model_order(a, b);
}

static int by_kl(const void *a, const void *b) {
    const double first = ((const qr_mixed_unit *)a)->matrix.kl, second = ((const qr_mixed_unit *)b)->matrix.kl;
    const int order = compare_descending(first, second);
    return order != 0 ? order : in_model_order(a, b);
}

static qrun_quant raised_quant(const qrun_mixed *mixed) {
    return mixed->raised == QR_WEIGHT_INT8  ? QRUN_QUANT_INT8
           : mixed->raised == QR_WEIGHT_F16 ? QRUN_QUANT_F16
                                            : QRUN_QUANT_BF16;
}

static void choose(qrun_mixed *mixed) {
    qrun_mixed_info *info = &mixed->info;
    info->weight_bytes = info->least_bytes;
    info->n_raised = 0;
    info->left_kl = 0;
    for (int32_t i = 0; i < info->n_matrices; i++) {
        qr_mixed_unit *unit = &mixed->units[i];
        const int64_t more = unit->raised_bytes - unit->nf4_bytes;
        const bool is_raised = unit->matrix.kl > 0 && more <= info->budget_bytes - info->weight_bytes;
        unit->matrix.quant = is_raised ? raised_quant(mixed) : QRUN_QUANT_NF4_DQ;
        unit->matrix.weight_bytes = is_raised ? unit->raised_bytes : unit->nf4_bytes;
        info->weight_bytes += is_raised ? more : 0;
        info->n_raised += is_raised;
        info->left_kl += is_raised ? 0 : unit->matrix.kl;
    }
}

static void put_matrix(const qrun_mixed *mixed, const qrun_mixed_matrix *matrix, qr_buffer *out) {
    const qr_weight_format format = matrix->quant == QRUN_QUANT_NF4_DQ ? QR_WEIGHT_NF4_DQ : mixed->raised;
    qr_json_put_begin(out, NULL, '{');
    qr_json_put_text(out, "name", matrix->name);
    qr_json_put_text(out, "quant", qr_weight_format_name(format));
    qr_json_put_int(out, "n_alike", matrix->n_alike);
    qr_json_put_int(out, "n_parameters", matrix->n_parameters);
    qr_json_put_int(out, "weight_bytes", matrix->weight_bytes);
    qr_json_put_double(out, "kl", matrix->kl);
    qr_json_put_double(out, "loss_difference", matrix->loss_difference);
    qr_json_put_end(out, '}');
}

static char *make_json(const qrun_mixed *mixed) {
    const qrun_mixed_info *info = &mixed->info;
    qr_buffer out = {0};
    qr_buffer_append_char(&out, '{');
    qr_json_put_int(&out, "n_tokens", info->n_tokens);
    qr_json_put_double(&out, "loss", info->loss);
    qr_json_put_double(&out, "nf4_loss", info->nf4_loss);
    qr_json_put_double(&out, "nf4_kl", info->nf4_kl);
    qr_json_put_double(&out, "left_kl", info->left_kl);
    qr_json_put_int(&out, "n_raised", info->n_raised);
    qr_json_put_int(&out, "weight_bytes", info->weight_bytes);
    qr_json_put_int(&out, "least_bytes", info->least_bytes);
    qr_json_put_int(&out, "all_bytes", info->all_bytes);
    qr_json_put_int(&out, "budget_bytes", info->budget_bytes);
    qr_json_put_begin(&out, "matrices", '[');
    for (int32_t i = 0; i < info->n_matrices; i++) { put_matrix(mixed, &mixed->units[i].matrix, &out); }
    qr_json_put_end(&out, ']');
    qr_json_put_end(&out, '}');
    return qr_buffer_take(&out);
}

qrun_status qr_mixed_choose(qrun_mixed *mixed, qr_error *err) {
    const size_t n = (size_t)mixed->info.n_matrices;
    qsort(mixed->units, n, sizeof *mixed->units, by_kl_per_byte);
    choose(mixed);
    qsort(mixed->units, n, sizeof *mixed->units, by_kl);
    qr_free(mixed->json);
    mixed->json = make_json(mixed);
    return mixed->json != NULL ? QRUN_OK : qr_fail_memory(err, "the table of matrices", n * sizeof *mixed->units);
}

/* ---- The result -------------------------------------------------------------------------------------------------- */

qr_weight_format qr_mixed_format(const qrun_mixed *mixed, qr_tensor_role role, int64_t layer) {
    const qr_mixed_unit *unit = find_unit(mixed, role, layer);
    return unit != NULL && unit->matrix.quant != QRUN_QUANT_NF4_DQ ? mixed->raised : QR_WEIGHT_NF4_DQ;
}

static qrun_status add_names(const qr_mixed_unit *unit, const qrun_model *model, char ***names, size_t *n_names,
                             size_t *capacity, qr_error *err) {
    for (int64_t expert = 0; expert < unit->matrix.n_alike; expert++) {
        char name[QR_STORED_NAME_BYTES];
        qr_family_write_name(model->prefix, model->family->modules[unit->role], unit->layer, expert, name, sizeof name);
        QR_RETURN_IF_ERROR(qr_array_grow(names, capacity, *n_names + 1, sizeof **names, "the names of modules", err));
        (*names)[*n_names] = qr_strdup(name);
        if ((*names)[*n_names] == NULL) { return qr_fail_memory(err, "the name of a module", strlen(name)); }
        ++*n_names;
    }
    return QRUN_OK;
}

qrun_status qr_mixed_plain_names(const qrun_mixed *mixed, const qrun_model *model, char ***names, size_t *n_names,
                                 qr_error *err) {
    size_t capacity = 0;
    for (int32_t i = 0; qr_weight_is_plain(mixed->raised) && i < mixed->info.n_matrices; i++) {
        const qr_mixed_unit *unit = &mixed->units[i];
        if (unit->matrix.quant == QRUN_QUANT_NF4_DQ) { continue; }
        QR_RETURN_IF_ERROR(add_names(unit, model, names, n_names, &capacity, err));
    }
    return QRUN_OK;
}

qrun_status qrun_mixed_get_info(const qrun_mixed *mixed, qrun_mixed_info *info, qrun_error *error) {
    QR_RETURN_IF_ERROR(QR_CHECK_STRUCT(qrun_mixed_info, info, error));
    *info = mixed->info;
    return QRUN_OK;
}

const qrun_mixed_matrix *qrun_mixed_get_matrix(const qrun_mixed *mixed, int32_t i) {
    return i >= 0 && i < mixed->info.n_matrices ? &mixed->units[i].matrix : NULL;
}

const char *qrun_mixed_json(const qrun_mixed *mixed) { return mixed->json; }
