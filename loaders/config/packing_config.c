#include "loaders/config/packing_config.h"

#include <string.h>

#include "base/alloc.h"
#include "base/sizes.h"

enum { MOST_BLOCK = 1 << 20, MOST_PACKINGS = 16 };

/* What every reader here needs. */
typedef struct source {
    const qr_json *json;
    const char *what;
    qr_error *err;
} source;

static qrun_status get_string(const source *s, const char *key, const char **value) {
    return qr_json_get_string(s->json, key, value, s->what, s->err);
}

static qrun_status get_bool(const source *s, const char *key, bool *value) {
    return qr_json_get_bool(s->json, key, value, s->what, s->err);
}

static qrun_status refuse(const source *s, const char *key, const char *value) {
    return qr_fail(s->err, QRUN_ERROR_UNSUPPORTED,
                   "%s: quantization_config has \"%s\" of %.40s, which is not supported; use the original 16-bit model "
                   "instead, qrun quantises it while loading",
                   s->what, key, value);
}

static bool has_items(const qr_json *json) {
    return (cJSON_IsObject(json) || cJSON_IsArray(json)) && qr_json_first(json) != NULL;
}

/* [rows, columns] */
static bool read_block(const qr_json *block, qr_packing *packing) {
    const qr_json *first = qr_json_first(block), *second = first != NULL ? first->next : NULL;
    return cJSON_IsArray(block) && qr_json_as_int(first, 1, MOST_BLOCK, &packing->block_rows) &&
           qr_json_as_int(second, 1, MOST_BLOCK, &packing->block_cols) && second->next == NULL;
}

/* ---- fp8 --------------------------------------------------------------------------------------------------------- */

/* Absent is 128 by 128, null a scale for each matrix. */
static qrun_status read_fp8(const source *s, qr_packing *packing) {
    const qr_json *block = qr_json_get(s->json, "weight_block_size");
    *packing = (qr_packing){.kind = QR_PACKING_FP8, .block_rows = 128, .block_cols = 128};
    if (block == NULL) { return QRUN_OK; }
    if (qr_json_is_null(block)) {
        packing->block_rows = packing->block_cols = 0;
        return QRUN_OK;
    }
    if (read_block(block, packing)) { return QRUN_OK; }
    return qr_fail(s->err, QRUN_ERROR_INPUT, "%s: \"weight_block_size\" should be two numbers of rows and columns",
                   s->what);
}

/* ---- gptq and awq ------------------------------------------------------------------------------------------------ */

/* A group of −1 is a whole row. */
static qrun_status read_group_size(const source *s, int64_t fallback, qr_packing *packing) {
    int64_t size = fallback;
    QR_RETURN_IF_ERROR(qr_json_get_int(s->json, "group_size", -1, MOST_BLOCK, &size, s->what, s->err));
    if (size == 0) { return qr_fail(s->err, QRUN_ERROR_INPUT, "%s: \"group_size\" is 0", s->what); }
    packing->block_rows = 1;
    packing->block_cols = size > 0 ? size : 0;
    return QRUN_OK;
}

static qrun_status read_bits(const source *s, const char *key, bool may_be_8, qr_packing *packing) {
    int64_t bits = 4;
    QR_RETURN_IF_ERROR(qr_json_get_int(s->json, key, 1, 32, &bits, s->what, s->err));
    packing->bits = (int)bits;
    if (bits == 4 || (may_be_8 && bits == 8)) { return QRUN_OK; }
    return qr_fail(s->err, QRUN_ERROR_UNSUPPORTED,
                   "%s: quantization_config has \"%s\" of %lld, and %s can be read; use the original 16-bit model "
                   "instead",
                   s->what, key, (long long)bits, may_be_8 ? "4 and 8" : "4");
}

/* Of GPTQModel: patterns of modules. "-:" leaves modules as they were; others may have sizes of their own. */
static qrun_status check_dynamic(const source *s) {
    const qr_json *patterns = qr_json_get(s->json, "dynamic");
    for (const qr_json *item = qr_json_first(patterns); item != NULL; item = item->next) {
        if (item->string == NULL || strncmp(item->string, "-:", 2) == 0 || !has_items(item)) { continue; }
        return refuse(s, "dynamic", item->string);
    }
    return QRUN_OK;
}

static qrun_status read_gptq(const source *s, qr_packing *packing) {
    const char *format = "gptq", *words = "int32";
    *packing = (qr_packing){.kind = QR_PACKING_GPTQ};
    QR_RETURN_IF_ERROR(read_bits(s, "bits", true, packing));
    QR_RETURN_IF_ERROR(read_group_size(s, 128, packing));
    QR_RETURN_IF_ERROR(get_bool(s, "desc_act", &packing->is_reordered));
    QR_RETURN_IF_ERROR(get_string(s, "pack_dtype", &words));
    QR_RETURN_IF_ERROR(get_string(s, "format", &format));
    QR_RETURN_IF_ERROR(get_string(s, "checkpoint_format", &format));
    if (strcmp(words, "int32") != 0) { return refuse(s, "pack_dtype", words); }
    packing->zeros_less_one = strcmp(format, "gptq") == 0;
    if (!packing->zeros_less_one && strcmp(format, "gptq_v2") != 0) { return refuse(s, "checkpoint_format", format); }
    return check_dynamic(s);
}

static qrun_status read_awq(const source *s, qr_packing *packing) {
    const char *version = "gemm";
    bool has_zeros = true;
    *packing = (qr_packing){.kind = QR_PACKING_AWQ};
    QR_RETURN_IF_ERROR(read_bits(s, "bits", false, packing));
    QR_RETURN_IF_ERROR(read_group_size(s, 128, packing));
    QR_RETURN_IF_ERROR(get_bool(s, "zero_point", &has_zeros));
    QR_RETURN_IF_ERROR(get_string(s, "format", &version));
    QR_RETURN_IF_ERROR(get_string(s, "version", &version));
    if (strcmp(version, "gemm") != 0 && strcmp(version, "GEMM") != 0) { return refuse(s, "version", version); }
    return has_zeros ? QRUN_OK : refuse(s, "zero_point", "false");
}

/* ---- compressed-tensors ------------------------------------------------------------------------------------------ */

/* How the weights of a group are quantised. */
typedef struct weights_args {
    bool is_float, symmetric;
    int64_t bits, group_size;
    const char *strategy; /* NULL: by the group's size */
} weights_args;

static qrun_status read_args(const source *s, weights_args *args) {
    const char *type = "int";
    *args = (weights_args){.symmetric = true, .bits = 8, .group_size = -1};
    QR_RETURN_IF_ERROR(qr_json_get_int(s->json, "num_bits", 1, 32, &args->bits, s->what, s->err));
    QR_RETURN_IF_ERROR(qr_json_get_int(s->json, "group_size", -1, MOST_BLOCK, &args->group_size, s->what, s->err));
    QR_RETURN_IF_ERROR(get_bool(s, "symmetric", &args->symmetric));
    QR_RETURN_IF_ERROR(get_string(s, "strategy", &args->strategy));
    QR_RETURN_IF_ERROR(get_string(s, "type", &type));
    args->is_float = strcmp(type, "float") == 0;
    return args->is_float || strcmp(type, "int") == 0 ? QRUN_OK : refuse(s, "type", type);
}

/* What a scale is for. */
static qrun_status read_strategy(const source *s, const weights_args *args, qr_packing *packing) {
    const char *strategy = args->strategy;
    if (strategy == NULL) {
        const bool is_whole = qr_json_is_null(qr_json_get(s->json, "group_size"));
        strategy = args->group_size > 0 ? "group" : is_whole ? "tensor" : "channel";
    }
    packing->block_rows = packing->block_cols = 0;
    if (strcmp(strategy, "tensor") == 0) { return QRUN_OK; }
    packing->block_rows = 1;
    if (strcmp(strategy, "channel") == 0) { return QRUN_OK; }
    if (strcmp(strategy, "group") == 0 || strcmp(strategy, "tensor_group") == 0) {
        packing->block_cols = args->group_size;
        if (args->group_size > 0) { return QRUN_OK; }
        return qr_fail(s->err, QRUN_ERROR_INPUT, "%s: \"strategy\" is %.20s, and there is no \"group_size\"", s->what,
                       strategy);
    }
    if (strcmp(strategy, "block") != 0) { return refuse(s, "strategy", strategy); }
    if (read_block(qr_json_get(s->json, "block_structure"), packing)) { return QRUN_OK; }
    return qr_fail(s->err, QRUN_ERROR_INPUT, "%s: \"block_structure\" should be two numbers of rows and columns",
                   s->what);
}

/* Which kind a format is with these weights; NONE: none that is read. */
static qr_packing_kind kind_of(const char *format, const weights_args *args) {
    const bool is_int8 = !args->is_float && args->bits == 8, is_float8 = args->is_float && args->bits == 8;
    if (strcmp(format, "pack-quantized") == 0 && !args->is_float && (args->bits == 4 || args->bits == 8)) {
        return QR_PACKING_INT;
    }
    if (strcmp(format, "nvfp4-pack-quantized") == 0 && args->is_float && args->bits == 4) { return QR_PACKING_NVFP4; }
    const bool is_naive = strcmp(format, "naive-quantized") == 0;
    if ((is_naive || strcmp(format, "int-quantized") == 0) && is_int8) { return QR_PACKING_INT8; }
    return (is_naive || strcmp(format, "float-quantized") == 0) && is_float8 ? QR_PACKING_FLOAT8 : QR_PACKING_NONE;
}

/* "group" and "dynamic" put columns into another order; "weight" and "static" do not. */
static qrun_status read_order(const source *s, bool *is_reordered) {
    const qr_json *order = qr_json_get(s->json, "actorder");
    *is_reordered = cJSON_IsTrue(order);
    if (!cJSON_IsString(order)) { return QRUN_OK; }
    const char *text = order->valuestring;
    *is_reordered = strcmp(text, "group") == 0 || strcmp(text, "dynamic") == 0;
    return *is_reordered || strcmp(text, "weight") == 0 || strcmp(text, "static") == 0 ? QRUN_OK
                                                                                       : refuse(s, "actorder", text);
}

static qrun_status read_weights(const source *s, const char *format, qr_packing *packing) {
    weights_args args;
    QR_RETURN_IF_ERROR(read_args(s, &args));
    *packing = (qr_packing){.kind = kind_of(format, &args), .bits = (int)args.bits, .has_zeros = !args.symmetric};
    if (packing->kind == QR_PACKING_NONE) {
        return qr_fail(s->err, QRUN_ERROR_UNSUPPORTED,
                       "%s: weights of %lld bits (%s) in the format %.40s of compressed-tensors are not supported; use "
                       "the original 16-bit model instead",
                       s->what, (long long)args.bits, args.is_float ? "float" : "int", format);
    }
    QR_RETURN_IF_ERROR(read_strategy(s, &args, packing));
    QR_RETURN_IF_ERROR(read_order(s, &packing->is_reordered));
    const bool is_int = packing->kind == QR_PACKING_INT, is_nvfp4 = packing->kind == QR_PACKING_NVFP4;
    if ((args.is_float && packing->has_zeros) || (is_int && packing->has_zeros && packing->block_rows != 1)) {
        return refuse(s, "symmetric", "false");
    }
    if (is_int && packing->block_rows > 1) { return refuse(s, "strategy", "block"); }
    if (packing->is_reordered && !is_int) { return refuse(s, "actorder", "group"); }
    if (is_nvfp4 && (packing->block_rows != 1 || packing->block_cols != QR_NVFP4_BLOCK)) {
        return qr_fail(s->err, QRUN_ERROR_INPUT, "%s: NVFP4 has groups of %d columns, and \"group_size\" is %lld",
                       s->what, QR_NVFP4_BLOCK, (long long)args.group_size);
    }
    return QRUN_OK;
}

static bool is_alike(const qr_packing *a, const qr_packing *b) {
    return a->kind == b->kind && a->block_rows == b->block_rows && a->block_cols == b->block_cols &&
           a->bits == b->bits && a->has_zeros == b->has_zeros && a->is_reordered == b->is_reordered;
}

/* Adds a packing to those of the folder, unless it is among them. */
static qrun_status add_packing(const source *s, const qr_packing *of_group, qr_packing *packing) {
    int n = 1;
    if (packing->kind == QR_PACKING_NONE) {
        *packing = *of_group;
        return QRUN_OK;
    }
    qr_packing *last = packing;
    for (qr_packing *p = packing; p != NULL; p = p->next, n++) {
        if (is_alike(p, of_group)) { return QRUN_OK; }
        last = p;
    }
    if (n > MOST_PACKINGS) { return refuse(s, "config_groups", "more than 16 formats"); }
    last->next = qr_alloc(sizeof *last->next);
    if (last->next == NULL) { return qr_fail_memory(s->err, s->what, sizeof *last->next); }
    *last->next = *of_group;
    return QRUN_OK;
}

/* What is about activations or the K/V cache alone changes no weight. Which modules a group is for is what their
 * tensors say. */
static qrun_status read_groups(const source *s, const char *format, qr_packing *packing) {
    for (const qr_json *item = qr_json_first(qr_json_get(s->json, "config_groups")); item != NULL; item = item->next) {
        const source group = {.json = item, .what = s->what, .err = s->err};
        const char *own_format = format;
        qr_packing of_group;
        if (!cJSON_IsObject(item)) { return refuse(s, "config_groups", item->string); }
        QR_RETURN_IF_ERROR(get_string(&group, "format", &own_format));
        const source weights = {.json = qr_json_get(item, "weights"), .what = s->what, .err = s->err};
        if (!cJSON_IsObject(weights.json)) { continue; }
        QR_RETURN_IF_ERROR(read_weights(&weights, own_format, &of_group));
        QR_RETURN_IF_ERROR(add_packing(s, &of_group, packing));
    }
    return QRUN_OK;
}

static qrun_status read_compressed(const source *s, qr_packing *packing) {
    const char *format = "dense", *sparse_format = "dense";
    QR_RETURN_IF_ERROR(get_string(s, "format", &format));
    const qr_json *sparsity = qr_json_get(s->json, "sparsity_config");
    const source sparse = {.json = sparsity, .what = s->what, .err = s->err};
    if (has_items(sparsity)) { QR_RETURN_IF_ERROR(get_string(&sparse, "format", &sparse_format)); }
    if (strcmp(sparse_format, "dense") != 0) { return refuse(s, "sparsity_config", sparse_format); }
    const qr_json *transforms = qr_json_get(qr_json_get(s->json, "transform_config"), "config_groups");
    if (has_items(transforms)) { return refuse(s, "transform_config", qr_json_first(transforms)->string); }
    if (strcmp(format, "dense") == 0) { return QRUN_OK; }
    return read_groups(s, format, packing);
}

void qr_packing_free(qr_packing *packing) {
    for (qr_packing *p = packing->next, *next; p != NULL; p = next) {
        next = p->next;
        qr_free(p);
    }
    *packing = (qr_packing){0};
}

/* ---- The interface ----------------------------------------------------------------------------------------------- */

qrun_status qr_packing_config_read(const qr_json *object, const char *method, const char *what, qr_packing *packing,
                                   qr_error *err) {
    const source s = {.json = object, .what = what, .err = err};
    *packing = (qr_packing){0};
    if (strcmp(method, "fp8") == 0) { return read_fp8(&s, packing); }
    if (strcmp(method, "gptq") == 0) { return read_gptq(&s, packing); }
    if (strcmp(method, "awq") == 0) { return read_awq(&s, packing); }
    if (strcmp(method, "compressed-tensors") == 0) { return read_compressed(&s, packing); }
    if (strcmp(method, "mxfp4") == 0) {
        *packing = (qr_packing){.kind = QR_PACKING_MXFP4, .block_rows = 1, .block_cols = QR_MXFP4_BLOCK};
        return QRUN_OK;
    }
    return qr_fail(err, QRUN_ERROR_UNSUPPORTED,
                   "%s: the model is stored in the %.40s format, which is not supported; use the original 16-bit "
                   "model instead, qrun quantises it while loading",
                   what, method);
}
