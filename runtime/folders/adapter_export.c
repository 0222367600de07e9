#include "runtime/folders/export.h"

#include "base/alloc.h"
#include "loaders/adapter/adapter_writer.h"
#include "runtime/model/expert_adapters.h"

enum { NAME_BYTES = 256 };

typedef struct export_job {
    const qr_parameters *parameters;
    char *names; /* [n_pairs + n_whole][NAME_BYTES] */
    qr_adapter_factor_spec *factors;
    qr_adapter_parameter_spec *whole; /* parameters trained whole */
    int64_t *layers;                  /* [n_layers] with LoRA; NULL: all are meant */
    size_t n_layers;
} export_job;

/* ---- Values ------------------------------------------------------------------------------------------------------ */

static qrun_status read_floats(const qr_parameters *p, int64_t offset, int64_t n, float *values, qr_error *err) {
    qr_backend *backend = p->model->context->backend;
    return backend->copy_out(backend, values, p->values + offset, (size_t)n * sizeof *values, err);
}

static qrun_status read_factor(void *user, size_t i, bool is_b, float *values, qr_error *err) {
    const qr_parameters *p = user;
    const qr_lora_pair *pair = &p->lora.pairs[i];
    const int64_t n = is_b ? qr_lora_pair_b_floats(p, pair) : qr_lora_pair_a_floats(p, pair);
    if (!is_b || pair->n_experts == 1) {
        return read_floats(p, is_b ? pair->b_offset : pair->a_offset, n, values, err);
    }
    float *b = qr_alloc_array((size_t)n, sizeof *b);
    if (b == NULL) { return qr_fail_memory(err, "an adapter", (size_t)n * sizeof *b); }
    const qrun_status status = read_floats(p, pair->b_offset, n, b, err);
    if (status == QRUN_OK) {
        const int64_t turns = qr_expert_pair_turns(p->model, pair->role);
        qr_expert_b_to_file(b, pair->n_experts, pair->out, p->lora.rank, turns, values);
    }
    qr_free(b);
    return status;
}

static qrun_status read_magnitude(void *user, size_t i, float *values, qr_error *err) {
    const qr_parameters *p = user;
    return read_floats(p, p->lora.pairs[i].magnitude_offset, p->lora.pairs[i].out, values, err);
}

static const qr_parameter *whole_parameter(const qr_parameters *p, size_t i) {
    return &p->list[p->whole.tensors[i].parameter];
}

static qrun_status read_whole(void *user, size_t i, int64_t first, int64_t n, float *values, qr_error *err) {
    const qr_parameters *p = user;
    return qr_parameter_read(p, whole_parameter(p, i), first, n, values, err);
}

/* ---- Names ------------------------------------------------------------------------------------------------------- */

/* Short names of modules, each once. */
typedef struct role_names {
    bool has[QR_ROLE_COUNT];
    const char *names[QR_ROLE_COUNT];
    size_t n;
} role_names;

static void add_name(role_names *list, qr_tensor_role role, const char *name) {
    if (!list->has[role]) { list->names[list->n++] = name; }
    list->has[role] = true;
}

static qrun_status describe(export_job *job, role_names *targets, role_names *parameters, role_names *saved,
                            qr_error *err) {
    const qr_parameters *p = job->parameters;
    const size_t n_pairs = (size_t)p->lora.n_pairs, n_whole = (size_t)p->whole.n;
    job->names = qr_alloc_array(n_pairs + n_whole, NAME_BYTES);
    job->factors = qr_alloc_array(n_pairs, sizeof *job->factors);
    job->whole = qr_alloc_array(n_whole, sizeof *job->whole);
    if (job->names == NULL || job->factors == NULL || job->whole == NULL) {
        return qr_fail_memory(err, "an adapter", (n_pairs + n_whole) * NAME_BYTES);
    }
    char *name = job->names;
    for (size_t i = 0; i < n_pairs; i++, name += NAME_BYTES) {
        const qr_lora_pair *pair = &p->lora.pairs[i];
        qr_parameters_module_name(p, pair->role, pair->layer, name, NAME_BYTES);
        job->factors[i] =
            (qr_adapter_factor_spec){.module = name, .in = pair->in, .out = pair->out, .n_stacked = pair->n_experts};
        if (pair->linear == NULL) {
            add_name(parameters, pair->role, qr_expert_parameter_name(p->model, pair->role));
        } else {
            add_name(targets, pair->role, qr_module_short_name(p->model->family, pair->role));
        }
    }
    for (size_t i = 0; i < n_whole; i++, name += NAME_BYTES) {
        const qr_parameter *parameter = whole_parameter(p, i);
        qr_parameter_name(p, parameter, name, NAME_BYTES);
        job->whole[i] = (qr_adapter_parameter_spec){.name = name};
        job->whole[i].n_dims = qr_parameter_file_dims(p->model, parameter, job->whole[i].dims);
        add_name(saved, parameter->role, qr_module_short_name(p->model->family, parameter->role));
    }
    return QRUN_OK;
}

/* The layers that have LoRA, each once and in their order, to list[n_pairs]. */
static size_t list_layers(const qr_parameters *p, int64_t *list) {
    size_t n = 0;
    for (int64_t l = 0; l < p->model->shape.n_layers; l++) {
        int64_t i = 0;
        while (i < p->lora.n_pairs && p->lora.pairs[i].layer != l) { i++; }
        if (i < p->lora.n_pairs) { list[n++] = l; }
    }
    return n;
}

/* ---- The adapter ------------------------------------------------------------------------------------------------- */

qrun_status qr_adapter_export(const qr_parameters *p, const qr_adapter_export_options *options, const char *folder,
                              qr_error *err) {
    export_job job = {.parameters = p};
    role_names targets = {.n = 0}, parameters = {.n = 0}, saved = {.n = 0};
    qrun_status status = QRUN_OK;
    QR_TRY(describe(&job, &targets, &parameters, &saved, err));
    if (p->lora.some_layers) {
        job.layers = qr_alloc_array((size_t)p->lora.n_pairs, sizeof *job.layers);
        if (job.layers == NULL) { QR_TRY(qr_fail_memory(err, "an adapter", (size_t)p->lora.n_pairs)); }
        job.n_layers = list_layers(p, job.layers);
    }
    const qr_adapter_spec spec = {
        .base_model = p->model->hub_name != NULL ? p->model->hub_name : p->model->folder,
        .has_revision = p->model->hub_name != NULL,
        .targets = targets.names,
        .n_targets = targets.n,
        .target_parameters = parameters.names,
        .n_target_parameters = parameters.n,
        .layers = job.layers,
        .n_layers = job.n_layers,
        .rank = p->lora.rank,
        .alpha = options->alpha,
        .dropout = options->dropout,
        .rslora = options->rslora,
        .fan_in_fan_out = p->model->family->transposed,
        .factors = job.factors,
        .n_factors = (size_t)p->lora.n_pairs,
        .read = read_factor,
        .read_magnitude = p->lora.dora ? read_magnitude : NULL,
        .read_parameter = read_whole,
        .user = (void *)(uintptr_t)p,
        .parameters = job.whole,
        .n_parameters = (size_t)p->whole.n,
        .modules_to_save = saved.names,
        .n_modules_to_save = saved.n,
    };
    status = qr_adapter_write(folder, &spec, err);
out:
    qr_free(job.names);
    qr_free(job.layers);
    qr_free(job.factors);
    qr_free(job.whole);
    return status;
}
