/* Adapters merged into their models: equal to what PEFT's merge_and_unload makes of them, in memory of about one
 * tensor, and whole or not there at all. */
#include "check.h"

#include "base/alloc.h"
#include "base/file.h"
#include "base/half.h"
#include "base/sizes.h"
#include "folder_writing.h"
#include "golden_index.h"
#include "loaders/adapter/adapter_writer.h"
#include "loaders/files/safetensors.h"
#include "progress_check.h"
#include "runtime/model/model.h"

#define EXAMPLE QRUN_SOURCE_DIR "/examples/model"

enum { PATH_BYTES = SCRATCH_PATH_BYTES };

static qrun_context *context;

/* ---- Folders ----------------------------------------------------------------------------------------------------- */

static const char *fixture(const char *name) {
    static char paths[16][PATH_BYTES];
    static int next;
    char *path = paths[next++ % 16];
    snprintf(path, PATH_BYTES, FIXTURES "%s", name);
    return path;
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

/* The rows of `ours` that the golden holds: from the first to the last. Of a stack they are whole matrices. */
static void compare_rows(const qr_safetensors_tensor *ours, const qr_safetensors_tensor *golden, comparison *c) {
    int64_t n_ours, n_golden;
    float *a = to_f32(ours, &n_ours), *b = to_f32(golden, &n_golden);
    const int64_t n_rows = ours->dims[0], cols = n_ours / n_rows, n_kept = golden->dims[0];
    CHECK_INT(n_golden, n_kept * cols);
    for (int64_t i = 0; i < n_kept; i++) {
        const int64_t row = i * (n_rows - 1) / qr_max(n_kept - 1, 1);
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
    qrun_merge_params params =
        params_for(fixture(text_of(entry, "base_folder")), fixture(text_of(entry, "adapter_folder")), out);
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
        const qr_json *dim = qr_json_first(qr_json_get(item, "shape"));
        for (int i = 0; i < ours->n_dims; i++, dim = dim != NULL ? dim->next : NULL) {
            CHECK_MSG(dim != NULL && ours->dims[i] == (int64_t)dim->valuedouble, "%s: of another shape", name);
        }
        CHECK_MSG(dim == NULL, "%s: of another shape", name);
        comparison c = {0};
        compare_rows(ours, theirs, &c);
        if (dtype == QR_DTYPE_F32) {
            compare_sums(ours, item);
            CHECK_MSG(c.largest_difference <= 1e-6 * c.largest_value, "%s: %s: %g of %g", text_of(entry, "name"), name,
                      c.largest_difference, c.largest_value);
        } else { /* sums that differ in their last bits may round differently: to the neighbour, and seldom */
            CHECK_MSG(c.most_steps <= 1 && c.n_unequal <= 1 + c.n / 200,
                      "%s: %s: %lld of %lld differ, by up to %d steps", text_of(entry, "name"), name,
                      (long long)c.n_unequal, (long long)c.n, c.most_steps);
        }
    }
    check_kept(entry, base, merged, dtype);
    CHECK_INT(result.n_tensors, qr_safetensors_count(merged));
    qr_safetensors_close(merged);
    qr_safetensors_close(base);
    qr_safetensors_close(golden);
    CHECK(scratch_remove(out));
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

/* ---- What the folder says ---------------------------------------------------------------------------------------- */

static qrun_status merge(const char *model, const char *adapter, const char *out, qrun_error *error) {
    const qrun_merge_params params = params_for(model, adapter, out);
    return qrun_merge_folder(context, &params, NULL, error);
}

static void test_a_quantised_folder_becomes_a_plain_one(void) {
    static const char *const bases[] = {"models/llama-nf4", "models/llama-int8"};
    for (size_t i = 0; i < QR_COUNT_OF(bases); i++) {
        const char *out = in_scratch("plain");
        qrun_error err = QRUN_ERROR_INIT;
        qr_json *config = NULL;
        const char *type = "";
        qr_safetensors *merged = NULL, *original = NULL;
        REQUIRE(merge(fixture(bases[i]), fixture("adapters/llama-lora"), out, &err) == QRUN_OK);
        REQUIRE(qr_json_read(in_scratch("plain/config.json"), 1 << 20, &config, &err) == QRUN_OK);
        CHECK(qr_json_get(config, "quantization_config") == NULL);
        CHECK(qr_json_get_string(config, "dtype", &type, "", &err) == QRUN_OK);
        CHECK_STR(type, "bfloat16");
        qr_json_free(config);
        REQUIRE(qr_safetensors_open(out, &merged, &err) == QRUN_OK);
        REQUIRE(qr_safetensors_open(fixture("models/llama"), &original, &err) == QRUN_OK);
        CHECK_INT(qr_safetensors_count(merged), qr_safetensors_count(original));
        for (size_t t = 0; t < qr_safetensors_count(original); t++) {
            const qr_safetensors_tensor *old = qr_safetensors_get(original, t);
            const qr_safetensors_tensor *ours = qr_safetensors_find(merged, old->name);
            CHECK_MSG(ours != NULL && ours->n_bytes == old->n_bytes, "%s", old->name);
        }
        qr_safetensors_close(merged);
        qr_safetensors_close(original);
        CHECK(scratch_remove(out));
    }
}

static void test_a_head_that_was_tied(void) {
    const char *out = in_scratch("untied");
    qrun_merge_params params =
        params_for(fixture("models/llama-llama3"), fixture("merge/adapters/llama3-saved-head"), out);
    qrun_merge_result result = QRUN_MERGE_RESULT_INIT;
    qrun_error err = QRUN_ERROR_INIT;
    qr_json *config = NULL;
    bool tied = true;
    REQUIRE(qrun_merge_folder(context, &params, &result, &err) == QRUN_OK);
    CHECK(result.head_untied);
    CHECK_INT(result.n_merged, 2);
    CHECK_INT(result.n_replaced, 1);
    REQUIRE(qr_json_read(in_scratch("untied/config.json"), 1 << 20, &config, &err) == QRUN_OK);
    CHECK(qr_json_get_bool(config, "tie_word_embeddings", &tied, "", &err) == QRUN_OK && !tied);
    qr_json_free(config);
    qrun_model *model = NULL;
    qrun_model_params model_params = QRUN_MODEL_PARAMS_INIT;
    model_params.path = out;
    CHECK_MSG(qrun_model_open(context, &model_params, &model, &err) == QRUN_OK, "%s", err.message);
    qrun_model_destroy(model);
    CHECK(scratch_remove(out));
}

/* LoRA on the embedding of a tied model, whose own weights the adapter has too: the head has these, and no LoRA, as
 * where the adapter is used unmerged. PEFT's merge_and_unload keeps them tied: there the head has the LoRA too. */
static void test_lora_on_a_tied_embedding(void) {
    static const char *const base_name = "base_model.model.model.embed_tokens.base_layer.weight";
    const char *out = in_scratch("kept-table"), *adapter = fixture("merge/adapters/gemma3-kept-table");
    qrun_merge_params params = params_for(fixture("models/gemma3"), adapter, out);
    qrun_merge_result result = QRUN_MERGE_RESULT_INIT;
    qrun_error err = QRUN_ERROR_INIT;
    qr_safetensors *merged = NULL, *file = NULL;
    char path[PATH_BYTES];
    params.dtype = QRUN_QUANT_F32;
    REQUIRE(qrun_merge_folder(context, &params, &result, &err) == QRUN_OK);
    CHECK(result.head_untied);
    CHECK_INT(result.n_replaced, 0);
    (void)snprintf(path, sizeof path, "%s/adapter_model.safetensors", adapter);
    REQUIRE(qr_safetensors_open(path, &file, &err) == QRUN_OK);
    REQUIRE(qr_safetensors_open(in_scratch("kept-table/model.safetensors"), &merged, &err) == QRUN_OK);
    const qr_safetensors_tensor *base = qr_safetensors_find(file, base_name);
    const qr_safetensors_tensor *head = qr_safetensors_find(merged, "lm_head.weight");
    const qr_safetensors_tensor *embedding = qr_safetensors_find(merged, "model.embed_tokens.weight");
    REQUIRE(base != NULL && head != NULL && embedding != NULL);
    CHECK(base->n_bytes == head->n_bytes && memcmp(base->data, head->data, base->n_bytes) == 0);
    CHECK(base->n_bytes == embedding->n_bytes && memcmp(base->data, embedding->data, base->n_bytes) != 0);
    qr_safetensors_close(merged);
    qr_safetensors_close(file);
    CHECK(scratch_remove(out));
}

static qrun_status read_tenths(void *user, size_t i, bool is_b, float *values, qr_error *err) {
    (void)i, (void)is_b, (void)err;
    for (int64_t j = 0; j < *(const int64_t *)user; j++) { values[j] = 0.1F; }
    return QRUN_OK;
}

/* GPT-2's base model has a prefix in the checkpoint, and the head that is new stands outside of it. */
static void test_a_tied_head_beside_a_prefix(void) {
    enum { VOCAB = 1003, WIDTH = 40 };
    static const char *const targets[] = {"attn.c_proj"}, *const saved[] = {"lm_head"};
    const char *adapter = in_scratch("adapter"), *out = in_scratch("gpt2");
    const qr_adapter_factor_spec factor = {.module = "transformer.h.0.attn.c_proj", .in = WIDTH, .out = WIDTH};
    float *values = qr_alloc_array_zeroed((size_t)VOCAB * WIDTH, sizeof *values);
    const qr_adapter_parameter_spec head = {
        .name = "lm_head.weight", .n_dims = 2, .dims = {VOCAB, WIDTH}, .values = values};
    int64_t n = WIDTH;
    const qr_adapter_spec spec = {.base_model = "x",
                                  .targets = targets,
                                  .n_targets = 1,
                                  .rank = 1,
                                  .alpha = 1,
                                  .fan_in_fan_out = true,
                                  .factors = &factor,
                                  .n_factors = 1,
                                  .read = read_tenths,
                                  .user = &n,
                                  .parameters = &head,
                                  .n_parameters = 1,
                                  .modules_to_save = saved,
                                  .n_modules_to_save = 1};
    qrun_error err = QRUN_ERROR_INIT;
    values[0] = 1.0F;
    CHECK(qr_folder_create(adapter, NULL) == QRUN_OK);
    CHECK_MSG(qr_adapter_write(adapter, &spec, &err) == QRUN_OK, "%s", err.message);
    CHECK_MSG(merge(fixture("models/gpt2"), adapter, out, &err) == QRUN_OK, "%s", err.message);
    qrun_model *model = NULL;
    qrun_model_params params = QRUN_MODEL_PARAMS_INIT;
    params.path = out;
    CHECK_MSG(qrun_model_open(context, &params, &model, &err) == QRUN_OK, "%s", err.message);
    CHECK(model != NULL && !model->shape.tied_head);
    qrun_model_destroy(model);
    qr_free(values);
    CHECK(scratch_remove(adapter));
    CHECK(scratch_remove(out));
}

static void test_shards(void) {
    const char *out = in_scratch("shards");
    qrun_error err = QRUN_ERROR_INIT;
    qrun_merge_params params = params_for(fixture("models/llama"), fixture("adapters/llama-lora"), out);
    params.max_shard_bytes = 100000;
    REQUIRE(qrun_merge_folder(context, &params, NULL, &err) == QRUN_OK);
    CHECK(qr_file_exists(in_scratch("shards/model.safetensors.index.json")));
    CHECK(!qr_file_exists(in_scratch("shards/model.safetensors")));
    qr_safetensors *merged = NULL;
    CHECK_MSG(qr_safetensors_open(out, &merged, &err) == QRUN_OK, "%s", err.message);
    qr_safetensors_close(merged);
    CHECK(scratch_remove(out));
}

/* ---- The outputs ------------------------------------------------------------------------------------------------- */

static void check_outputs_onto(const char *base, const char *adapter, qrun_merge_onto onto, qrun_quant dtype,
                               double most) {
    const char *out = in_scratch("outputs");
    qrun_error err = QRUN_ERROR_INIT;
    qrun_merge_params params = params_for(fixture(base), fixture(adapter), out);
    qrun_merge_result result = QRUN_MERGE_RESULT_INIT;
    params.dtype = dtype;
    params.onto = onto;
    CHECK_MSG(qrun_merge_folder(context, &params, &result, &err) == QRUN_OK, "%s", err.message);
    qrun_model_params unmerged = QRUN_MODEL_PARAMS_INIT, merged = QRUN_MODEL_PARAMS_INIT;
    unmerged.path = params.path;
    unmerged.quant = result.base_quant;
    merged.path = out;
    merged.quant = result.dtype;
    unmerged.dtype = merged.dtype = QRUN_DTYPE_F32;
    qrun_compare_params compare = QRUN_COMPARE_PARAMS_INIT;
    compare.model = &unmerged;
    compare.adapter = params.adapter;
    compare.other = &merged;
    compare.max_tokens = 60;
    qrun_difference d = QRUN_DIFFERENCE_INIT;
    CHECK_MSG(qrun_compare_outputs(context, &compare, &d, &err) == QRUN_OK, "%s", err.message);
    CHECK_INT(d.n_tokens, 60);
    CHECK_MSG(d.max_logit_difference <= most * d.max_abs_logit, "%s, %s: %g of %g", base, adapter,
              d.max_logit_difference, d.max_abs_logit);
    CHECK(d.mean_logit_difference > 0 && d.mean_logit_difference < d.max_logit_difference);
    CHECK(d.mean_kl <= d.max_kl && d.n_same_greedy >= 57);
    /* Without the adapter the two are far apart: the comparison sees what it is for. */
    compare.adapter = NULL;
    CHECK(qrun_compare_outputs(context, &compare, &d, &err) == QRUN_OK);
    CHECK_MSG(d.max_logit_difference > 0.1 * d.max_abs_logit, "%s: the adapter changes nothing", base);
    CHECK(d.mean_kl > 1e-2);
    CHECK(scratch_remove(out));
}

static void check_outputs(const char *base, const char *adapter, qrun_quant dtype, double most) {
    check_outputs_onto(base, adapter, QRUN_MERGE_AUTO, dtype, most);
}

/* Experts do not change, unless they are merged onto what quantising leaves of them. */
static void test_outputs_of_experts(void) {
    const char *adapter = "training/adapters/qwen3-moe", *stacked = "training/adapters/qwen3-moe-stacked";
    check_outputs("models/qwen3-moe", adapter, QRUN_QUANT_F32, 1e-5);
    check_outputs_onto("models/qwen3-moe", adapter, QRUN_MERGE_QUANTIZED, QRUN_QUANT_F32, 1e-5);
    check_outputs("models/qwen3-moe-stacked", stacked, QRUN_QUANT_F32, 1e-5);
    check_outputs("models/gpt-oss-full", "training/adapters/gpt-oss-full", QRUN_QUANT_F32, 1e-5);
    check_outputs_onto("models/qwen3-moe-stacked", stacked, QRUN_MERGE_QUANTIZED, QRUN_QUANT_F32, 1e-5);
    check_outputs("models/gpt-oss-wide", "adapters/gpt-oss-experts", QRUN_QUANT_F32, 1e-5);
    check_outputs("models/gpt-oss-mxfp4", "adapters/gpt-oss-experts", QRUN_QUANT_F32, 1e-5);
    check_outputs("models/gpt-oss-mxfp4", "merge/adapters/gpt-oss-attention", QRUN_QUANT_F32, 1e-5);
    check_outputs("models/gpt-oss-mxfp4", "merge/adapters/gpt-oss-attention", QRUN_QUANT_AUTO, 5e-2);
}

/* What is written of experts in MXFP4: themselves, or matrices of the type of the rest. */
static void check_experts(const char *adapter, qrun_quant dtype, bool stay, qrun_quant says) {
    const char *out = in_scratch("experts");
    qrun_error err = QRUN_ERROR_INIT;
    qrun_merge_params params = params_for(fixture("models/gpt-oss-mxfp4"), fixture(adapter), out);
    qrun_merge_result result = QRUN_MERGE_RESULT_INIT;
    params.dtype = dtype;
    CHECK_MSG(qrun_merge_folder(context, &params, &result, &err) == QRUN_OK, "%s", err.message);
    CHECK_INT(result.expert_quant, says);
    CHECK_INT(result.base_quant, QRUN_QUANT_MXFP4);
    qr_safetensors *merged = NULL, *base = NULL;
    REQUIRE(qr_safetensors_open(out, &merged, &err) == QRUN_OK &&
            qr_safetensors_open(params.path, &base, &err) == QRUN_OK);
    CHECK_INT(result.n_tensors, qr_safetensors_count(merged));
    int n_kept = 0, n_packed = 0;
    for (size_t i = 0; i < qr_safetensors_count(base); i++) {
        const qr_safetensors_tensor *old = qr_safetensors_get(base, i);
        if (strstr(old->name, "_blocks") == NULL && strstr(old->name, "_scales") == NULL) { continue; }
        const qr_safetensors_tensor *found = qr_safetensors_find(merged, old->name);
        n_packed++;
        n_kept += found != NULL && found->n_bytes == old->n_bytes && memcmp(found->data, old->data, old->n_bytes) == 0;
        CHECK((found != NULL) == stay);
    }
    CHECK(n_packed == 8);
    CHECK_INT(n_kept, stay ? n_packed : 0);
    qr_json *config = NULL;
    REQUIRE(qr_json_read(in_scratch("experts/config.json"), 1 << 20, &config, &err) == QRUN_OK);
    CHECK((qr_json_get(config, "quantization_config") != NULL) == stay);
    CHECK(strcmp(text_of(config, "dtype"), says == QRUN_QUANT_F16 ? "float16" : "bfloat16") == 0);
    qr_json_free(config);
    qr_safetensors_close(merged);
    qr_safetensors_close(base);
    CHECK(scratch_remove(out));
}

static void test_experts_in_mxfp4(void) {
    check_experts("merge/adapters/gpt-oss-attention", QRUN_QUANT_AUTO, true, QRUN_QUANT_MXFP4);
    check_experts("merge/adapters/gpt-oss-attention", QRUN_QUANT_BF16, false, QRUN_QUANT_BF16);
    check_experts("adapters/gpt-oss-experts", QRUN_QUANT_AUTO, false, QRUN_QUANT_BF16);
    check_experts("adapters/gpt-oss-experts", QRUN_QUANT_F16, false, QRUN_QUANT_F16);
    qrun_error error = QRUN_ERROR_INIT;
    qrun_merge_params params =
        params_for(fixture("models/gpt-oss-mxfp4"), fixture("adapters/gpt-oss-experts"), in_scratch("refused"));
    params.onto = QRUN_MERGE_QUANTIZED;
    CHECK_INT(qrun_merge_folder(context, &params, NULL, &error), QRUN_ERROR_ARGUMENT);
    CHECK_MSG(strstr(error.message, "leave `onto` out") != NULL, "%s", error.message);
    CHECK_INT(count_entries(scratch), 0);
}

static void test_outputs_are_those_of_the_unmerged_adapter(void) {
    check_outputs("models/llama", "adapters/llama-lora", QRUN_QUANT_F32, 1e-5);
    check_outputs("models/llama", "adapters/llama-patterns", QRUN_QUANT_F32, 1e-5);
    check_outputs("models/llama-nf4-dq", "adapters/llama-lora", QRUN_QUANT_F32, 1e-5);
    check_outputs("models/llama-int8", "adapters/llama-lora", QRUN_QUANT_F32, 1e-5);
    check_outputs("models/gpt2", "adapters/gpt2-lora", QRUN_QUANT_F32, 1e-5);
    check_outputs("models/gpt2-nf4", "adapters/gpt2-lora", QRUN_QUANT_F32, 1e-5);
    check_outputs("models/phi3", "merge/adapters/phi3-lora", QRUN_QUANT_F32, 1e-5);
    check_outputs("models/llama", "adapters/llama-lora", QRUN_QUANT_BF16, 5e-2);
    check_outputs("models/llama", "adapters/llama-lora", QRUN_QUANT_F16, 5e-3);
}

/* ---- Refusals and failures --------------------------------------------------------------------------------------- */

static void check_refused(const char *model, const char *adapter, qrun_status expected, const char *says) {
    qrun_error error = QRUN_ERROR_INIT;
    CHECK_INT(merge(model, adapter, in_scratch("refused"), &error), expected);
    CHECK_MSG(strstr(error.message, says) != NULL, "\"%s\" does not say \"%s\"", error.message, says);
    CHECK_INT(count_entries(scratch), 0);
}

static void test_refusals(void) {
    const char *llama = fixture("models/llama"), *lora = fixture("adapters/llama-lora");
    check_refused(fixture("models/gpt2"), lora, QRUN_ERROR_INPUT, "made for another model");
    check_refused(llama, fixture("adapters/qwen3-lora"), QRUN_ERROR_INPUT, "the adapter is made for [50, 100]");
    check_refused(llama, fixture("adapters/gpt2-lora"), QRUN_ERROR_INPUT, "adapts transformer.h.0");
    check_refused(llama, fixture("models/llama"), QRUN_ERROR_NOT_FOUND, "adapter_config.json");
    check_refused(fixture("models/gpt-oss-mxfp4"), lora, QRUN_ERROR_INPUT, "llama-lora");
    check_refused(fixture("models/llama-fp8"), lora, QRUN_ERROR_UNSUPPORTED, "is stored as fp8, which is read but");
    check_refused("no/such/model", lora, QRUN_ERROR_NOT_FOUND, "no/such/model");
    check_refused(llama, NULL, QRUN_ERROR_ARGUMENT, "no adapter");
    check_refused(NULL, lora, QRUN_ERROR_ARGUMENT, "no model path");
    qrun_merge_params params = params_for(fixture("models/llama-nf4"), lora, in_scratch("refused"));
    params.onto = QRUN_MERGE_ORIGINAL;
    qrun_error error = QRUN_ERROR_INIT;
    CHECK_INT(qrun_merge_folder(context, &params, NULL, &error), QRUN_ERROR_ARGUMENT);
    CHECK_MSG(strstr(error.message, "no original weights") != NULL, "%s", error.message);
    params = params_for(llama, lora, scratch);
    CHECK_INT(qrun_merge_folder(context, &params, NULL, &(qrun_error)QRUN_ERROR_INIT), QRUN_ERROR_ARGUMENT);
    params.out = in_scratch("none/out");
    CHECK_INT(qrun_merge_folder(context, &params, NULL, NULL), QRUN_ERROR_NOT_FOUND);
    params.out = in_scratch("out");
    params.dtype = QRUN_QUANT_INT8;
    CHECK_INT(qrun_merge_folder(context, &params, NULL, NULL), QRUN_ERROR_ARGUMENT);
    params.dtype = QRUN_QUANT_AUTO, params.onto = QRUN_MERGE_QUANTIZED, params.quant = QRUN_QUANT_BF16;
    CHECK_INT(qrun_merge_folder(context, &params, NULL, NULL), QRUN_ERROR_ARGUMENT);
    params.struct_size = 3;
    CHECK_INT(qrun_merge_folder(context, &params, NULL, NULL), QRUN_ERROR_ARGUMENT);
    CHECK_INT(count_entries(scratch), 0);
}

/* The llama fixture with one tensor under another name. */
static void make_damaged(const char *folder, const char *tensor) {
    char *text = NULL, *weights = NULL;
    size_t n_text = 0, n_weights = 0;
    REQUIRE(qr_file_read(FIXTURES "models/llama/config.json", 1 << 20, &text, &n_text, NULL) == QRUN_OK);
    REQUIRE(qr_file_read(FIXTURES "models/llama/model.safetensors", 1 << 24, &weights, &n_weights, NULL) == QRUN_OK);
    char *found = strstr(weights + 8, tensor); /* in the header, which is text */
    REQUIRE(found != NULL);
    found[0] = 'x';
    char path[PATH_BYTES];
    CHECK(qr_folder_create(folder, NULL) == QRUN_OK);
    snprintf(path, sizeof path, "%s/config.json", folder);
    CHECK(qr_file_write(path, text, n_text, NULL) == QRUN_OK);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    CHECK(qr_file_write(path, weights, n_weights, NULL) == QRUN_OK);
    qr_free(text);
    qr_free(weights);
}

static void test_missing_tensors_are_named(void) {
    static const char *const names[] = {"model.norm.weight", "model.layers.1.mlp.up_proj.weight", "lm_head.weight",
                                        "model.layers.0.input_layernorm.weight"};
    const char *folder = in_scratch("damaged"), *lora = fixture("adapters/llama-lora");
    for (size_t i = 0; i < QR_COUNT_OF(names); i++) {
        qrun_error error = QRUN_ERROR_INIT;
        make_damaged(folder, names[i]);
        CHECK_INT(merge(folder, lora, in_scratch("out"), &error), QRUN_ERROR_INPUT);
        CHECK_MSG(strstr(error.message, names[i]) != NULL, "%s: %s", names[i], error.message);
        CHECK(scratch_remove(folder));
        CHECK_INT(count_entries(scratch), 0);
    }
}

static void test_progress_and_cancelling(void) {
    progress whole = {0};
    qrun_merge_params params = params_for(fixture("models/gpt2-nf4"), fixture("adapters/gpt2-lora"), in_scratch("out"));
    params.progress = progress_follow;
    params.progress_user = &whole;
    CHECK(qrun_merge_folder(context, &params, NULL, NULL) == QRUN_OK);
    CHECK(whole.n_calls > 10);
    CHECK_INT(whole.last, whole.total);
    CHECK(scratch_remove(params.out));
    for (int at = 1; at <= whole.n_calls; at++) {
        progress stopped = {.stop_after = at};
        params.progress_user = &stopped;
        CHECK_INT(qrun_merge_folder(context, &params, NULL, NULL), QRUN_ERROR_CANCELLED);
        CHECK_INT(count_entries(scratch), 0);
    }
}

static qrun_status merge_llama(const char *out, qrun_error *error) {
    return merge(fixture("models/llama"), fixture("adapters/llama-lora"), out, error);
}

static qrun_status merge_gpt2(const char *out, qrun_error *error) {
    return merge(fixture("models/gpt2-nf4"), fixture("adapters/gpt2-lora"), out, error);
}

static void test_writing_fails(void) { check_full_disk(merge_llama); }
static void test_every_allocation_may_fail(void) { check_failing_allocations(merge_gpt2); }

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

enum { RANK = 4, HIDDEN = 192, MLP = 512, LAYERS = 4 };

static qrun_status read_ones(void *user, size_t i, bool is_b, float *values, qr_error *err) {
    (void)user, (void)i, (void)err;
    for (int64_t j = 0; j < RANK * (is_b ? MLP : HIDDEN); j++) { values[j] = 0.01F; }
    return QRUN_OK;
}

/* An adapter on the largest matrices of the shipped model. */
static bool write_adapter(const char *folder) {
    static const char *const targets[] = {"up_proj", "gate_proj"};
    qr_adapter_factor_spec factors[2 * LAYERS];
    char names[2 * LAYERS][64];
    for (int i = 0; i < 2 * LAYERS; i++) {
        snprintf(names[i], sizeof names[i], "model.layers.%d.mlp.%s", i / 2, targets[i % 2]);
        factors[i] = (qr_adapter_factor_spec){.module = names[i], .in = HIDDEN, .out = MLP};
    }
    const qr_adapter_spec spec = {.base_model = "x",
                                  .targets = targets,
                                  .n_targets = 2,
                                  .rank = RANK,
                                  .alpha = 8,
                                  .factors = factors,
                                  .n_factors = 2 * LAYERS,
                                  .read = read_ones};
    return qr_folder_create(folder, NULL) == QRUN_OK && qr_adapter_write(folder, &spec, NULL) == QRUN_OK;
}

/* One matrix in the type written, the writer's block, two pieces for conversion, and tables: never the model. */
static void test_memory_is_that_of_a_tensor(void) {
    const char *adapter = in_scratch("adapter"), *out = in_scratch("model");
    qr_alloc_stats before, after;
    qrun_error error = QRUN_ERROR_INIT;
    REQUIRE(write_adapter(adapter));
    static const struct {
        qrun_quant dtype;
        qrun_merge_onto onto;
    } ways[] = {{QRUN_QUANT_BF16, QRUN_MERGE_ORIGINAL},
                {QRUN_QUANT_F32, QRUN_MERGE_ORIGINAL},
                {QRUN_QUANT_F32, QRUN_MERGE_QUANTIZED}};
    for (size_t i = 0; i < QR_COUNT_OF(ways); i++) {
        qrun_merge_params params = params_for(EXAMPLE, adapter, out);
        qrun_merge_result result = QRUN_MERGE_RESULT_INIT;
        params.dtype = ways[i].dtype;
        params.onto = ways[i].onto;
        qr_alloc_get_stats(&before);
        qr_alloc_reset_peak();
        CHECK_MSG(qrun_merge_folder(context, &params, &result, &error) == QRUN_OK, "%s", error.message);
        qr_alloc_get_stats(&after);
        const int64_t element = ways[i].dtype == QRUN_QUANT_F32 ? 4 : 2, held = after.bytes_peak - before.bytes_held;
        const int64_t tensor = HIDDEN * MLP * element, fixed = (1 << 20) + 2 * (1 << 18) + (1 << 18);
        CHECK_MSG(held <= tensor + fixed, "%lld bytes for a tensor of %lld", (long long)held, (long long)tensor);
        CHECK(result.n_bytes > 2 * (tensor + fixed) || ways[i].dtype == QRUN_QUANT_BF16);
        CHECK(scratch_remove(out));
    }
    CHECK(scratch_remove(adapter));
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    qrun_error error = QRUN_ERROR_INIT;
    if (!scratch_begin() || qrun_context_create(NULL, &context, &error) != QRUN_OK) {
        printf("cannot begin: %s\n", error.message);
        return 1;
    }
    CHECK_RUN(test_as_peft_merges);
    CHECK_RUN(test_a_quantised_folder_becomes_a_plain_one);
    CHECK_RUN(test_a_head_that_was_tied);
    CHECK_RUN(test_lora_on_a_tied_embedding);
    CHECK_RUN(test_a_tied_head_beside_a_prefix);
    CHECK_RUN(test_shards);
    CHECK_RUN(test_outputs_are_those_of_the_unmerged_adapter);
    CHECK_RUN(test_outputs_of_experts);
    CHECK_RUN(test_experts_in_mxfp4);
    CHECK_RUN(test_refusals);
    CHECK_RUN(test_missing_tensors_are_named);
    CHECK_RUN(test_progress_and_cancelling);
    CHECK_RUN(test_writing_fails);
    CHECK_RUN(test_every_allocation_may_fail);
    CHECK_RUN(test_memory_is_that_of_a_tensor);
    qrun_context_destroy(context);
    scratch_end();
    return check_end();
}
