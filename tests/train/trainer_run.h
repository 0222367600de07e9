/* Training runs of the model in examples/model through the public interface, on data and in folders made for the test.
 */
#ifndef QR_TESTS_TRAINER_RUN_H
#define QR_TESTS_TRAINER_RUN_H

#include <qrun.h>

extern qrun_context *trainer_context;

/* The test's own folder in /tmp, with data.jsonl (n_examples of prompt and completion); false where that fails. */
bool trainer_run_begin(int n_examples);
void trainer_run_end(void);

/* A path in that folder; one of the last 64. */
char *trainer_path(const char *name);
/* The same as a list of one, for the files of data. */
const char *const *trainer_paths(const char *name);

/* NULL after a failed check. */
qrun_model *trainer_open_model(void);
qrun_model *trainer_open_model_in(qrun_dtype dtype);

/* A small run on data.jsonl: 12 steps of 2 × 2 rows of 64 tokens, seed 7. */
qrun_train_params trainer_params(const char *out);

/* NULL after a failed check. */
qrun_trainer *trainer_create(qrun_model *model, const qrun_train_params *params);

/* Steps until `last` or the end; the losses go to `losses` [12] where it is not NULL. */
void trainer_run_steps(qrun_trainer *trainer, int64_t last, double *losses);

/* The gradients of the last step, as the update reads them: on the device, of every parameter. Of a run alone, whose
 * gradients are not in host memory. */
float *trainer_gradients(const qrun_trainer *trainer);

/* The run must be refused with this status and a message that has `why` in it. */
void trainer_expect_refusal(const qrun_train_params *params, qrun_status status, const char *why);

/* To the byte. */
bool trainer_files_are_equal(const char *a, const char *b);
/* The same for adapter_model.safetensors in two folders. */
bool trainer_adapters_are_equal(const char *a, const char *b);

#endif
