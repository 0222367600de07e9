/* The options that say which model to run and on what, and the objects made from them. */
#ifndef QRUN_CLI_OPTIONS_ENGINE_H
#define QRUN_CLI_OPTIONS_ENGINE_H

#include "cli/options/local_ranks.h"
#include "cli/options/options.h"
#include "qrun.h"

typedef struct engine_options {
    qrun_context_params context;
    qrun_model_params model;
    qrun_session_params session;
    option_texts adapters; /* DIR or NAME=DIR */
    const char *shape;     /* bench and plans: a config.json in place of a model */
} engine_options;

#define ENGINE_OPTIONS_INIT \
    { .context = QRUN_CONTEXT_PARAMS_INIT, .model = QRUN_MODEL_PARAMS_INIT, .session = QRUN_SESSION_PARAMS_INIT }

extern const option_choice quant_choices[]; /* of qrun_quant */

enum {
    N_MODEL_OPTIONS = 7,
    N_ADAPTER_OPTIONS = 1,
    N_MACHINE_OPTIONS = 5,
    N_SESSION_OPTIONS = 5,
    N_SPEED_OPTIONS = 4,
    N_DEVICES_OPTIONS = 2
};
extern const option model_option_table[N_MODEL_OPTIONS];
extern const option adapter_option_table[N_ADAPTER_OPTIONS];
extern const option one_adapter_option_table[N_ADAPTER_OPTIONS]; /* with engine_require_one_adapter */
extern const option machine_option_table[N_MACHINE_OPTIONS];
extern const option session_option_table[N_SESSION_OPTIONS];
extern const option speed_option_table[N_SPEED_OPTIONS];     /* of what generates */
extern const option devices_option_table[N_DEVICES_OPTIONS]; /* the first is of plans too */

typedef struct engine {
    qrun_context *context;
    qrun_model *model;
    qrun_model_info info;
    qrun_adapter *adapters[OPTION_LIST_MAX];
    int n_adapters;
    qrun_session *session;
    bool keeps_prefixes; /* in files */
    bool told_note;      /* what was wrong with one of them */
    bool is_copy;        /* of an engine that has said what there is to say of the model */
    int rank, n_ranks;   /* of engine_meet */
    local_ranks others;  /* that were started here */
} engine;

/* "1.2 billion parameters", and of a mixture of experts how many of them a token meets. */
typedef struct parameters_text {
    char text[128];
} parameters_text;
parameters_text engine_parameters(const qrun_model_info *info);
/* "cuda (sm_90)", the GPU that the context is on; empty on the CPU. */
typedef struct gpu_text {
    char text[64];
} gpu_text;
gpu_text engine_gpu(const engine *e);

/* What the library gets: --shape means a model with random weights, --memory counts for both. */
qrun_model_params engine_model_params(const engine_options *options);
qrun_session_params engine_session_params(const engine_options *options);

/* Each returns 0 or an exit code, after telling the user; engine_close releases whatever was made. Loading shows its
 * progress, and Ctrl-C ends it. */
int engine_require_model(const engine_options *options);       /* that one is given */
int engine_require_one_adapter(const engine_options *options); /* one at most */
int engine_open_context(engine *e, const qrun_context_params *params);
/* With --tensor-parallel: opens the context, and finds which rank this is; 0 where nobody has launched any. Does
 * nothing without it. A rank other than 0 then calls engine_follow, and reads, prints and writes nothing. */
int engine_meet(engine *e, const engine_options *options);
int engine_follow(engine *e, const engine_options *options);
/* The context, if there is none yet. Starts the other ranks where nobody has launched them. */
int engine_open_ranks(engine *e, const engine_options *options);
int engine_open_model(engine *e, const engine_options *options); /* with its adapters */
int engine_open_session(engine *e, const qrun_session_params *params);
int engine_open(engine *e, const engine_options *options); /* all three */
void engine_close(engine *e);

/* With --cache-dir: writes the prefixes that the session holds, and says what could not be used or written, once. */
void engine_keep_prefixes(engine *e);

/* The adapter that a request uses when it names none: the first given, or NULL. */
const qrun_adapter *engine_default_adapter(const engine *e);

/* A qrun_progress_fn that draws the label in `user` with bytes done, and gives up when interrupted. */
bool engine_show_bytes(void *user, int64_t done, int64_t total);

#endif
