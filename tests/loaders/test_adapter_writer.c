/* Adapters written here are read back by the reader, and their config is as PEFT's own looks. */
#include "check.h"

#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "loaders/adapter.h"
#include "loaders/adapter_writer.h"

static const qr_adapter_factor_spec factors[] = {{"model.layers.0.self_attn.q_proj", 5, 7}, {"model.layers.0.mlp.up_proj", 5, 3}};
static const char *const targets[] = {"q_proj", "up_proj"};

static qrun_status read_factor(void *user, size_t i, bool is_b, float *values, qr_error *err) {
    (void)err;
    const int64_t n = 2 * (is_b ? factors[i].out : factors[i].in);
    for (int64_t j = 0; j < n; j++) { values[j] = (float)(100 * (int)i + 50 * is_b) + (float)j; }
    return *(bool *)user ? QRUN_OK : qr_fail(err, QRUN_ERROR_IO, "no");
}

static qrun_status write_adapter(const char *folder, bool works, qr_error *err) {
    const qr_adapter_spec spec = {.base_model = "a \"base\"", .targets = targets, .n_targets = 2, .rank = 2, .alpha = 16,
                                  .rslora = true, .factors = factors, .n_factors = 2, .read = read_factor, .user = &works};
    return qr_adapter_write(folder, &spec, err);
}

static void test_written_adapters_are_read_back(void) {
    char folder[] = "/tmp/qrun-test-XXXXXX";
    qr_error err = {0};
    qr_adapter *adapter;
    REQUIRE(mkdtemp(folder) != NULL);
    CHECK_MSG(write_adapter(folder, true, &err) == QRUN_OK, "%s", err.message);
    REQUIRE(qr_adapter_open(folder, &adapter, &err) == QRUN_OK);
    CHECK_INT(adapter->n_modules, 2);
    const qr_adapter_module *module = qr_adapter_find(adapter, "model.layers.0.mlp.up_proj");
    REQUIRE(module != NULL);
    CHECK(module->rank == 2 && module->in_features == 5 && module->out_features == 3);
    CHECK(fabs(module->scale - 16 / sqrt(2)) < 1e-12);
    float value;
    memcpy(&value, module->b->data + 4 * 5, sizeof value);
    CHECK(value == 155.0F);
    qr_adapter_close(adapter);
    qr_folder_remove_flat(folder);
    CHECK(!qr_file_exists(folder));
}

static void test_a_failure_leaves_no_config(void) {
    char folder[] = "/tmp/qrun-test-XXXXXX";
    qr_error err = {0};
    REQUIRE(mkdtemp(folder) != NULL);
    CHECK_INT(write_adapter(folder, false, &err), QRUN_ERROR_IO);
    CHECK(rmdir(folder) == 0);
    REQUIRE(mkdir(folder, 0700) == 0);
    for (int64_t n = 1;; n++) {
        qr_alloc_stats before, after;
        qr_alloc_get_stats(&before);
        qr_error_clear(&err);
        qr_alloc_fail_at(n);
        const qrun_status status = write_adapter(folder, true, &err);
        qr_alloc_fail_at(0);
        qr_alloc_get_stats(&after);
        CHECK_INT(after.n_held, before.n_held);
        if (status == QRUN_OK) { break; }
        CHECK_INT(status, QRUN_ERROR_MEMORY);
        REQUIRE(n < 1000);
    }
    qr_folder_remove_flat(folder);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    CHECK_RUN(test_written_adapters_are_read_back);
    CHECK_RUN(test_a_failure_leaves_no_config);
    return check_end();
}
