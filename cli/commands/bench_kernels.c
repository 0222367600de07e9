#include "cli/commands/bench_kernels.h"

#include <stdio.h>
#include <string.h>

#include "cli/options/command.h"
#include "cli/terminal/messages.h"

/* ---- Measuring --------------------------------------------------------------------------------------------------- */

void bench_kernels_free(bench_kernels_result *result) {
    for (int32_t i = 0; i < result->n_phases; i++) { qrun_free(result->phases[i].ops); }
}

int bench_ops_begin(const engine *e) {
    qrun_error error = QRUN_ERROR_INIT;
    return complain_unless_ok(qrun_context_profile_begin(e->context, &error), &error);
}

int bench_ops_end(const engine *e, bench_kernels_result *result, const char *what) {
    qrun_error error = QRUN_ERROR_INIT;
    bench_ops *phase = &result->phases[result->n_phases];
    const qrun_status status = qrun_context_profile_end(e->context, &phase->ops, &phase->n_ops, &error);
    if (status != QRUN_OK) { return complain_error(&error); }
    (void)snprintf(phase->what, sizeof phase->what, "%s", what);
    result->n_phases++;
    return EXIT_OK;
}

int bench_kernels_measure(const engine *e, int32_t n_prompt, int32_t n_sequences, int32_t n_context,
                          bench_kernels_result *result) {
    char what[64];
    measure_work work = {.e = e, .n_sequences = 1, .n_prompt = n_prompt, .n_tokens = 1};
    RETURN_IF_FAILED(measure_work_begin(&work));
    RETURN_IF_FAILED(measure_work_end(&work)); /* warms up */
    RETURN_IF_FAILED(measure_work_begin(&work));
    RETURN_IF_FAILED(bench_ops_begin(e));
    RETURN_IF_FAILED(measure_work_end(&work));
    (void)snprintf(what, sizeof what, "a prompt of %d tokens", (int)n_prompt);
    RETURN_IF_FAILED(bench_ops_end(e, result, what));

    work = (measure_work){.e = e, .n_sequences = n_sequences, .n_prompt = n_context, .n_tokens = MEASURE_OPS_TOKENS};
    RETURN_IF_FAILED(measure_work_begin(&work));
    RETURN_IF_FAILED(measure_work_until_written(&work, 2));
    RETURN_IF_FAILED(bench_ops_begin(e));
    RETURN_IF_FAILED(measure_work_step(&work));
    (void)snprintf(what, sizeof what, "a step that writes %d at %d tokens", (int)n_sequences, (int)n_context);
    RETURN_IF_FAILED(bench_ops_end(e, result, what));
    return measure_work_end(&work);
}

/* ---- Reports ----------------------------------------------------------------------------------------------------- */

/* What the slower of memory and matrix units would need, of the time that it took. */
static double share_of_peak(const qrun_op_time *op, const qrun_peaks *peaks, double peak) {
    const double reading = peaks->read_bytes_per_second > 0 ? op->bytes / peaks->read_bytes_per_second : 0;
    const double multiplying = peak > 0 ? op->flops / peak : 0;
    const double least = reading > multiplying ? reading : multiplying;
    return op->seconds > 0 ? least / op->seconds : 0;
}

static double seconds_of(const bench_ops *phase) {
    double seconds = 0;
    for (int32_t i = 0; i < phase->n_ops; i++) { seconds += phase->ops[i].seconds; }
    return seconds;
}

static void print_phase(const bench_ops *phase, const qrun_peaks *peaks, double peak) {
    const double all = seconds_of(phase);
    printf("\n%-58s%7s%11s%8s%11s%10s%10s\n", phase->what, "calls", "ms", "of all", "MB", "GFLOP", "of limit");
    for (int32_t i = 0; i < phase->n_ops; i++) {
        const qrun_op_time *op = &phase->ops[i];
        printf("%-26s%-32s%7lld%11.3f%7.1f%%%11.2f%10.3f%9.1f%%\n", op->op, op->shape, (long long)op->n_calls,
               1e3 * op->seconds, all > 0 ? 100 * op->seconds / all : 0, op->bytes / 1e6, op->flops / 1e9,
               100 * share_of_peak(op, peaks, peak));
    }
    printf("%-26s%-32s%7s%11.3f\n", "all ops", "", "", 1e3 * all);
}

void bench_kernels_print(const bench_kernels_result *result, const qrun_peaks *peaks, double peak) {
    for (int32_t i = 0; i < result->n_phases; i++) { print_phase(&result->phases[i], peaks, peak); }
    printf("\nMB: what must be read and written at least. Of limit: what the slower of memory and matrix units would\n"
           "take, of the time that it took; more than all of it where a cache holds the data. On a GPU ops do not\n"
           "overlap while they are timed.\n");
}

void bench_kernels_json(const bench_kernels_result *result, const qrun_peaks *peaks, double peak, text_buffer *out) {
    text_puts(out, "\"kernels\":[");
    for (int32_t i = 0; i < result->n_phases; i++) {
        const bench_ops *phase = &result->phases[i];
        text_format(out, "%s{\"what\":\"%s\",\"seconds\":%.6g,\"ops\":[", i > 0 ? "," : "", phase->what,
                    seconds_of(phase));
        for (int32_t j = 0; j < phase->n_ops; j++) {
            const qrun_op_time *op = &phase->ops[j];
            text_format(out,
                        "%s{\"op\":\"%s\",\"shape\":\"%s\",\"calls\":%lld,\"seconds\":%.6g,\"bytes\":%.6g,"
                        "\"flops\":%.6g,\"limit_share\":%.6g}",
                        j > 0 ? "," : "", op->op, op->shape, (long long)op->n_calls, op->seconds, op->bytes, op->flops,
                        share_of_peak(op, peaks, peak));
        }
        text_puts(out, "]}");
    }
    text_puts(out, "]}\n");
}
