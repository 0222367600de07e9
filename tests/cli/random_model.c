/* random_model FOLDER: writes model.safetensors there, of tensors with random values, the same every time. A line on
 * stdin is a tensor: its name, mean and deviation of its values in BF16, its dimensions. With "bytes" after the name it
 * is of bytes, and the two numbers are the least and the largest. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "base/random.h"
#include "loaders/files/safetensors_writer.h"

enum { MAX_TENSORS = 1024, NAME_BYTES = 128 };

static qr_safetensors_spec specs[MAX_TENSORS];
static char names[MAX_TENSORS][NAME_BYTES];
static double means[MAX_TENSORS], deviations[MAX_TENSORS]; /* or the least and the largest */
static size_t n_specs;

static bool add_line(char *line) {
    qr_safetensors_spec *spec = &specs[n_specs];
    char *name = names[n_specs];
    double *first = &means[n_specs], *second = &deviations[n_specs];
    int at = 0;
    if (n_specs == MAX_TENSORS) { return false; }
    const bool is_bytes = sscanf(line, "%127s bytes %lf %lf%n", name, first, second, &at) == 3;
    if (!is_bytes && sscanf(line, "%127s %lf %lf%n", name, first, second, &at) != 3) { return false; }
    *spec = (qr_safetensors_spec){.name = name, .dtype = is_bytes ? QR_DTYPE_U8 : QR_DTYPE_BF16};
    for (char *end; spec->n_dims < QR_MAX_DIMS; line = end) {
        const int64_t dim = strtoll(spec->n_dims == 0 ? line + at : line, &end, 10);
        if (dim < 1) { break; }
        spec->dims[spec->n_dims++] = dim;
    }
    n_specs++;
    return spec->n_dims > 0;
}

static void fill(size_t of, size_t n, void *values) {
    for (size_t i = 0; i < n; i++) {
        if (specs[of].dtype == QR_DTYPE_U8) {
            const double width = deviations[of] - means[of] + 1.0;
            ((uint8_t *)values)[i] = (uint8_t)(means[of] + width * qr_random_uniform(1, of, i));
        } else {
            const double value = means[of] + deviations[of] * qr_random_normal(1, of, i);
            ((uint16_t *)values)[i] = qr_f32_to_bf16((float)value);
        }
    }
}

static bool write_tensor(qr_safetensors_writer *writer, const qr_safetensors_spec *spec, qr_error *err) {
    const size_t element = qr_dtype_bytes(spec->dtype);
    size_t n = 1;
    for (int d = 0; d < spec->n_dims; d++) { n *= (size_t)spec->dims[d]; }
    void *values = malloc(n * element);
    if (values == NULL) { return qr_fail_memory(err, spec->name, n * element) == QRUN_OK; }
    fill((size_t)(spec - specs), n, values);
    const bool ok = qr_safetensors_writer_write(writer, values, n * element, err) == QRUN_OK;
    free(values);
    return ok;
}

static bool write_model(const char *folder, qr_error *err) {
    qr_safetensors_writer *writer = NULL;
    if (qr_safetensors_writer_create(folder, "model", specs, n_specs, 0, &writer, err) != QRUN_OK) { return false; }
    for (const qr_safetensors_spec *spec; (spec = qr_safetensors_writer_next(writer)) != NULL;) {
        if (!write_tensor(writer, spec, err)) {
            qr_safetensors_writer_abort(writer);
            return false;
        }
    }
    return qr_safetensors_writer_commit(writer, err) == QRUN_OK;
}

int main(int argc, char **argv) {
    qr_error err = {0};
    char line[512];
    if (argc != 2) {
        fprintf(stderr, "usage: random_model FOLDER <TENSORS\n");
        return 2;
    }
    while (fgets(line, sizeof line, stdin) != NULL) {
        if (add_line(line)) { continue; }
        fprintf(stderr, "random_model: line %zu is no tensor: %s", n_specs + 1, line);
        return 2;
    }
    if (write_model(argv[1], &err)) { return 0; }
    fprintf(stderr, "random_model: %s\n", err.message);
    return 1;
}
