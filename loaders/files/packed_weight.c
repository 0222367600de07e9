#include "loaders/files/packed_weight.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/half.h"
#include "base/sizes.h"

enum { NAME_BYTES = 256 };

const char *qr_packing_kind_name(qr_packing_kind kind) {
    switch (kind) {
        case QR_PACKING_NONE: return "none";
        case QR_PACKING_FP8: return "fp8";
        case QR_PACKING_MXFP4: return "mxfp4";
        case QR_PACKING_GPTQ: return "gptq";
        case QR_PACKING_AWQ: return "awq";
        case QR_PACKING_INT: return "pack-quantized";
        case QR_PACKING_INT8: return "int-quantized";
        case QR_PACKING_FLOAT8: return "float-quantized";
        case QR_PACKING_NVFP4: return "nvfp4-pack-quantized";
        case QR_PACKING_LATENT: return "keys and values apart";
    }
    return "?";
}

const char *qr_packing_name(const qr_packing *packing) {
    for (const qr_packing *other = packing->next; other != NULL; other = other->next) {
        if (other->kind != packing->kind) { return "mixed-precision"; }
    }
    return qr_packing_kind_name(packing->kind);
}

/* ---- Names ------------------------------------------------------------------------------------------------------- */

/* What follows "<module>." in the names of a packed matrix. NULL: the format has none, or stacks alone. */
typedef struct part_names {
    const char *codes, *scales, *zeros, *groups;
} part_names;

static const part_names names_of[] = {
    [QR_PACKING_NONE] = {0},
    [QR_PACKING_FP8] = {.codes = "weight", .scales = "weight_scale_inv"},
    [QR_PACKING_MXFP4] = {0},
    [QR_PACKING_GPTQ] = {.codes = "qweight", .scales = "scales", .zeros = "qzeros", .groups = "g_idx"},
    [QR_PACKING_AWQ] = {.codes = "qweight", .scales = "scales", .zeros = "qzeros"},
    [QR_PACKING_INT] = {.codes = "weight_packed",
                        .scales = "weight_scale",
                        .zeros = "weight_zero_point",
                        .groups = "weight_g_idx"},
    [QR_PACKING_INT8] = {.codes = "weight", .scales = "weight_scale", .zeros = "weight_zero_point"},
    [QR_PACKING_FLOAT8] = {.codes = "weight", .scales = "weight_scale"},
    [QR_PACKING_NVFP4] = {.codes = "weight_packed", .scales = "weight_scale"},
    [QR_PACKING_LATENT] = {0},
};
static const char SHAPE[] = "weight_shape", GLOBAL_SCALE[] = "weight_global_scale";

static const qr_dtype_set E8M0_SCALES = QR_DTYPE_BIT(QR_DTYPE_F8_E8M0) | QR_DTYPE_BIT(QR_DTYPE_U8) /* its other name */;
static const qr_dtype_set SCALES = QR_DTYPES_FLOAT | QR_DTYPE_BIT(QR_DTYPE_F8_E8M0) | QR_DTYPE_BIT(QR_DTYPE_U8);

static bool is_float8(qr_dtype dtype) { return dtype == QR_DTYPE_F8_E4M3 || dtype == QR_DTYPE_F8_E5M2; }

bool qr_packing_has_codes(const qr_packing *packing, const qr_safetensors_tensor *tensor) {
    return packing->kind == QR_PACKING_FP8 && is_float8(tensor->dtype);
}

static const qr_safetensors_tensor *find_part(const qr_safetensors *file, const char *module, const char *suffix,
                                              char name[NAME_BYTES]) {
    (void)snprintf(name, NAME_BYTES, "%s.%s", module, suffix);
    return qr_safetensors_find(file, name);
}

/* The codes of a module that is packed in one way. */
static const qr_safetensors_tensor *codes_of_kind(const qr_safetensors *file, qr_packing_kind kind,
                                                  const char *module) {
    char name[NAME_BYTES];
    const part_names *names = &names_of[kind];
    const qr_safetensors_tensor *codes = names->codes != NULL ? find_part(file, module, names->codes, name) : NULL;
    if (codes == NULL || strcmp(names->codes, "weight") != 0) { return codes; }
    return (kind == QR_PACKING_INT8 ? codes->dtype == QR_DTYPE_I8 : is_float8(codes->dtype)) ? codes : NULL;
}

const qr_safetensors_tensor *qr_packed_module_codes(const qr_safetensors *file, const qr_packing *packing,
                                                    const char *module) {
    const qr_safetensors_tensor *codes = NULL;
    for (; packing != NULL && codes == NULL; packing = packing->next) {
        codes = codes_of_kind(file, packing->kind, module);
    }
    return codes;
}

bool qr_packed_module_has(qr_packing_kind kind, const qr_safetensors_tensor *codes, const char *name) {
    static const char *const others[] = {
        SHAPE,          GLOBAL_SCALE,       "input_scale", "input_zero_point", "input_global_scale",
        "output_scale", "output_zero_point"};
    const part_names *names = &names_of[kind];
    const char *const own[] = {names->codes, names->scales, names->zeros, names->groups};
    const char *dot = strrchr(codes->name, '.');
    const size_t n_bytes = dot != NULL ? (size_t)(dot - codes->name) + 1 : 0;
    if (n_bytes == 0 || strncmp(name, codes->name, n_bytes) != 0) { return false; }
    const char *end = name + n_bytes;
    for (size_t i = 0; i < QR_COUNT_OF(own); i++) {
        if (own[i] != NULL && strcmp(end, own[i]) == 0) { return true; }
    }
    for (size_t i = 0; i < QR_COUNT_OF(others); i++) {
        if (strcmp(end, others[i]) == 0) { return true; }
    }
    return false;
}

/* ---- Finding ----------------------------------------------------------------------------------------------------- */

/* The dimensions before those of a matrix are the codes': experts. A single value may have any number of them. */
static qrun_status find_grid(const qr_safetensors *file, const qr_safetensors_tensor *codes, const char *name,
                             qr_dtype_set dtypes, int64_t n_grid_rows, int64_t n_grid_cols,
                             const qr_safetensors_tensor **grid, qr_error *err) {
    int64_t dims[QR_MAX_DIMS];
    const int n_stacks = codes->n_dims > 2 ? 1 : 0;
    const qr_safetensors_tensor *found = qr_safetensors_find(file, name);
    if (n_grid_rows * n_grid_cols == 1 && n_stacks == 0 && found != NULL) {
        for (int d = 0; d < found->n_dims; d++) { dims[d] = 1; }
        return qr_safetensors_require(file, name, dtypes, found->n_dims, dims, grid, err);
    }
    for (int d = 0; d < n_stacks; d++) { dims[d] = codes->dims[d]; }
    dims[n_stacks] = n_grid_rows;
    dims[n_stacks + 1] = n_grid_cols;
    return qr_safetensors_require(file, name, dtypes, n_stacks + 2, dims, grid, err);
}

/* A matrix [rows, cols] without its tensors. */
static qr_packed_weight describe(const qr_packing *packing, int64_t rows, int64_t cols) {
    const int64_t block_cols = packing->block_cols > 0 ? packing->block_cols : cols;
    return (qr_packed_weight){.kind = packing->kind,
                              .rows = rows,
                              .cols = cols,
                              .row_step = 1,
                              .block_rows = packing->block_rows > 0 ? packing->block_rows : rows,
                              .block_cols = block_cols,
                              .bits = packing->bits,
                              .n_groups = qr_ceil_div(cols, block_cols),
                              .zero_step = !packing->zeros_less_one ? 0
                                           : packing->bits == 4     ? UINT32_C(0x11111111)
                                                                    : UINT32_C(0x01010101),
                              .global_scale = 1.0F};
}

qrun_status qr_packed_weight_find(const qr_safetensors *file, const qr_packing *packing,
                                  const qr_safetensors_tensor *codes, const char *scales_name, int64_t rows,
                                  int64_t cols, int64_t index, qr_packed_weight *packed, qr_error *err) {
    const qr_safetensors_tensor *scales;
    qr_packed_weight made = describe(packing, rows, cols);
    const int64_t n_grid_rows = qr_ceil_div(rows, made.block_rows);
    const bool is_mxfp4 = packing->kind == QR_PACKING_MXFP4;
    const int64_t row_bytes = is_mxfp4 ? cols / 2 : cols;
    QR_RETURN_IF_ERROR(
        find_grid(file, codes, scales_name, is_mxfp4 ? E8M0_SCALES : SCALES, n_grid_rows, made.n_groups, &scales, err));
    made.codes = codes->data + index * rows * row_bytes;
    made.code_dtype = codes->dtype;
    made.scales = scales->data + (size_t)(index * n_grid_rows * made.n_groups) * qr_dtype_bytes(scales->dtype);
    made.scale_tensor = scales;
    *packed = made;
    return QRUN_OK;
}

/* ---- Modules ----------------------------------------------------------------------------------------------------- */

/* What every finder here needs. */
typedef struct finder {
    const qr_safetensors *file;
    const qr_packing *packing;
    const char *module;
    const qr_safetensors_tensor *codes;
    qr_error *err;
} finder;

static qrun_status require_part(const finder *f, const char *suffix, qr_dtype dtype, int64_t n_rows, int64_t n_cols,
                                const qr_safetensors_tensor **tensor) {
    char name[NAME_BYTES];
    const int64_t dims[2] = {n_rows, n_cols};
    const qr_dtype_set dtypes = dtype == QR_DTYPE_F32 ? QR_DTYPES_FLOAT : QR_DTYPE_BIT(dtype);
    (void)find_part(f->file, f->module, suffix, name);
    return qr_safetensors_require(f->file, name, dtypes, 2, dims, tensor, f->err);
}

static qrun_status require_codes(const finder *f, qr_dtype dtype, int64_t n_rows, int64_t n_cols) {
    const qr_safetensors_tensor *codes;
    return require_part(f, names_of[f->packing->kind].codes, dtype, n_rows, n_cols, &codes);
}

static qrun_status check_multiple(const finder *f, const char *what, int64_t n, int64_t of) {
    if (n % of == 0) { return QRUN_OK; }
    return qr_fail(f->err, QRUN_ERROR_INPUT, "%s: is %s in blocks of %lld %s, and the matrix has %lld", f->codes->name,
                   qr_packing_kind_name(f->packing->kind), (long long)of, what, (long long)n);
}

/* The group of each column. Columns in the order of their groups need no list. */
static qrun_status find_groups(const finder *f, qr_packed_weight *packed) {
    char name[NAME_BYTES];
    bool in_order = true;
    const int64_t cols = packed->cols;
    const qr_safetensors_tensor *groups = find_part(f->file, f->module, names_of[packed->kind].groups, name);
    if ((groups == NULL || groups->n_bytes == 0) && !f->packing->is_reordered) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(qr_safetensors_require(f->file, name, QR_DTYPE_BIT(QR_DTYPE_I32), 1, &cols, &groups, f->err));
    for (int64_t c = 0; c < cols; c++) {
        int32_t group;
        memcpy(&group, groups->data + c * 4, sizeof group);
        if (group < 0 || group >= packed->n_groups) {
            QR_RETURN_IF_ERROR(qr_safetensors_check(f->file, f->err));
            return qr_fail(f->err, QRUN_ERROR_INPUT, "%s: column %lld is in group %d, and there are %lld groups", name,
                           (long long)c, (int)group, (long long)packed->n_groups);
        }
        in_order = in_order && group == c / packed->block_cols;
    }
    packed->groups = in_order ? NULL : groups;
    return qr_safetensors_check(f->file, f->err);
}

/* GPTQ and AWQ, whose tensors have a column for each row of the matrix. */
static qrun_status find_across(const finder *f, qr_packed_weight *packed) {
    const int64_t rows = packed->rows, cols = packed->cols, per_word = 32 / packed->bits;
    const bool is_gptq = packed->kind == QR_PACKING_GPTQ;
    QR_RETURN_IF_ERROR(check_multiple(f, "rows", rows, per_word));
    QR_RETURN_IF_ERROR(check_multiple(f, "columns", cols, is_gptq ? per_word : packed->block_cols));
    QR_RETURN_IF_ERROR(
        require_codes(f, QR_DTYPE_I32, is_gptq ? cols / per_word : cols, is_gptq ? rows : rows / per_word));
    QR_RETURN_IF_ERROR(require_part(f, "scales", QR_DTYPE_F32, packed->n_groups, rows, &packed->scale_tensor));
    QR_RETURN_IF_ERROR(require_part(f, "qzeros", QR_DTYPE_I32, packed->n_groups, rows / per_word, &packed->zeros));
    return is_gptq ? find_groups(f, packed) : QRUN_OK;
}

static qrun_status check_shape(const finder *f, const qr_packed_weight *packed) {
    char name[NAME_BYTES];
    const int64_t two = 2;
    const qr_safetensors_tensor *shape;
    int64_t dims[2];
    (void)find_part(f->file, f->module, SHAPE, name);
    QR_RETURN_IF_ERROR(qr_safetensors_require(f->file, name, QR_DTYPE_BIT(QR_DTYPE_I64), 1, &two, &shape, f->err));
    memcpy(dims, shape->data, sizeof dims);
    QR_RETURN_IF_ERROR(qr_safetensors_check(f->file, f->err));
    if (dims[0] == packed->rows && dims[1] == packed->cols) { return QRUN_OK; }
    return qr_fail(f->err, QRUN_ERROR_INPUT, "%s: says [%lld, %lld] where config.json asks for [%lld, %lld]", name,
                   (long long)dims[0], (long long)dims[1], (long long)packed->rows, (long long)packed->cols);
}

static qrun_status find_scales(const finder *f, qr_packed_weight *packed) {
    char name[NAME_BYTES];
    (void)find_part(f->file, f->module, names_of[packed->kind].scales, name);
    return find_grid(f->file, f->codes, name, QR_DTYPES_FLOAT, qr_ceil_div(packed->rows, packed->block_rows),
                     packed->n_groups, &packed->scale_tensor, f->err);
}

static qrun_status find_int(const finder *f, qr_packed_weight *packed) {
    const int64_t rows = packed->rows, cols = packed->cols, per_word = 32 / packed->bits;
    QR_RETURN_IF_ERROR(check_multiple(f, "columns", cols, packed->block_cols));
    QR_RETURN_IF_ERROR(require_codes(f, QR_DTYPE_I32, rows, qr_ceil_div(cols, per_word)));
    QR_RETURN_IF_ERROR(check_shape(f, packed));
    QR_RETURN_IF_ERROR(find_scales(f, packed));
    if (f->packing->has_zeros) {
        QR_RETURN_IF_ERROR(require_part(f, "weight_zero_point", QR_DTYPE_I32, qr_ceil_div(rows, per_word),
                                        packed->n_groups, &packed->zeros));
    }
    return find_groups(f, packed);
}

static qrun_status find_int8(const finder *f, qr_packed_weight *packed) {
    char name[NAME_BYTES];
    QR_RETURN_IF_ERROR(require_codes(f, QR_DTYPE_I8, packed->rows, packed->cols));
    QR_RETURN_IF_ERROR(find_scales(f, packed));
    if (!f->packing->has_zeros) { return QRUN_OK; }
    (void)find_part(f->file, f->module, "weight_zero_point", name);
    return find_grid(f->file, f->codes, name, QR_DTYPE_BIT(QR_DTYPE_I8), qr_ceil_div(packed->rows, packed->block_rows),
                     packed->n_groups, &packed->zeros, f->err);
}

static qrun_status find_nvfp4(const finder *f, qr_packed_weight *packed) {
    char name[NAME_BYTES];
    const qr_safetensors_tensor *global;
    QR_RETURN_IF_ERROR(check_multiple(f, "columns", packed->cols, QR_NVFP4_BLOCK));
    QR_RETURN_IF_ERROR(require_codes(f, QR_DTYPE_U8, packed->rows, packed->cols / 2));
    QR_RETURN_IF_ERROR(
        require_part(f, "weight_scale", QR_DTYPE_F8_E4M3, packed->rows, packed->n_groups, &packed->scale_tensor));
    (void)find_part(f->file, f->module, GLOBAL_SCALE, name);
    QR_RETURN_IF_ERROR(find_grid(f->file, f->codes, name, QR_DTYPE_BIT(QR_DTYPE_F32), 1, 1, &global, f->err));
    memcpy(&packed->global_scale, global->data, sizeof packed->global_scale);
    QR_RETURN_IF_ERROR(qr_safetensors_check(f->file, f->err));
    if (packed->global_scale > 0 && isfinite(packed->global_scale)) { return QRUN_OK; }
    return qr_fail(f->err, QRUN_ERROR_INPUT, "%s: is %g, and scales cannot be divided by that", name,
                   (double)packed->global_scale);
}

static qrun_status find_float8(const finder *f, qr_packed_weight *packed) {
    char name[NAME_BYTES];
    QR_RETURN_IF_ERROR(require_codes(f, f->codes->dtype, packed->rows, packed->cols));
    (void)find_part(f->file, f->module, names_of[packed->kind].scales, name);
    return qr_packed_weight_find(f->file, f->packing, f->codes, name, packed->rows, packed->cols, 0, packed, f->err);
}

static qrun_status find_by_kind(const finder *f, qr_packed_weight *packed) {
    switch (packed->kind) {
        case QR_PACKING_NONE:
        case QR_PACKING_LATENT:
        case QR_PACKING_MXFP4: break;
        case QR_PACKING_FP8:
        case QR_PACKING_FLOAT8: return find_float8(f, packed);
        case QR_PACKING_GPTQ:
        case QR_PACKING_AWQ: return find_across(f, packed);
        case QR_PACKING_INT: return find_int(f, packed);
        case QR_PACKING_INT8: return find_int8(f, packed);
        case QR_PACKING_NVFP4: return find_nvfp4(f, packed);
    }
    return QRUN_OK;
}

static qrun_status find_in(const qr_safetensors *file, const qr_packing *packing, const char *module,
                           const qr_safetensors_tensor *codes, int64_t rows, int64_t cols, qr_packed_weight *packed,
                           qr_error *err) {
    char plain[NAME_BYTES];
    const finder f = {.file = file, .packing = packing, .module = module, .codes = codes, .err = err};
    qr_packed_weight made = describe(packing, rows, cols);
    const qr_safetensors_tensor *other = find_part(file, module, "weight", plain);
    if (other != NULL && other != codes) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: is there beside %s, and only one of them can be the matrix",
                       codes->name, plain);
    }
    QR_RETURN_IF_ERROR(find_by_kind(&f, &made));
    made.codes = codes->data;
    made.code_dtype = codes->dtype;
    made.scales = made.scale_tensor->data;
    *packed = made;
    return QRUN_OK;
}

/* Whether zero points are there just where the packing has some. */
static bool has_its_zeros(const qr_safetensors *file, const qr_packing *packing, const char *module) {
    char name[NAME_BYTES];
    const char *zeros = names_of[packing->kind].zeros;
    return zeros == NULL || (find_part(file, module, zeros, name) != NULL) == packing->has_zeros;
}

/* Whether the same tensors give the same values. */
static bool reads_alike(const qr_packed_weight *a, const qr_packed_weight *b) {
    return a->kind == b->kind && a->bits == b->bits && a->zeros == b->zeros && a->groups == b->groups &&
           qr_min(a->block_rows, a->rows) == qr_min(b->block_rows, b->rows) &&
           qr_min(a->block_cols, a->cols) == qr_min(b->block_cols, b->cols);
}

/* The one of several packings that the tensors fit. */
static qrun_status find_among(const qr_safetensors *file, const qr_packing *packing, const char *module,
                              const qr_safetensors_tensor *codes, int64_t rows, int64_t cols, qr_packed_weight *packed,
                              qr_error *err) {
    const qr_packing *nearest = NULL;
    bool fits = false;
    for (const qr_packing *p = packing; p != NULL; p = p->next) {
        qr_packed_weight found;
        if (codes_of_kind(file, p->kind, module) != codes) { continue; }
        if (nearest == NULL) { nearest = p; }
        if (!has_its_zeros(file, p, module)) { continue; }
        nearest = p;
        if (find_in(file, p, module, codes, rows, cols, &found, NULL) != QRUN_OK) { continue; }
        if (fits && !reads_alike(packed, &found)) {
            return qr_fail(err, QRUN_ERROR_UNSUPPORTED,
                           "%s: two of the \"config_groups\" in config.json fit it, which read it differently; use the "
                           "original 16-bit model instead",
                           codes->name);
        }
        *packed = found;
        fits = true;
    }
    /* Says what is missing. */
    return fits ? QRUN_OK : find_in(file, nearest, module, codes, rows, cols, packed, err);
}

qrun_status qr_packed_module_find(const qr_safetensors *file, const qr_packing *packing, const char *module,
                                  const qr_safetensors_tensor *codes, int64_t rows, int64_t cols,
                                  qr_packed_weight *packed, qr_error *err) {
    return packing->next == NULL ? find_in(file, packing, module, codes, rows, cols, packed, err)
                                 : find_among(file, packing, module, codes, rows, cols, packed, err);
}
