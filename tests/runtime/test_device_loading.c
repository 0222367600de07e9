/* A model loaded onto a device, which quantises it itself, has the weights that the processor would have given it: of
 * every format, from every type of source, transposed and random ones, and where there was no room to do so. The device
 * is that of tests/simt. */
#include "check_open.h"

#include "base/alloc.h"
#include "runtime/model/model.h"

static qrun_context *processor, *device;

static qrun_model *open_model(qrun_context *context, const char *folder, qrun_quant quant, bool random) {
    char path[512];
    qrun_model_params params = QRUN_MODEL_PARAMS_INIT;
    snprintf(path, sizeof path, QRUN_SOURCE_DIR "/tests/fixtures/models/%s", folder);
    params.path = path, params.quant = quant, params.random_weights = random, params.quant_head_int8 = random;
    params.quant_embedding_int8 = random;
    return check_open_model(context, &params);
}

/* Codes, then whatever scales the format has. */
static unsigned char *read_weight(qr_backend *backend, const qr_weight *weight, size_t *n_bytes) {
    const qr_weight_desc *desc = &weight->desc;
    const size_t n_codes = qr_weight_code_bytes(desc), n_blocks = (size_t)qr_weight_blocks(desc);
    const size_t n_scales = ((size_t)desc->rows + 3 * n_blocks + 3) * sizeof(float);
    unsigned char *bytes = qr_alloc_zeroed(n_codes + n_scales);
    float *rows = qr_alloc_array_zeroed((size_t)desc->rows + n_blocks, sizeof(float));
    float *nested = qr_alloc_array_zeroed(n_blocks + 1, sizeof(float));
    uint8_t *absmax_codes = qr_alloc_zeroed(n_blocks + 1);
    const bool int8 = desc->format == QR_WEIGHT_INT8, nf4 = desc->format == QR_WEIGHT_NF4;
    const bool dq = desc->format == QR_WEIGHT_NF4_DQ;
    CHECK(backend->weight_get_rows(backend, weight, 0, desc->rows, bytes, NULL) == QRUN_OK);
    CHECK(backend->weight_get_scales(backend, weight, int8 ? rows : NULL, nf4 ? rows : NULL, dq ? absmax_codes : NULL,
                                     dq ? nested : NULL, NULL) == QRUN_OK);
    unsigned char *at = bytes + n_codes;
    if (int8 || nf4) { memcpy(at, rows, (int8 ? (size_t)desc->rows : n_blocks) * sizeof(float)); }
    if (dq) {
        memcpy(at, absmax_codes, n_blocks);
        memcpy(at + n_blocks, nested, (n_blocks + 255) / 256 * sizeof(float));
        memcpy(at + 3 * n_blocks * sizeof(float), &weight->nested_offset, sizeof(float));
    }
    qr_free(rows);
    qr_free(nested);
    qr_free(absmax_codes);
    *n_bytes = n_codes + n_scales;
    return bytes;
}

static void check_weight(const qr_weight *a, const qr_weight *b, const char *what) {
    size_t n_a = 0, n_b = 0;
    if (a->desc.rows == 0) { return; }
    unsigned char *of_a = read_weight(processor->backend, a, &n_a), *of_b = read_weight(device->backend, b, &n_b);
    CHECK_MSG(n_a == n_b && memcmp(of_a, of_b, n_a) == 0, "%s: other weights", what);
    qr_free(of_a);
    qr_free(of_b);
}

typedef struct list {
    const qr_weight *weights[256];
    int n;
} list;

static qrun_status add_linear(void *arg, qr_linear_layer *linear, int64_t layer, qr_tensor_role role, qr_error *err) {
    (void)layer, (void)role, (void)err;
    list *l = arg;
    l->weights[l->n++] = &linear->weight;
    return QRUN_OK;
}

static list weights_of(qrun_model *model) {
    list l = {.n = 0};
    (void)qr_model_each_linear(model, add_linear, &l, NULL);
    l.weights[l.n++] = &model->embedding;
    l.weights[l.n++] = &model->position_embedding;
    l.weights[l.n++] = &model->head;
    return l;
}

static void check_model(const char *folder, qrun_quant quant, bool random) {
    char what[128];
    qrun_model *a = open_model(processor, folder, quant, random), *b = open_model(device, folder, quant, random);
    if (a != NULL && b != NULL) {
        const list of_a = weights_of(a), of_b = weights_of(b);
        CHECK_INT(of_a.n, of_b.n);
        for (int i = 0; i < of_a.n; i++) {
            snprintf(what, sizeof what, "%s, quant %d, matrix %d", folder, (int)quant, i);
            check_weight(of_a.weights[i], of_b.weights[i], what);
        }
    }
    qrun_model_destroy(a);
    qrun_model_destroy(b);
}

static void check_models(void) {
    static const qrun_quant quants[] = {QRUN_QUANT_NF4_DQ, QRUN_QUANT_NF4, QRUN_QUANT_INT8,
                                        QRUN_QUANT_BF16,   QRUN_QUANT_F32, QRUN_QUANT_F16};
    for (size_t i = 0; i < sizeof quants / sizeof quants[0]; i++) {
        check_model("llama", quants[i], false);
        check_model("gpt2", quants[i], false); /* transposed */
        check_model("gemma2", quants[i], true);
    }
    check_model("llama-int8", QRUN_QUANT_AUTO, false);
    check_model("llama-nf4", QRUN_QUANT_AUTO, false);
    check_model("llama-nf4-dq", QRUN_QUANT_AUTO, false);
}

static void test_weights_are_those_of_the_processor(void) {
    device = check_open_context("cuda", 3);
    REQUIRE(device != NULL);
    check_models();
    qrun_context_destroy(device);
}

/* A device with room for the weights and nothing else. A real GPU has more. */
static void test_without_room_for_staging(void) {
    CHECK(setenv("QRUN_SIMT_MEMORY", "540000", 1) == 0);
    device = check_open_context("cuda", 3);
    REQUIRE(device != NULL);
    if (strcmp(device->backend->isa, "simt") != 0) {
        qrun_context_destroy(device);
        check_skip("the memory of this GPU cannot be limited");
        return;
    }
    CHECK_INT(device->backend->loading_begin(device->backend, NULL), QRUN_OK);
    CHECK(!device->backend->takes_sources);
    device->backend->loading_end(device->backend);
    check_model("llama", QRUN_QUANT_NF4_DQ, false);
    check_model("llama", QRUN_QUANT_INT8, false);
    qrun_context_destroy(device);
    CHECK(unsetenv("QRUN_SIMT_MEMORY") == 0);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    check_state.case_name = "main";
    if (getenv("QRUN_CUDA_LIBRARY") == NULL) {
        printf("skipped: QRUN_CUDA_LIBRARY does not name the library of tests/simt\n");
        return 77;
    }
    processor = check_open_context("cpu", 3);
    CHECK_RUN(test_weights_are_those_of_the_processor);
    CHECK_RUN(test_without_room_for_staging);
    qrun_context_destroy(processor);
    return check_end();
}
