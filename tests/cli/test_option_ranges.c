/* A number that an option of the program takes is one that the library takes, and the other way round: the ranges of
 * the options of finetune against those of qrun_train_params_check. */
#include "check.h"

#include <math.h>

#include "cli/options/train.h"

static void set_field(const option *o, void *field, double value) {
    const double most = o->bytes == 4 ? (double)INT32_MAX : 0x1p62;
    const int64_t integer = (int64_t)fmin(value, most);
    const int32_t narrow = (int32_t)fmin(value, (double)INT32_MAX);
    const float single = (float)fmin(value, 1e38);
    if (o->kind == OPTION_NUMBER) {
        memcpy(field, o->bytes == sizeof single ? (const void *)&single : (const void *)&value, o->bytes);
    } else {
        memcpy(field, o->bytes == sizeof narrow ? (const void *)&narrow : (const void *)&integer, o->bytes);
    }
}

/* Whether the library says that the value of this option alone is out of its range. Other rules do not count. */
static bool is_out_of_range(const option *o, size_t offset, double value) {
    static const char *const file = "data.jsonl";
    finetune_options options = finetune_defaults;
    set_field(o, (char *)&options + offset, value);
    options.train.data.train_data = &file, options.train.data.n_train_data = 1;
    options.train.saving.out = "out";
    qrun_error error = QRUN_ERROR_INIT;
    return qrun_train_params_check(&options.train, &error) != QRUN_OK && strstr(error.message, "must be from") != NULL;
}

static void test_finetune(void) {
    int n_limits = 0;
    for (size_t g = 0; g < N_FINETUNE_GROUPS; g++) {
        const option_group *group = &finetune_groups[g];
        for (size_t i = 0; i < group->n_options; i++) {
            const option *o = &group->options[i];
            const size_t offset = group->offset + o->offset;
            const bool is_number = o->kind == OPTION_INT || o->kind == OPTION_NUMBER;
            const bool is_of_run = offset >= offsetof(finetune_options, train) &&
                                   offset < offsetof(finetune_options, train) + sizeof(qrun_train_params);
            if (!is_number || !is_of_run) { continue; }
            CHECK_MSG(!is_out_of_range(o, offset, o->low), "--%s %g: the library refuses it", o->name, o->low);
            CHECK_MSG(!is_out_of_range(o, offset, o->high), "--%s %g: the library refuses it", o->name, o->high);
            if (!is_out_of_range(o, offset, 1e300)) { continue; } /* no limit of its own */
            n_limits++;
            const double above = o->kind == OPTION_INT ? floor(o->high * 1.001) + 1 : o->high * 1.001;
            CHECK_MSG(is_out_of_range(o, offset, above), "--%s is at most %g, and the library takes more", o->name,
                      o->high);
        }
    }
    CHECK_MSG(n_limits > 20, "only %d limits were compared", n_limits);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    CHECK_RUN(test_finetune);
    return check_end();
}
