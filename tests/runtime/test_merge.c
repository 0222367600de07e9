/* Adapters merged into their models: equal to what PEFT's merge_and_unload makes of them, in memory of about one tensor,
 * and whole or not there at all. */
#include "check.h"

#include <dirent.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/half.h"
#include "base/sizes.h"
#include "golden_index.h"
#include "loaders/adapter_writer.h"
#include "loaders/safetensors.h"
#include "runtime/model.h"

#define EXAMPLE QRUN_SOURCE_DIR "/examples/model"

enum { PATH_BYTES = 512, N_GOLDEN_ROWS = 4 };

static qrun_context *context;
static char scratch[] = "/tmp/qrun-merge-XXXXXX"; /* a folder of this run's own */

/* ---- Folders ----------------------------------------------------------------------------------------------------- */

static const char *in_scratch(const char *name) {
    static char paths[16][PATH_BYTES];
    static int next;
    char *path = paths[next++ % 16];
    snprintf(path, PATH_BYTES, "%s/%s", scratch, name);
    return path;
}

static const char *fixture(const char *name) {
    static char paths[16][PATH_BYTES];
    static int next;
    char *path = paths[next++ % 16];
    snprintf(path, PATH_BYTES, FIXTURES "%s", name);
    return path;
}

static int count_entries(const char *path) {
    DIR *folder = opendir(path);
    if (folder == NULL) { return -1; }
    int n = -2;
    while (readdir(folder) != NULL) { n++; }
    closedir(folder);
    return n;
}

static qrun_merge_params params_for(const char *model, const char *adapter, const char *out) {
    qrun_merge_params params = QRUN_MERGE_PARAMS_INIT;
    params.path = model;
    params.adapter = adapter;
    params.out = out;
    return params;
}

/* ---- Against PEFT ------------------------------------------------------------------------------------------------ */

static float *to_f32(const qr_safetensors_tensor *tensor, int64_t *n) {
    *n = (int64_t)(tensor->n_bytes / qr_dtype_bytes(tensor->dtype));
    float *values = qr_alloc_array((size_t)*n, sizeof *values);
    qr_elements_to_f32(tensor->dtype, tensor->data, 0, *n, values);
    return values;
}

/* How far two BF16 numbers are apart, in steps of that format. */
static int bf16_steps(float a, float b) {
    const int x = qr_f32_to_bf16(a), y = qr_f32_to_bf16(b);
    const int ordered_x = x & 0x8000 ? 0x8000 - x : x, ordered_y = y & 0x8000 ? 0x8000 - y : y;
    return abs(ordered_x - ordered_y);
}

typedef struct comparison {
    double largest_difference, largest_value;
    int64_t n, n_unequal;
    int most_steps;
} comparison;

/* The rows of `ours` that the golden holds. */
static void compare_rows(const qr_safetensors_tensor *ours, const qr_safetensors_tensor *golden, comparison *c) {
    int64_t n_ours, n_golden;
    float *a = to_f32(ours, &n_ours), *b = to_f32(golden, &n_golden);
    const int64_t n_rows = ours->dims[0], cols = ours->n_dims == 2 ? ours->dims[1] : 1;
    for (int64_t i = 0; i < golden->dims[0]; i++) {
        const int64_t row = ours->n_dims == 2 ? i * (n_rows - 1) / (N_GOLDEN_ROWS - 1) : i;
        for (int64_t j = 0; j < cols; j++) {
            const float x = a[row * cols + j], y = b[i * cols + j];
            c->largest_difference = fmax(c->largest_difference, fabs((double)x - (double)y));
            c->largest_value = fmax(c->largest_value, fabs((double)y));
            c->n++;
            c->n_unequal += bf16_steps(x, y) > 0;
            c->most_steps = bf16_steps(x, y) > c->most_steps ? bf16_steps(x, y) : c->most_steps;
        }
    }
    qr_free(a);
    qr_free(b);
}

/* All of a tensor, by its sums. */
static void compare_sums(const qr_safetensors_tensor *ours, const qr_json *changed) {
    int64_t n;
    float *values = to_f32(ours, &n);
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += (double)values[i];
        squares += (double)values[i] * (double)values[i];
    }
    const double size = sqrt(squares * (double)n);
    CHECK_MSG(fabs(sum - number_of(changed, "sum")) <= 1e-6 * size, "%s: sum %g", ours->name, sum);
    CHECK_MSG(fabs(squares / number_of(changed, "squares") - 1) <= 1e-6, "%s: squares %g", ours->name, squares);
    qr_free(values);
}

static bool is_changed(const qr_json *entry, const char *name) {
    for (const qr_json *item = qr_json_first(qr_json_get(entry, "changed")); item != NULL; item = item->next) {
        if (strcmp(text_of(item, "tensor"), name) == 0) { return true; }
    }
    return false;
}

/* What PEFT does not touch is as it was: its bytes, or its values in another type. */
static void check_kept(const qr_json *entry, const qr_safetensors *base, const qr_safetensors *merged, qr_dtype dtype) {
    for (size_t i = 0; i < qr_safetensors_count(merged); i++) {
        const qr_safetensors_tensor *tensor = qr_safetensors_get(merged, i);
        const qr_safetensors_tensor *old = qr_safetensors_find(base, tensor->name);
        CHECK_INT(tensor->dtype, dtype);
        if (is_changed(entry, tensor->name) || old == NULL || (QR_DTYPES_FLOAT & QR_DTYPE_BIT(old->dtype)) == 0) {
            continue;
        }
        int64_t n_old, n_new;
        float *a = to_f32(old, &n_old), *b = to_f32(tensor, &n_new);
        REQUIRE(n_old == n_new);
        int64_t n_unequal = 0;
        for (int64_t j = 0; j < n_old; j++) {
            const float expected = dtype == QR_DTYPE_F32 ? a[j] : qr_bf16_to_f32(qr_f32_to_bf16(a[j]));
            n_unequal += memcmp(&expected, &b[j], sizeof expected) != 0;
        }
        CHECK_MSG(n_unequal == 0, "%s has changed", tensor->name);
        qr_free(a);
        qr_free(b);
    }
}

static void check_golden_in(const qr_json *entry, qrun_quant quant, qr_dtype dtype) {
    const char *out = in_scratch("merged");
    qrun_merge_params params = params_for(fixture(text_of(entry, "base_folder")),
                                          fixture(text_of(entry, "adapter_folder")), out);
    params.dtype = quant;
    qrun_merge_result result = QRUN_MERGE_RESULT_INIT;
    qrun_error err = QRUN_ERROR_INIT;
    CHECK_MSG(qrun_merge_folder(context, &params, &result, &err) == QRUN_OK, "%s: %s", text_of(entry, "name"),
              err.message);
    qr_safetensors *merged = NULL, *base = NULL, *golden = NULL;
    CHECK_MSG(qr_safetensors_open(out, &merged, &err) == QRUN_OK, "%s", err.message);
    CHECK(qr_safetensors_open(params.path, &base, &err) == QRUN_OK);
    CHECK(qr_safetensors_open(fixture(text_of(entry, "values")), &golden, &err) == QRUN_OK);
    REQUIRE(merged != NULL && base != NULL && golden != NULL);
    for (const qr_json *item = qr_json_first(qr_json_get(entry, "changed")); item != NULL; item = item->next) {
        const char *name = text_of(item, "tensor");
        char golden_name[PATH_BYTES];
        snprintf(golden_name, sizeof golden_name, "%s.%s", name, dtype == QR_DTYPE_F32 ? "f32" : "bf16");
        const qr_safetensors_tensor *ours = qr_safetensors_find(merged, name);
        const qr_safetensors_tensor *theirs = qr_safetensors_find(golden, golden_name);
        CHECK_MSG(ours != NULL && theirs != NULL, "%s: %s is not there", text_of(entry, "name"), name);
        if (ours == NULL || theirs == NULL) { continue; }
        comparison c = {0};
        compare_rows(ours, theirs, &c);
        if (dtype == QR_DTYPE_F32) {
            compare_sums(ours, item);
            CHECK_MSG(c.largest_difference <= 1e-6 * c.largest_value, "%s: %s: %g of %g", text_of(entry, "name"), name,
                      c.largest_difference, c.largest_value);
        } else { /* sums that differ in their last bits may round differently: to the neighbour, and seldom */
            CHECK_MSG(c.most_steps <= 1 && c.n_unequal <= 1 + c.n / 200,"%s: %s: %lld of %lld differ, by up to %d steps",
                      text_of(entry, "name"), name, (long long)c.n_unequal, (long long)c.n, c.most_steps);
        }
    }
    check_kept(entry, base, merged, dtype);
    CHECK_INT(result.n_tensors, qr_safetensors_count(merged));
    qr_safetensors_close(merged);
    qr_safetensors_close(base);
    qr_safetensors_close(golden);
    CHECK(qr_folder_remove_flat(out, NULL) == QRUN_OK);
    CHECK_INT(count_entries(scratch), 0);
}

static qr_json *read_index(void) {
    qr_json *index = NULL;
    qr_error err = {0};
    CHECK_MSG(qr_json_read(FIXTURES "merge/index.json", 1 << 24, &index, &err) == QRUN_OK, "%s", err.message);
    return index;
}

static void test_as_peft_merges(void) {
    qr_json *index = read_index();
    int n = 0;
    for (const qr_json *entry = qr_json_first(qr_json_get(index, "merges")); entry != NULL; entry = entry->next, n++) {
        check_golden_in(entry, QRUN_QUANT_F32, QR_DTYPE_F32);
        check_golden_in(entry, QRUN_QUANT_BF16, QR_DTYPE_BF16);
    }
    CHECK(n >= 16);
    qr_json_free(index);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    qrun_error error = QRUN_ERROR_INIT;
    if (mkdtemp(scratch) == NULL || qrun_context_create(NULL, &context, &error) != QRUN_OK) {
        printf("cannot begin: %s\n", error.message);
        return 1;
    }
    CHECK_RUN(test_as_peft_merges);
    qrun_context_destroy(context);
    rmdir(scratch);
    return check_end();
}
