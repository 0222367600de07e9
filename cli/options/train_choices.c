#include "cli/options/train_choices.h"

#include <stddef.h>

const char *const train_optimizer_names[] = {"adamw", "adamw8bit", "adafactor", "sgd", NULL};

/* By what is set: 1 the optimiser, 2 activations, 3 both. */
const char *const train_offload_names[] = {"none", "optimizer", "activations", "optimizer,activations", NULL};

void train_set_offload(qrun_train_params *params, int64_t choice) {
    params->memory.offload_optimizer = (choice & 1) != 0;
    params->memory.offload_activations = (choice & 2) != 0;
}
