/* qrun: opens an unmodified Hugging Face model folder, holds it in 4 or 8 bits, generates for many prompts at once, and
 * fine-tunes. This is the only header; everything the `qrun` program does goes through it.
 *
 * A whole program:
 *
 *     #include <qrun.h>
 *     #include <stdio.h>
 *
 *     static void print_text(void *user, const qrun_event *event) {
 *         (void)user;
 *         if (event->text_bytes > 0) { fwrite(event->text, 1, event->text_bytes, stdout); }
 *     }
 *
 *     int main(void) {
 *         qrun_error error = QRUN_ERROR_INIT;
 *         qrun_context *context = NULL;
 *         qrun_model *model = NULL;
 *         qrun_session *session = NULL;
 *         qrun_model_params model_params = QRUN_MODEL_PARAMS_INIT;
 *         qrun_session_params session_params = QRUN_SESSION_PARAMS_INIT;
 *         qrun_request_params request = QRUN_REQUEST_PARAMS_INIT;
 *         model_params.path = "path/to/model";
 *         request.prompt = "Once upon a time";
 *         request.max_tokens = 20;
 *         request.on_event = print_text;
 *         if (qrun_context_create(NULL, &context, &error) != QRUN_OK ||
 *             qrun_model_open(context, &model_params, &model, &error) != QRUN_OK ||
 *             qrun_session_create(model, &session_params, &session, &error) != QRUN_OK ||
 *             qrun_session_submit(session, &request, NULL, &error) != QRUN_OK ||
 *             qrun_session_run(session, &error) != QRUN_OK) {
 *             fprintf(stderr, "%s\n", error.message);
 *         }
 *         qrun_session_destroy(session);
 *         qrun_model_destroy(model);
 *         qrun_context_destroy(context);
 *         return error.status == QRUN_OK ? 0 : 1;
 *     }
 *
 * Conventions
 *   Errors     Every call that can fail returns a qrun_status and, where `error` is not NULL, leaves one line there:
 *              what, where, and what would help. The library never exits, aborts or prints.
 *   Ownership  X_create/X_open makes an object that X_destroy releases (NULL is fine); NULL where it fails. Getters
 *              lend: what they return lives as long as the object. Text that a call allocates for the caller is
 *              released with qrun_free.
 *   Lifetimes  A context outlives its models and tokenizers, a model its sessions and adapters, an adapter every
 *              request that names it.
 *   Structs    Begin with struct_size; start from the _INIT macro. It tells the library which fields a program knows;
 *              until version 1.0 it must be this version's (QRUN_ERROR_ARGUMENT otherwise, and for NULL in its place).
 *              Objects, and pointers that results go to, are not checked for NULL.
 *   Threads    Different sessions may be used from different threads. On one session, qrun_session_submit,
 *              _submit_json, _cancel, _get_stats and _event_descriptor may be called from any thread at any time;
 *              stepping is for one thread at a time (a second one gets QRUN_ERROR_BUSY). Tokenizer and model getters
 *              are safe from any thread. While a trainer is made, saved, exported or destroyed, no other thread
 *              computes on its context.
 *   Text       UTF-8. Counts are int64_t or int32_t, sizes of text size_t, memory in bytes, times in seconds. */
#ifndef QRUN_H
#define QRUN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__) && defined(QRUN_BUILDING)
#define QRUN_API __attribute__((visibility("default")))
#else
#define QRUN_API
#endif

#define QRUN_VERSION_MAJOR 0
#define QRUN_VERSION_MINOR 1
#define QRUN_VERSION_PATCH 0

/* "0.1.0": of the library that runs, which may be newer than this header. */
QRUN_API const char *qrun_version(void);

/* ---- Status ------------------------------------------------------------------------------------------------------ */

/* X(name, value, message): the codes are pinned for good. */
#define QRUN_STATUS_LIST(X)                                                          \
    X(OK, 0, "success")                                                              \
    X(ERROR_ARGUMENT, -1, "an argument is out of range or does not fit the others")  \
    X(ERROR_NOT_FOUND, -2, "a file, folder or object does not exist")                \
    X(ERROR_IO, -3, "reading or writing failed")                                     \
    X(ERROR_INPUT, -4, "a file or text is malformed")                                \
    X(ERROR_UNSUPPORTED, -5, "well-formed, but not something this build can handle") \
    X(ERROR_MEMORY, -6, "out of memory, or over the memory budget")                  \
    X(ERROR_CANCELLED, -7, "cancelled by the caller")                                \
    X(ERROR_DEVICE, -8, "the device or its driver failed")                           \
    X(ERROR_BUSY, -9, "the object is in use")                                        \
    X(ERROR_INTERNAL, -10, "a mistake in qrun itself; please report it")             \
    X(ERROR_FULL, -11, "as many requests wait as may; submit again later")           \
    X(ERROR_RANK, -12, "another rank failed; rank 0 reports it")

typedef enum qrun_status {
#define QRUN_X(name, value, message) QRUN_##name = value,
    QRUN_STATUS_LIST(QRUN_X)
#undef QRUN_X
} qrun_status;

/* "QRUN_ERROR_INPUT" and "a file or text is malformed". */
QRUN_API const char *qrun_status_name(qrun_status status);
QRUN_API const char *qrun_status_message(qrun_status status);

/* Caller-owned. Start from QRUN_ERROR_INIT; a call that fails fills it unless it already holds an error. */
typedef struct qrun_error {
    qrun_status status;
    char message[1024]; /* one line, no newline, control characters replaced */
} qrun_error;
#define QRUN_ERROR_INIT \
    {                   \
        QRUN_OK, { 0 }  \
    }

/* Releases text that a call allocated for the caller. NULL is fine. */
QRUN_API void qrun_free(void *memory);

/* ---- Context: device and threads --------------------------------------------------------------------------------- */

typedef struct qrun_context qrun_context;

/* The order in which sums are added, of which the last bits of every result depend. Results never depend on what else
 * is computed, nor on the number of threads. With QRUN_NUMERICS_PORTABLE they do not depend on the instruction set
 * either: every x86-64 CPU gives the bits of one with AMX, when it generates, evaluates and trains. That is slower, and
 * slow on CPUs without FMA. What the C library computes (sines of rotary angles, logarithms, powers) is not covered:
 * it should be of the same version on all machines. There is no such order on GPUs. */
typedef enum qrun_numerics {
    QRUN_NUMERICS_FASTEST = 0, /* of the instruction set */
    QRUN_NUMERICS_PORTABLE = 1
} qrun_numerics;

typedef struct qrun_context_params {
    size_t struct_size;
    int32_t n_threads; /* 0: one for each CPU this process may use */
    /* "auto" (a GPU that can be used, else the CPU), "cpu", "cuda", or "cuda:1", the GPU that CUDA numbers so (from 0,
     * of those that CUDA_VISIBLE_DEVICES leaves), whichever rank this is. NULL is "auto". */
    const char *device;
    qrun_numerics numerics; /* PORTABLE: "auto" is the CPU, and "cuda" is refused */
    /* For plans alone: "rtx-4090", "h100" … Plans are then for the memory of that GPU, which need not be there,
     * with host memory apart; the ops' workspace is that of the context's own device. Models cannot be opened. A name
     * that is not known is refused with the list. NULL: the memory there is. */
    const char *device_memory;
    /* Join the ranks that mpirun, srun or torchrun started, by the variables that they set. Ranks are processes that
     * run the same program, each with a device of its own, and train one model together. A process that was started
     * alone is the only rank. One context of a process may. Until their run has ended, all create the context and open
     * models alike, and where one of them fails, all do (QRUN_ERROR_RANK). One that destroys its context before has
     * left, and the others fail. */
    bool ranks;
    double collective_timeout; /* seconds that a rank may be silent while another waits for it, up to 1e6; 0: 1800 */
} qrun_context_params;
#define QRUN_CONTEXT_PARAMS_INIT \
    { sizeof(qrun_context_params), 0, NULL, QRUN_NUMERICS_FASTEST, NULL, false, 0 }

/* params NULL: the defaults. */
QRUN_API qrun_status qrun_context_create(const qrun_context_params *params, qrun_context **context, qrun_error *error);
QRUN_API void qrun_context_destroy(qrun_context *context);

typedef struct qrun_device_info {
    size_t struct_size;
    const char *backend; /* "cpu", "cuda" */
    const char *isa;     /* "avx512-bf16", "sm_90" … */
    int32_t n_threads;
    int64_t memory_bytes;           /* the GPU's, or the machine's (the container's, where that is smaller) */
    int64_t memory_available_bytes; /* now */
    int64_t context_bytes;          /* what the GPU's driver took of it for this process: 0 on the CPU, −1: not
                                       known (it is measured with libnvidia-ml.so, which comes with the driver) */
    /* Why "auto" took no GPU, one line; NULL: it took one, or was not asked to. Lives as long as the context. */
    const char *note;
    const char *numerics; /* "fastest", "portable" */
    int32_t rank;         /* of n_ranks, from 0 */
    int32_t n_ranks;      /* 1: this process is the only one */
    char features[384];   /* of a GPU: what of it is used now, and what not and why, one line; else empty */
} qrun_device_info;
#define QRUN_DEVICE_INFO_INIT \
    { .struct_size = sizeof(qrun_device_info) }
QRUN_API qrun_status qrun_context_device_info(const qrun_context *context, qrun_device_info *info, qrun_error *error);

/* What the machine can do at most, measured now (takes about `seconds` in all). */
typedef struct qrun_peaks {
    size_t struct_size;
    double read_bytes_per_second; /* streaming reads, all threads */
    double bf16_flops;            /* BF16 products, F32 sums, all threads, from registers */
    double f32_flops;
    double f16_flops; /* of the kernels that compute F16: those of F32 on CPUs, tensor cores on GPUs */
} qrun_peaks;
#define QRUN_PEAKS_INIT \
    { sizeof(qrun_peaks), 0, 0, 0, 0 }
QRUN_API qrun_status qrun_context_measure_peaks(qrun_context *context, double seconds, qrun_peaks *peaks,
                                                qrun_error *error);

/* Where the time goes: between these two calls every op is timed, on the device's clock where it works on its own.
 * Steps take longer then, and a GPU's are not replayed from recordings. Not while another thread computes on the
 * context. */
typedef struct qrun_op_time {
    const char *op; /* "linear", "attention" …; the library's */
    char shape[48]; /* "8 x 4096 x 14336 nf4-dq": rows, inputs and outputs of a matrix product; else rows and length */
    int64_t n_calls;
    double seconds;      /* of all calls, like the next two */
    double bytes, flops; /* that must be read and written at least; that matrix products and attention are made of */
} qrun_op_time;
QRUN_API qrun_status qrun_context_profile_begin(qrun_context *context, qrun_error *error);
/* *ops [*n_ops], the longest first, is released by qrun_free. */
QRUN_API qrun_status qrun_context_profile_end(qrun_context *context, qrun_op_time **ops, int32_t *n_ops,
                                              qrun_error *error);

/* What happens over time: from the first of these calls to the last, every op, copy and wait of the context's device is
 * noted, and which of the planned tensors hold something meanwhile. Begin after the model is opened, and before the
 * trainer or the session that is looked at is created: their memory is given names then. A training step forgets what
 * was noted before it; a session goes on adding. Nothing is allocated while events are noted: at most max_events (0:
 * 131,072) are kept, and later ones count in the phases alone. A GPU's steps are not replayed from recordings
 * meanwhile. Not while another thread computes on the context. */
QRUN_API qrun_status qrun_context_timeline_begin(qrun_context *context, int64_t max_events, qrun_error *error);
QRUN_API void qrun_context_timeline_end(qrun_context *context); /* fine where there is none */

/* Seconds by what they were spent on. Copies and waiting are apart from the phase that they are part of. */
typedef struct qrun_phases {
    double data, forward, loss, backward, recompute, optimizer; /* of a training step */
    double prefill, decode, sample;                             /* of a session */
    double copies, waiting;
    double other; /* what is none of these: the host's own work */
} qrun_phases;

typedef struct qrun_timeline_event {
    const char *name;      /* of the op, "copy in", "wait", "micro-batch" … */
    char shape[48];        /* as in qrun_op_time; empty: it is no op, or has none */
    const char *phase;     /* that runs: a member of qrun_phases, by its name */
    const char *spent_on;  /* what its seconds count as: the same, "copies" or "waiting" */
    const char *part;      /* "attention", "delta rule", "convolution", "state space", "mlp", "head" or "" */
    int32_t layer;         /* −1: of none */
    double begin, seconds; /* begin: since the step, or the timeline, began. On the device's own clock, if it has one */
    int64_t bytes;         /* moved, of a copy */
    int64_t workspace_bytes; /* that an op has */
} qrun_timeline_event;

/* A category of the plan. Where it lives, its tensors hold something from time to time, and their lives say when;
 * otherwise it is held always. */
typedef struct qrun_timeline_memory {
    const char *category; /* as in qrun_plan_entry; NULL: there is none of this number */
    int64_t bytes;
    bool lives;
    bool is_apart;
} qrun_timeline_memory;

typedef struct qrun_timeline_tensor {
    const char *name;
    int32_t category; /* of `memory` */
    int32_t layer;    /* −1: of none, or of several in turn */
    int64_t bytes;    /* planned, whatever a micro-batch uses of it */
    int64_t offset;   /* from the first tensor of its category: tensors that are never needed at once share a place */
    bool lives;
} qrun_timeline_tensor;

/* From the event that fills a tensor to the last one that touches it before it is filled again. */
typedef struct qrun_timeline_life {
    int32_t tensor, layer; /* layer: the tensor's own, or the one that ran when it was filled; −1: none */
    int64_t first, last;   /* events */
    bool kept;             /* filled in the forward pass and used by the backward pass */
} qrun_timeline_life;

typedef struct qrun_timeline {
    size_t struct_size;
    const qrun_timeline_event *events; /* in the order in which they were issued */
    int64_t n_events, n_dropped;       /* dropped: there was no room for them */
    const qrun_timeline_memory *memory;
    int32_t n_memory;
    const qrun_timeline_tensor *tensors;
    int32_t n_tensors, n_unnamed; /* unnamed: there was no room for them */
    const qrun_timeline_life *lives;
    int64_t n_lives;
    double seconds; /* of the step; of a session 0 */
    qrun_phases phases;
} qrun_timeline;
#define QRUN_TIMELINE_INIT \
    { .struct_size = sizeof(qrun_timeline) }
/* What there is so far. Its arrays are lent until the next call, or the timeline's end. */
QRUN_API qrun_status qrun_context_timeline_get(qrun_context *context, qrun_timeline *timeline, qrun_error *error);

/* ---- Models ------------------------------------------------------------------------------------------------------ */

typedef struct qrun_model qrun_model;

typedef enum qrun_quant {
    QRUN_QUANT_AUTO = 0, /* a folder quantised by bitsandbytes, and one in MXFP4, as it is; else QRUN_QUANT_NF4_DQ */
    QRUN_QUANT_F32 = 1,
    QRUN_QUANT_BF16 = 2,
    QRUN_QUANT_INT8 = 3,   /* row-wise, as LLM.int8 stores it */
    QRUN_QUANT_NF4 = 4,    /* 4.5 bits per weight */
    QRUN_QUANT_NF4_DQ = 5, /* double-quantised: 4.13 bits per weight */
    QRUN_QUANT_F16 = 6,
    QRUN_QUANT_MIXED = 7, /* NF4_DQ, and 8 or 16 bits where that loses most: of folders written so (qrun_mixed) */
    QRUN_QUANT_MXFP4 = 8  /* of folders stored so (gpt-oss): experts as they are, 4.25 bits per weight, others plain */
} qrun_quant;

/* Sums are F32 in all of them. F16 overflows at 65504: what does not fit becomes infinite and, later, NaN. */
typedef enum qrun_dtype { QRUN_DTYPE_BF16 = 0, QRUN_DTYPE_F32 = 1, QRUN_DTYPE_F16 = 2 } qrun_dtype;

/* While a file is mapped, SIGBUS has a handler: a file that is cut short meanwhile is an error (QRUN_ERROR_IO), not the
 * end of the process. That is so while a call reads files, and while a trainer exists. The handler looks at these maps
 * only. Everything else it passes on to the handler that the program had before, which is put back afterwards. */

/* Called repeatedly during a long call, always from the thread that made the call. done and total in bytes.
 * Returning false cancels the call (QRUN_ERROR_CANCELLED). */
typedef bool (*qrun_progress_fn)(void *user, int64_t done, int64_t total);

/* Where the matrices of a model's layers, or of its experts, are held. Layers that are offloaded come through two
 * stages on the device, the next layer's on their way while one computes; results are the same to the bit. Where the
 * device has memory of its own, they are held in host memory. On a processor they stay in the mapped folder, which must
 * store them as they are held (quantised, see qrun_quantize_folder), and its handler of SIGBUS stays while the model is
 * open; those of a trainable model are in its memory once more. Training them needs offload_gradients. */
typedef enum qrun_offload {
    QRUN_OFFLOAD_NONE = 0, /* on the device */
    QRUN_OFFLOAD_ALL = 1,
    QRUN_OFFLOAD_AUTO = 2 /* ALL where they do not fit otherwise and can be offloaded */
} qrun_offload;

/* Where the experts of offload_experts are computed. One way holds for all tokens of a model, because the bits of the
 * two differ: they belong to different devices. */
typedef enum qrun_expert_compute {
    QRUN_EXPERT_COMPUTE_DEVICE = 0, /* fetched: those that tokens go to are copied to the device before they compute.
                                     * Results are those of experts on the device to the bit */
    QRUN_EXPERT_COMPUTE_AUTO = 1,   /* HOST where a rule says that it is faster (qrun_model_info.expert_note): both are
                                     * computed from what is measured when the first such model is opened: the link to
                                     * the device, the host's memory, and its matrix products. So bits follow from a
                                     * measurement, and may be those of the other way after another start */
    QRUN_EXPERT_COMPUTE_HOST = 2    /* the processor computes them in the host's memory; a layer's tokens go there and
                                     * back. For generating: no training, and no adapter that changes experts */
} qrun_expert_compute;

typedef struct qrun_model_params {
    size_t struct_size;
    const char *path;     /* a folder, a GGUF file, a model id in the Hugging Face cache ("org/name",
                             "org/name@revision"), or (random_weights) a config.json or a known model too */
    qrun_quant quant;     /* of the linear layers */
    bool quant_head_int8; /* hold the output head (and a tied embedding) in INT8; else they keep their own type */
    qrun_dtype dtype;     /* compute type; F32 is for exact comparison */
    bool random_weights;  /* for measuring: only config.json has to exist */
    int64_t memory_bytes; /* refuse a model whose weights need more; 0: what the device has free */
    qrun_progress_fn progress;
    void *progress_user;
    bool trainable; /* every matrix in the compute type, as full fine-tuning needs; quant AUTO, or that type */
    qrun_offload offload_parameters;
    bool quant_embedding_int8; /* hold the embeddings of tokens (and a tied head) in INT8, a scale for each token; else
                                  they keep their own type. Not with trainable */
    bool shard_parameters; /* on several ranks (qrun_context_params): each holds a share of every layer's matrices. A
                              layer is gathered from all of them when it is due, the next one while it computes. For
                              trainers with `zero` 3 alone: results are the same to the bit */
    /* Tensor parallelism: so many ranks (qrun_context_params, all of them) share every layer for generating. Each has
     * a part of the heads, with their K/V pages, and of the rows of every other matrix but the embedding; answers are
     * one rank's to the bit. All open the model and create a session alike. Rank 0 submits requests and gets events;
     * the others call qrun_session_run, which follows rank 0 until it destroys its session. 0 and 1: not shared. */
    int32_t tensor_parallel;
    int32_t tensor_rank; /* of plans alone: whose plan it is */
    /* Of a mixture of experts on a GPU: the experts' matrices are in host memory, and computed as expert_compute says.
     * AUTO: where the weights do not fit otherwise. Refused on a processor, and with trainable, shard_parameters and
     * offload_parameters. */
    qrun_offload offload_experts;
    qrun_expert_compute expert_compute; /* HOST needs offload_experts, and is not for tensor_parallel */
} qrun_model_params;
#define QRUN_MODEL_PARAMS_INIT \
    { .struct_size = sizeof(qrun_model_params) }

QRUN_API qrun_status qrun_model_open(qrun_context *context, const qrun_model_params *params, qrun_model **model,
                                     qrun_error *error);
QRUN_API void qrun_model_destroy(qrun_model *model);

typedef struct qrun_model_info {
    size_t struct_size;
    const char *folder;      /* resolved */
    const char *hub_name;    /* "org/name@commit" where that is in the Hugging Face cache; else NULL */
    const char *family;      /* "llama", "gemma3" … */
    const char *quant;       /* of the linear layers as held: "nf4-dq" … */
    const char *head_format; /* "bf16", "int8" … */
    const char *dtype;       /* "bf16", "f16" or "f32" */
    int64_t n_parameters;
    int64_t n_quantized_parameters; /* in linear layers held in 4 or 8 bits */
    int64_t n_linear_parameters;    /* what every prompt token is multiplied by: linear layers but the head; of experts,
                                     * those that a token goes to */
    int64_t weight_bytes;
    int64_t step_weight_bytes; /* what a decode step of one sequence reads: not an embedding table that is not also the
                                * head, nor the experts that the token does not go to */
    int32_t n_layers, hidden_size, intermediate_size, n_heads, n_kv_heads, head_dim, vocab_size;
    int32_t context_tokens; /* the longest sequence the model is made for */
    int32_t sliding_window; /* of its windowed layers; 0: none */
    double load_seconds;
    bool has_tokenizer, has_chat_template;
    bool offloads_parameters; /* weight_bytes are then those of tables, norms and stages */
    bool shards_parameters;   /* the same; this rank's share is in host memory */
    /* The members of generation_config.json that transformers obeys and qrun does not, as "num_beams, guidance_scale";
     * NULL: none. */
    const char *not_obeyed;
    int64_t n_active_parameters; /* all but the experts that a token does not go to */
    int32_t n_experts, n_experts_per_token, expert_intermediate_size; /* of layers with experts; 0: there are none */
    const char *left_out; /* parts of the folder that text needs none of, as "model.visual, mtp"; NULL: none */
    const char
        *packed_as; /* what linear layers are decoded from while they are read: "gptq", "Q8_0" …; NULL: none are */
    const char *embedding_format; /* "bf16", "int8" … */
    bool offloads_experts;        /* weight_bytes are then without experts, but for the room of a layer's */
    bool computes_experts;        /* they are in host memory, and the processor computes them: without that room too */
    const char *expert_note;      /* of experts in host memory, which way and why, as "fetched: as `expert_compute`
                                   * says"; NULL: there are none */
} qrun_model_info;
#define QRUN_MODEL_INFO_INIT \
    { .struct_size = sizeof(qrun_model_info) }
QRUN_API qrun_status qrun_model_get_info(const qrun_model *model, qrun_model_info *info, qrun_error *error);

/* ---- Tokenizer and chat template --------------------------------------------------------------------------------- */

typedef struct qrun_tokenizer qrun_tokenizer;

/* Opens a folder's tokenizer.json and chat template; no other file of a model is needed. */
QRUN_API qrun_status qrun_tokenizer_open(qrun_context *context, const char *path, qrun_tokenizer **tokenizer,
                                         qrun_error *error);
QRUN_API void qrun_tokenizer_destroy(qrun_tokenizer *tokenizer);
/* The model's own, lent; NULL where the folder has none. */
QRUN_API const qrun_tokenizer *qrun_model_tokenizer(const qrun_model *model);

/* Token ids of text[0, n_bytes) in *ids (n_ids of them; qrun_free). add_special: what the model expects around a text
 * (BOS …); parse_special: the text of a special token becomes that token. Any bytes can be encoded. */
QRUN_API qrun_status qrun_tokenize(const qrun_tokenizer *tokenizer, const char *text, size_t n_bytes, bool add_special,
                                   bool parse_special, int32_t **ids, int64_t *n_ids, qrun_error *error);
/* The text of ids, NUL-terminated (qrun_free); *n_bytes without the NUL. */
QRUN_API qrun_status qrun_detokenize(const qrun_tokenizer *tokenizer, const int32_t *ids, int64_t n_ids,
                                     bool skip_special, char **text, size_t *n_bytes, qrun_error *error);
/* A token as its vocabulary spells it, lent, not NUL-terminated; NULL for an id outside the vocabulary. */
QRUN_API const char *qrun_token_text(const qrun_tokenizer *tokenizer, int32_t id, size_t *n_bytes);
/* The bytes that a token adds to a text that has begun (qrun_free): perhaps a part of a character. None (*n_bytes 0) of
 * a special token, and of an id outside the vocabulary. QRUN_ERROR_UNSUPPORTED where they depend on its neighbours. */
QRUN_API qrun_status qrun_token_bytes(const qrun_tokenizer *tokenizer, int32_t id, char **bytes, size_t *n_bytes,
                                      qrun_error *error);
QRUN_API int32_t qrun_tokenizer_vocab_size(const qrun_tokenizer *tokenizer);
/* One of "bos", "eos", "pad", "unk": its id, or −1. */
QRUN_API int32_t qrun_tokenizer_special_id(const qrun_tokenizer *tokenizer, const char *role);
QRUN_API bool qrun_tokenizer_has_chat_template(const qrun_tokenizer *tokenizer);
/* Renders a conversation: messages_json is a JSON array of {"role", "content", …}; tools_json (an array) and
 * arguments_json (an object: further template variables, such as {"enable_thinking": false}) may be NULL. Members of
 * a message that are null are left out. "reasoning" or "thinking" reaches templates that read "reasoning_content".
 * *text is NUL-terminated (qrun_free). */
QRUN_API qrun_status qrun_chat_render(const qrun_tokenizer *tokenizer, const char *messages_json,
                                      const char *tools_json, const char *arguments_json, bool add_generation_prompt,
                                      char **text, size_t *n_bytes, qrun_error *error);

/* ---- Adapters ---------------------------------------------------------------------------------------------------- */

typedef struct qrun_adapter qrun_adapter;

/* Opens a PEFT LoRA folder, or an id in the Hugging Face cache, for this model; it stays unmerged and is chosen per
 * request. `name` is what JSONL requests call it (NULL: the folder's last path component); names are unique within a
 * model. Sessions may be stepped meanwhile: none of their steps waits for more than one matrix's share of it. One
 * thread at a time opens and closes adapters of a model. */
QRUN_API qrun_status qrun_adapter_open(qrun_model *model, const char *path, const char *name, qrun_adapter **adapter,
                                       qrun_error *error);
/* Sessions may exist. QRUN_ERROR_BUSY while a request names it, and of an adapter that replaces whole modules while the
 * model has a session. */
QRUN_API qrun_status qrun_adapter_close(qrun_adapter *adapter, qrun_error *error);
QRUN_API const char *qrun_adapter_name(const qrun_adapter *adapter);

/* ---- Plans: memory, known before it is used ---------------------------------------------------------------------- */

typedef struct qrun_plan_entry {
    /* "weights", "adapters", "kv pages", "activations", "workspace", "tables" or "logits"; of a training run also
     * "gradients" and "optimizer". "states": of sequences, where layers carry one along. "context": what a GPU's driver
     * takes for the process. "host": kept in host memory, or on its way from there to the device. */
    const char *category;
    int64_t bytes; /* of the context −1: not known */
    bool is_apart; /* of "host" on a GPU: it is in the machine's memory and does not count against memory_bytes */
} qrun_plan_entry;

/* How a plan compares with the memory there is. */
typedef struct qrun_plan_info {
    size_t struct_size;
    bool fits;
    int64_t total_bytes;     /* of device memory, by the plan; if it does not fit, the least that is needed */
    int64_t budget_bytes;    /* what that may be: memory_bytes, or a share of what is free, the context included */
    int64_t available_bytes; /* device memory that is free now, before the weights are loaded */
    /* Of a session; 0 of a training run: */
    int32_t context_tokens; /* the longest sequence */
    int32_t max_sequences;  /* that run at once */
    int64_t pool_tokens;    /* that the K/V pool holds, of all sequences together */
    int32_t full_sequences; /* that run at once where each is as long as context_tokens */
    /* Of a training run, for one micro-batch of full rows; 0 of a session: */
    double flops;                /* of matrix products and attention: forward, recomputed and backward */
    int64_t copied_bytes;        /* to and from what is offloaded */
    int64_t update_copied_bytes; /* the same in the update that ends a step */
    int32_t tile_rows;           /* of recomputed layers, as chosen; 0: all rows at a time */
    /* Of a training run on several ranks (qrun_train_ranks), or of a session of a model that they share: */
    int32_t rank;         /* whose plan this is */
    int64_t sent_bytes;   /* that it sends to others in a step of grad_accum micro-batches, or for each token that a
                             session computes, with its logits */
    int64_t ring_bytes;   /* that it would send if gradients were summed and parameters gathered around a ring */
    int64_t n_parameters; /* of the model, with any adapter's left out */
    /* Of a session, as qrun_model_info.expert_note; empty: there is nothing to say. */
    char expert_note[192];
} qrun_plan_info;
#define QRUN_PLAN_INFO_INIT \
    { .struct_size = sizeof(qrun_plan_info) }

typedef enum qrun_kv {
    QRUN_KV_AUTO = 0, /* the type that the model computes in */
    QRUN_KV_BF16 = 1,
    QRUN_KV_INT8 = 2,
    QRUN_KV_F32 = 3,
    QRUN_KV_F16 = 4
} qrun_kv;

typedef struct qrun_session_params {
    size_t struct_size;
    int64_t memory_bytes;    /* budget of device memory for weights, session and context together; 0: fit the limits
                                below into what is free */
    int32_t max_sequences;   /* run at once; 0: 64 */
    int32_t max_step_tokens; /* tokens of one step, prompt chunks included; 0: 512 */
    int32_t context_tokens;  /* of a prompt, and of the tokens that are read; the pool has room for them, or the session
                                is refused; 0: the model's own, as far as memory allows. The last token of an answer is
                                not read: it may be one more */
    int64_t kv_tokens;       /* size of the K/V pool in tokens; 0: decided by the budget */
    qrun_kv kv;
    bool no_prefix_sharing;
    int64_t sequence_tokens;   /* how long sequences become, where that is known (qrun_request_measure): the pool gets
                                  pages for max_sequences of them and no more; 0: not known */
    int64_t max_waiting_bytes; /* host memory of the requests that wait for their start: about 400 bytes each, 4 a
                                  token of the prompt, and the grammar of a schema; 0: 1 GiB. QRUN_ERROR_FULL beyond it,
                                  but one may always wait */
    /* Drafts of the next tokens, which one step then checks: fewer steps, and the same answers to the bit. "ngram"
     * (NULL): from the text so far, where a step has room for them and they are right often enough. The folder of a
     * smaller model with the same tokenizer (QRUN_ERROR_ARGUMENT for another one): from that. "off": none. */
    const char *speculate;
    /* Kept prefixes: full K/V pages that leave the pool go to host memory, from there to files, and come back instead
     * of being computed, with the same bits. */
    int64_t prefix_cache_bytes; /* of host memory; QRUN_PREFIX_CACHE_RAM; 0: none */
    const char *cache_dir;      /* a folder for the files, made where it is missing, which other sessions may use at the
                                   same time; NULL: none */
    int64_t cache_dir_bytes;    /* of all files there at most; those not used for longest go first; 0: 8 GiB */
} qrun_session_params;
/* For prefix_cache_bytes: a quarter of the host memory that is free, or of memory_bytes on a CPU if that is less. */
#define QRUN_PREFIX_CACHE_RAM (-1)
#define QRUN_SESSION_PARAMS_INIT \
    { .struct_size = sizeof(qrun_session_params) }

/* Planning backwards: what is to be as large as memory allows. */
typedef enum qrun_fit {
    QRUN_FIT_CONTEXT = 0, /* the longest sequence in tokens: context_tokens of a session, seq_len of a run */
    QRUN_FIT_BATCH = 1,   /* sequences of that length at once: max_sequences, batch_size */
    QRUN_FIT_RANK = 2     /* of a run: rank */
} qrun_fit;

typedef struct qrun_fit_result {
    size_t struct_size;
    int64_t largest; /* fits, and the next larger one is refused or above the limit; 0: not even the smallest fits */
    int64_t limit;   /* the largest that is possible with any memory: the model's context, or qrun's own bound */
} qrun_fit_result;
#define QRUN_FIT_RESULT_INIT \
    { sizeof(qrun_fit_result), 0, 0 }

/* Models whose shape is known without a file: their names, such as "llama-3.1-8b", from index 0 on; NULL after the
 * last. With random_weights such a name is a model's path, unless there is a file of that name. */
QRUN_API const char *qrun_known_model(int32_t index);

/* What a session would take, without loading weights or allocating the memory. entries [*n_entries]; qrun_free. info
 * may be NULL. QRUN_ERROR_MEMORY, with what would help, when it does not fit: entries and info are those of the
 * smallest session of this kind then. */
QRUN_API qrun_status qrun_plan_session(qrun_context *context, const qrun_model_params *model_params,
                                       const qrun_session_params *session_params, qrun_plan_entry **entries,
                                       int32_t *n_entries, qrun_plan_info *info, qrun_error *error);

/* The largest session of this kind that fits into its budget, by qrun_plan_session: everything else is as in
 * session_params. */
QRUN_API qrun_status qrun_fit_session(qrun_context *context, const qrun_model_params *model_params,
                                      const qrun_session_params *session_params, qrun_fit what, qrun_fit_result *result,
                                      qrun_error *error);

/* What a folder holds, as JSON text (qrun_free). It has family, sizes, tensors by type, tokenizer, template and
 * quantisation, and what each way of holding the model would take. list_tensors adds every tensor. */
QRUN_API qrun_status qrun_folder_inspect(qrun_context *context, const char *path, bool list_tensors, char **json,
                                         qrun_error *error);

/* ---- Sessions: requests in, tokens out --------------------------------------------------------------------------- */

typedef struct qrun_session qrun_session;

QRUN_API qrun_status qrun_session_create(qrun_model *model, const qrun_session_params *params, qrun_session **session,
                                         qrun_error *error);
/* Cancels the requests that still run, without events. */
QRUN_API void qrun_session_destroy(qrun_session *session);

typedef enum qrun_event_type {
    QRUN_EVENT_TOKEN = 0,    /* one more token of a sample; its text may be empty while a character is incomplete */
    QRUN_EVENT_DONE = 1,     /* a sample has ended: finish_reason says why; the last one of the request has is_last */
    QRUN_EVENT_ERROR = 2,    /* the whole request failed after it was accepted: message and status say why; is_last is
                                set */
    QRUN_EVENT_PROMPT = 3,   /* a token of the prompt (prompt_logprobs): in order, before the first TOKEN, once for all
                                samples */
    QRUN_EVENT_EMBEDDING = 4 /* the pooled hidden states of the prompt (pooling) */
} qrun_event_type;

/* How the final hidden states of a prompt become one vector. */
typedef enum qrun_pooling {
    QRUN_POOLING_NONE = 0,
    QRUN_POOLING_LAST = 1, /* that of the last token */
    QRUN_POOLING_MEAN = 2  /* the mean over all tokens */
} qrun_pooling;

typedef struct qrun_top_logprob {
    int32_t token_id;
    float logprob;
} qrun_top_logprob;

/* Lent for the duration of the callback. */
typedef struct qrun_event {
    size_t struct_size;
    qrun_event_type type;
    uint64_t request; /* as qrun_session_submit returned it */
    int32_t sample;   /* 0 … n − 1 */
    bool is_last;     /* no further event for this request */
    int32_t token_id; /* TOKEN, PROMPT */
    const char *text; /* [text_bytes], not NUL-terminated. TOKEN: what can now be added to the answer, whole characters
                         only; DONE: what was held back until the end. A stop string never appears. PROMPT: what the
                         token adds to the prompt's text */
    size_t text_bytes;
    bool has_logprob; /* TOKEN: the request asked for logprobs; PROMPT: it is not the first token */
    float logprob;    /* has_logprob: log p of the token under the model's own distribution (before temperature and
                         penalties) */
    const qrun_top_logprob *top; /* TOKEN, PROMPT: [n_top], best first */
    int32_t n_top;
    const char *finish_reason; /* DONE: "stop" (an end token, a stop token or a stop text), "length", "cancelled" */
    const char *stop_text;     /* DONE: the one of `stop` that ended the sample; NULL: none did */
    const char *message;       /* ERROR */
    int32_t prompt_tokens;     /* TOKEN, DONE */
    int32_t cached_tokens;     /* TOKEN, DONE: how many of prompt_tokens were shared with an earlier prompt */
    int32_t completion_tokens; /* DONE */
    double queue_seconds;      /* DONE: from submission to the first step; to the first token; to the end */
    double first_token_seconds;
    double total_seconds;
    const float *embedding; /* EMBEDDING: [n_embedding], of length 1 */
    int32_t n_embedding;    /* the model's hidden size */
    qrun_status status;     /* ERROR. UNSUPPORTED: the schema has too many ways to read the answer */
} qrun_event;

typedef void (*qrun_event_fn)(void *user, const qrun_event *event);

/* How the value of an answer's form is written. */
typedef enum qrun_form_value {
    QRUN_FORM_JSON = 0,
    /* An object whose members are written between texts of the form, in the order of "properties": before_name, the
     * name, after_name, the value, after_value. The value of one whose schema says "type": "string" is the text itself,
     * and any other JSON. Of such a text the schema may say "enum" or "const", and nothing else. */
    QRUN_FORM_TAGGED = 1
} qrun_form_value;

/* A form of an answer: two texts, and a value between them. In the texts of a form the name of a special token is that
 * token. */
typedef struct qrun_answer_form {
    const char *name;   /* in messages; NULL: `answer_forms[its number]` */
    const char *before; /* NULL: nothing, as with `after` */
    const char *schema; /* of the value, as json_schema of qrun_request_params; NULL: any */
    const char *after;
    qrun_form_value value;
    /* Of QRUN_FORM_TAGGED. NULL: "<parameter=", ">\n" and "\n</parameter>\n". after_value ends a tag, as "</name>", and
     * no value that is a text has the end of a tag in it that after_value or `after` has. */
    const char *before_name, *after_name, *after_value;
} qrun_answer_form;

typedef struct qrun_request_params {
    size_t struct_size;
    /* The prompt: exactly one of prompt, token_ids, messages_json. */
    const char *prompt;
    size_t prompt_bytes;      /* 0: prompt is NUL-terminated */
    const int32_t *token_ids; /* [n_token_ids], used as they are */
    int64_t n_token_ids;
    const char *messages_json;   /* rendered with the chat template */
    const char *tools_json;      /* with messages_json; may be NULL */
    const char *template_json;   /* with messages_json: object of template arguments; may be NULL */
    bool no_special;             /* prompt: do not add BOS and the like */
    bool plain_text;             /* prompt: the text of special tokens stays text, and does not become these tokens */
    const qrun_adapter *adapter; /* NULL: the base model */
    /* Sampling. Penalties see prompt and answer (repetition) or the answer alone (presence, frequency). */
    float temperature;                         /* 0: greedy */
    int32_t top_k;                             /* 0, or -1: all */
    float top_p, min_p;                        /* 1 and 0: off */
    float repetition_penalty;                  /* 1: off */
    float presence_penalty, frequency_penalty; /* 0: off */
    /* A JSON object of further rules for the next token, with the members and the meaning of generation_config.json:
     * suppress_tokens, begin_suppress_tokens, bad_words_ids, sequence_bias, no_repeat_ngram_size, min_length,
     * min_new_tokens, forced_bos_token_id, forced_eos_token_id, exponential_decay_length_penalty,
     * encoder_no_repeat_ngram_size and encoder_repetition_penalty (of the prompt), typical_p, epsilon_cutoff and
     * eta_cutoff. NULL: none. An id that is outside the vocabulary is refused, but suppress_tokens and
     * begin_suppress_tokens of the model's own file may have some. A request whose rules leave no token fails. */
    const char *generation_json;
    /* A JSON Schema, as text: every token keeps the answer the beginning of a JSON value that the schema accepts, and
     * the answer ends when the value does, whatever min_tokens says. One that max_tokens or a text of `stop` cuts short
     * ends with "length" or "stop" before. {"type": "object"} is any object. What cannot be held is refused with its
     * place. Not with ignore_eos. docs/generate.md lists the keywords. NULL: free text. */
    const char *json_schema;
    /* In place of json_schema: the answer has one of these forms, as calls of tools are written, for example. The same
     * holds for it. */
    const qrun_answer_form *answer_forms; /* [n_answer_forms] */
    int32_t n_answer_forms;               /* up to 256 */
    bool has_seed; /* else the seed is made from the request itself, so that equal requests agree */
    uint64_t seed;
    const char *const *stop; /* [n_stop] texts that end the answer */
    int32_t n_stop;
    const int32_t *stop_token_ids; /* [n_stop_token_ids] tokens that end the answer, as the model's end tokens do, and
                                      with ignore_eos too. The answer does not have them */
    int32_t n_stop_token_ids;      /* up to 64 */
    int32_t min_tokens; /* of the answer, before which no end token and none of stop_token_ids comes, as min_new_tokens
                           of generation_json; the larger of both counts. A text of `stop` may end it before. 0: none */
    int32_t max_tokens; /* 0: as far as max_length and the context allow */
    int32_t max_length; /* of prompt and answer together, where max_tokens is 0; 0: as far as the context allows */
    int32_t n;          /* samples; 0 and 1: one */
    int32_t logprobs;   /* −1: none; k ≥ 0: of the token and of the k best (at most 20) */
    bool ignore_eos;
    /* Of the prompt: */
    int32_t prompt_logprobs; /* −1: none; k ≥ 0: a PROMPT event for every token, with the k best of its place. All of
                                the prompt is computed, nothing of it is taken from an earlier one */
    bool prompt_only;        /* generate nothing: DONE ("length") follows the prompt. Without n */
    qrun_pooling pooling;    /* an EMBEDDING event; needs prompt_only, and no prompt_logprobs */
    qrun_event_fn on_event;  /* called from the thread that steps the session; may submit and cancel */
    void *user;
} qrun_request_params;
#define QRUN_REQUEST_PARAMS_INIT                                                                                    \
    {                                                                                                               \
        .struct_size = sizeof(qrun_request_params), .temperature = 0.0F, .top_p = 1.0F, .repetition_penalty = 1.0F, \
        .n = 1, .logprobs = -1, .prompt_logprobs = -1                                                               \
    }

/* Copies the model's generation_config.json into params: temperature, top_k, top_p, min_p, repetition_penalty,
 * max_tokens (max_new_tokens), max_length and generation_json, which is lent by the model. */
QRUN_API qrun_status qrun_request_params_from_model(const qrun_model *model, qrun_request_params *params,
                                                    qrun_error *error);

/* Accepts a request (everything it points at is copied) or refuses it and says why: it could never fit, for example, or
 * the queue is full (QRUN_ERROR_FULL). *request (may be NULL) is its number, 1 and up. Thread-safe. However many wait,
 * submitting, cancelling and a step's choice take logarithmic time. */
QRUN_API qrun_status qrun_session_submit(qrun_session *session, const qrun_request_params *params, uint64_t *request,
                                         qrun_error *error);

/* The same for a JSON object such as one line of a JSONL file: "prompt" (text) or "token_ids" or "messages" ("tools",
 * "template_args"), "adapter" (name), and temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty,
 * frequency_penalty, seed, stop (text or array), stop_token_ids, min_tokens, max_tokens, max_length, n, logprobs,
 * ignore_eos, prompt_logprobs, prompt_only, response_format ({"type": "json_schema", "json_schema": {"schema": {…}}},
 * or "json_object", or "text"), and the members of generation_json. What the object does not say comes from
 * `defaults` (its callbacks too; NULL: the defaults of QRUN_REQUEST_PARAMS_INIT). With `chat`, a "prompt" is wrapped as
 * a user message (after system_prompt, where not NULL). An unknown key is refused. `what` names the text in messages
 * ("line 12"). */
QRUN_API qrun_status qrun_session_submit_json(qrun_session *session, const char *json, size_t n_bytes, const char *what,
                                              const qrun_request_params *defaults, bool chat, const char *system_prompt,
                                              uint64_t *request, qrun_error *error);

/* Ends a request: its samples finish with "cancelled", in the next step if it runs, else in one of the next.
 * QRUN_ERROR_NOT_FOUND when it is over already. Thread-safe. */
QRUN_API qrun_status qrun_session_cancel(qrun_session *session, uint64_t request, qrun_error *error);

/* Runs one batch step: takes what was submitted, computes, calls back. *has_work tells whether anything is left. */
QRUN_API qrun_status qrun_session_step(qrun_session *session, bool *has_work, qrun_error *error);
/* Steps until nothing is left. */
QRUN_API qrun_status qrun_session_run(qrun_session *session, qrun_error *error);
/* A descriptor that polls readable after a submission or cancellation until the next step; lent. */
QRUN_API int qrun_session_event_descriptor(const qrun_session *session);

/* What a request takes of a session, found as submitting would. A session that is made for known requests needs
 * max_sequences, max_step_tokens and sequence_tokens for no more than theirs. */
typedef struct qrun_request_size {
    size_t struct_size;
    int64_t prompt_tokens;
    int64_t sequence_tokens; /* of prompt and answer that have K/V, at most; 0: as far as the context allows */
    int32_t n_sequences;
} qrun_request_size;
#define QRUN_REQUEST_SIZE_INIT \
    { .struct_size = sizeof(qrun_request_size) }
QRUN_API qrun_status qrun_request_measure(const qrun_model *model, const qrun_request_params *params,
                                          qrun_request_size *size, qrun_error *error);
/* The same for JSON, as qrun_session_submit_json takes it. */
QRUN_API qrun_status qrun_request_measure_json(qrun_model *model, const char *json, size_t n_bytes, const char *what,
                                               const qrun_request_params *defaults, bool chat,
                                               const char *system_prompt, qrun_request_size *size, qrun_error *error);

typedef struct qrun_session_stats {
    size_t struct_size;
    int32_t n_waiting, n_running; /* samples */
    int64_t waiting_bytes;        /* now, of max_waiting_bytes */
    int64_t n_finished, n_preemptions;
    int64_t page_tokens;             /* tokens a page holds */
    int64_t pages_total, pages_used; /* used: referenced by a sequence; the rest is free or kept for reuse */
    int64_t pages_shared;            /* of those used: by several sequences */
    int64_t pages_cached;            /* of the rest: kept for reuse */
    int64_t pages_peak;
    int64_t prompt_tokens, cached_prompt_tokens, completion_tokens; /* so far */
    int64_t restored_prompt_tokens; /* that came back from prefix_cache_bytes or cache_dir, after preemption too */
    int64_t draft_tokens, accepted_draft_tokens; /* speculate: computed, and found to be right */
    int64_t steps, replayed_steps;               /* replayed: decode steps that a GPU replayed from a recording */
    int64_t ahead_steps;      /* of the steps: given to a GPU before the tokens of the one before were read */
    char replay_failure[128]; /* why steps are no longer recorded, if recording failed; else empty */
    char cache_note[192];     /* the first file of cache_dir that was not used or written, and why; else empty */
    double step_seconds;      /* spent inside steps */
    double prefill_seconds;   /* of these, in steps that carried prompt tokens */
    int64_t context_tokens;   /* longest sequence this session accepts */
    int64_t planned_bytes, peak_bytes; /* device memory of context, model and session: by the plan, and as measured */
    int32_t max_sequences;             /* samples that run at once */
} qrun_session_stats;
#define QRUN_SESSION_STATS_INIT \
    { .struct_size = sizeof(qrun_session_stats) }
/* As of the last step; requests that have come since count as waiting. */
QRUN_API qrun_status qrun_session_get_stats(qrun_session *session, qrun_session_stats *stats, qrun_error *error);
/* Writes the full K/V pages that the session holds to cache_dir, for later sessions; what cannot be written is only
 * noted. Not while another thread steps the session (QRUN_ERROR_BUSY); QRUN_ERROR_ARGUMENT without a cache_dir. */
QRUN_API qrun_status qrun_session_keep_prefixes(qrun_session *session, qrun_error *error);
/* The session's plan by category, the model's weights included; entries [*n_entries], lent. */
QRUN_API const qrun_plan_entry *qrun_session_plan(const qrun_session *session, int32_t *n_entries);

/* ---- Perplexity -------------------------------------------------------------------------------------------------- */

typedef struct qrun_eval_params {
    size_t struct_size;
    int32_t window_tokens; /* the text is cut into windows of this many tokens, each read from its start (with BOS where
                              the tokenizer adds one); 0: the smaller of 2,048 and the model's context */
    int64_t max_tokens;    /* stop after this many scored tokens; 0: the whole text */
    const qrun_adapter *adapter;
    qrun_progress_fn progress; /* in tokens here */
    void *progress_user;
} qrun_eval_params;
#define QRUN_EVAL_PARAMS_INIT \
    { .struct_size = sizeof(qrun_eval_params) }

typedef struct qrun_eval_result {
    size_t struct_size;
    int64_t n_tokens;  /* scored: every token of a window but its first */
    double mean_nll;   /* natural logarithm, per token */
    double perplexity; /* exp(mean_nll) */
    double seconds;
} qrun_eval_result;
#define QRUN_EVAL_RESULT_INIT \
    { .struct_size = sizeof(qrun_eval_result) }
/* How well the model predicts text[0, n_bytes). Uses the session's memory; it must be idle (QRUN_ERROR_BUSY). */
QRUN_API qrun_status qrun_session_eval(qrun_session *session, const char *text, size_t n_bytes,
                                       const qrun_eval_params *params, qrun_eval_result *result, qrun_error *error);
/* The same for token ids, scored as one window from its first token. */
QRUN_API qrun_status qrun_session_eval_tokens(qrun_session *session, const int32_t *ids, int64_t n_ids,
                                              const qrun_eval_params *params, qrun_eval_result *result,
                                              qrun_error *error);

/* ---- Fine-tuning ------------------------------------------------------------------------------------------------- */

typedef struct qrun_trainer qrun_trainer;

typedef enum qrun_optimizer {
    QRUN_OPTIMIZER_ADAMW = 0,
    QRUN_OPTIMIZER_ADAMW8BIT = 1, /* states in 8 bits, as bitsandbytes; those of embeddings in 32 */
    QRUN_OPTIMIZER_ADAFACTOR = 2,
    QRUN_OPTIMIZER_SGD = 3 /* with momentum */
} qrun_optimizer;

typedef enum qrun_schedule {
    QRUN_SCHEDULE_LINEAR = 0,
    QRUN_SCHEDULE_COSINE = 1,
    QRUN_SCHEDULE_CONSTANT = 2
} qrun_schedule;

typedef enum qrun_batching {
    QRUN_BATCHING_PACK = 0, /* rows of seq_len tokens with several examples in each; batch_size rows at a time */
    QRUN_BATCHING_GROUP = 1 /* examples of like length together, as many as batch_tokens has room for */
} qrun_batching;

/* What is learned. The last three are of pairs of answers, of which one was preferred (`chosen`, `rejected`). */
typedef enum qrun_objective {
    QRUN_OBJECTIVE_SFT = 0,  /* to write what the examples have: the loss is −log p of their tokens */
    QRUN_OBJECTIVE_DPO = 1,  /* to make the chosen answer likelier than the rejected one, next to what the model as it
                                was makes of them: without an adapter, or with the one that the run begins from
                                (Rafailov et al. 2023; TRL's "sigmoid") */
    QRUN_OBJECTIVE_ORPO = 2, /* to write the chosen answers, and to raise their odds over the rejected ones (Hong et
                                al. 2024) */
    QRUN_OBJECTIVE_SIMPO = 3 /* as DPO by the mean log p of a token and with a margin, instead of next to a reference
                                (Meng et al. 2024) */
} qrun_objective;

typedef struct qrun_train_metrics qrun_train_metrics;
/* After every step and every evaluation, from the thread that made the call; metrics are lent. */
typedef void (*qrun_train_metrics_fn)(void *user, const qrun_train_metrics *metrics);

/* How examples lie in a file of training data. */
typedef enum qrun_file_format {
    QRUN_FORMAT_AUTO = 0, /* by the file's name: .csv, .tsv, .txt and .md (text), with .gz or .zst after it or not; JSON
                             for every other name */
    QRUN_FORMAT_JSON = 1, /* JSON Lines or one JSON array */
    QRUN_FORMAT_CSV = 2,  /* a table whose first record names the columns (RFC 4180) */
    QRUN_FORMAT_TSV = 3,
    QRUN_FORMAT_TEXT = 4,      /* one text, cut into rows of seq_len tokens that follow each other */
    QRUN_FORMAT_PARAGRAPHS = 5 /* each paragraph is a text of its own; empty lines are between them */
} qrun_file_format;

/* The parameters of a run, in groups. 0, NULL and false are the defaults everywhere; where 0 means another value, the
 * field's comment names it. A value outside its range is refused (QRUN_ERROR_ARGUMENT). */

typedef struct qrun_train_data {
    /* Files, pipes ("-": stdin; read once, to the end), or folders of files with a `format`. What one path names has
     * one format: messages, prompt and completion, alpaca, question and answer, input and output, ShareGPT
     * conversations, or text; and where pairs of answers are learned, prompt, chosen and rejected, as texts or
     * messages. A file may be in gzip or Zstandard. At least one is required. An epoch has every example of every file
     * once, in one random order, unless there are weights. */
    const char *const *train_data; /* [n_train_data] */
    int32_t n_train_data;          /* up to 1,024 */
    qrun_file_format format;       /* of these files and of eval_data */
    /* Names that the members of examples, or the columns of a table, have in all these files:
     * "prompt=question,completion=answer", ours first. Only what is named is read then. NULL: none. */
    const char *columns;
    const char *date; /* the day that chat templates write, such as "2026-11-22"; NULL: that on which the run begins */
    /* Weights of the files, in their order: a file's share of an epoch's examples is its weight over their sum. An
     * epoch is then as short as it can be with every example in it: the file with the most examples for its weight
     * gives each once, the others repeat theirs. NULL: none. n_data_weights: 0, or n_train_data. Each above 0, up to
     * 1e6. */
    const double *data_weights;
    int32_t n_data_weights;
    const char *const *eval_data; /* [n_eval_data]: files of examples to evaluate on, in the same formats; NULL: none,
                                     or eval_split */
    int32_t n_eval_data;          /* up to 1,024 */
    double eval_split;            /* without eval_data: the share of train_data set aside for evaluation; 0 to 0.9 */
    bool skip_bad;                /* skip and count lines that are not valid examples, instead of refusing the file */
    const char *cache_folder;     /* for tokenised data; NULL: inside out */
    bool random_tokens; /* for measuring: full rows of random tokens instead of train_data, an epoch of one step.
                           train_data and out are not read, and nothing can be saved */
} qrun_train_data;

typedef struct qrun_train_lora {
    const char *target_modules; /* "all" (NULL), "attn", "mlp", "none", or module names: "q_proj,v_proj" */
    int32_t rank;               /* 1 to 512; 0: 16 */
    float alpha;                /* the update is scaled by alpha / rank; up to 1e6; 0: twice the rank */
    bool rslora;                /* scale by alpha / sqrt(rank) instead */
    bool dora;                  /* DoRA: a trained magnitude for every output of an adapted layer */
    double lora_dropout;        /* share of the adapters' inputs dropped in training; 0 (none) to 0.99 */
    const char *adapter; /* a PEFT LoRA folder to start from instead of a new adapter; rank, alpha, rslora, dora and
                            target_modules default to the adapter's. NULL: none */
    /* Trained whole in addition to LoRA: "lm_head,embed_tokens"; NULL: none. Data may have tokens of the tokenizer that
     * the model has no row for. If both tables are named here, or with `full`, the tables then get rows for all of the
     * tokenizer's tokens; otherwise such data is refused. qrun_model_info's vocab_size counts the new rows while the
     * trainer lives, and for good after full training. */
    const char *modules_to_save;
    /* LoRA on the experts of a mixture too, as PEFT's target_parameters: "experts" (both), or their names, such as
     * "mlp.experts.gate_up_proj,mlp.experts.down_proj". Without lora_dropout and dora, as in PEFT. NULL: none, or the
     * adapter's. */
    const char *target_parameters;
    /* LoRA on these layers alone, counted from 0, as PEFT's layers_to_transform: "0,1,8-15". NULL: all, or the
     * adapter's. */
    const char *layers_to_transform;
} qrun_train_lora;

typedef struct qrun_train_weights {
    bool full;                 /* train every weight instead of an adapter, of a model opened as trainable */
    bool init_random;          /* full: start from random weights, as the model family initialises them */
    double init_embedding_std; /* init_random: standard deviation of the embeddings, up to 100; 0: that of a matrix */
} qrun_train_weights;

typedef struct qrun_train_preference {
    qrun_objective objective;
    double beta; /* DPO, SIMPO: the factor of differences in the logistic function; ORPO: the weight of the odds;
                    up to 1e6; 0: 0.1, and 2 with SIMPO */
    double target_margin; /* SIMPO: what the chosen answer's beta-fold mean should be ahead by; up to 1e6; 0: half of
                             beta */
} qrun_train_preference;

typedef struct qrun_train_optimization {
    qrun_optimizer optimizer;
    qrun_schedule schedule;   /* of the learning rate, after warmup */
    double learning_rate;     /* the highest, up to 100; 0: 2e-4; full 2e-5, and with init_random 1e-3; with pairs of
                                 answers 1e-5; full 1e-6 */
    double warmup;            /* below 1: share of all steps; else steps; up to 1e9 */
    double weight_decay;      /* of everything but norms and biases, as the Hugging Face Trainer does it; 0 to 1 */
    bool decay_all;           /* of norms and biases too */
    double loraplus_lr_ratio; /* LoRA+: rate of B and of vectors (DoRA's magnitudes) over that of A; up to 1e6; 0: 1 */
    double max_grad_norm;     /* scale gradients with a larger norm; 0: 1.0; negative: no clipping */
    /* The factor of the loss, which gradients are divided by again in F32: small ones do not become zero on their way.
     * 1 to 2^32: constant, where 1 is none. QRUN_AUTO: dynamic, by the rule of torch's GradScaler, but never below 1.
     * 0: dynamic where the model computes in F16, else 1. A step whose gradients overflow at a factor above 1 is
     * skipped, and is no error. */
    int64_t loss_scale;
    int64_t loss_scale_initial; /* dynamic: that it begins with, 1 to 2^32; 0: 65536 */
    double loss_scale_growth;   /* dynamic: what it is multiplied by after a window of steps, 1 to 1024; 0: 2 */
    double loss_scale_backoff;  /* dynamic: what an overflow multiplies it by, below 1; 0: 0.5 */
    int32_t loss_scale_window;  /* dynamic: steps in a row without an overflow; up to 1e9; 0: 2000 */
} qrun_train_optimization;

/* In place of a number: as large as the memory of the run allows, or decided during the run. */
#define QRUN_AUTO (-1)

typedef struct qrun_train_batches {
    int32_t seq_len;        /* tokens of the longest example (a pair: of both answers with their prompts together), and
                               of a packed row; 2 (a pair: 4) to the model's context;
                               0: 1,024, or the model's context where that is smaller; QRUN_AUTO: the longest example,
                               as far as memory allows */
    qrun_batching batching; /* how examples share a micro-batch; an example never attends to another */
    int32_t batch_size;     /* rows of seq_len in a micro-batch, examples packed into them; 1 to 4,096; 0: 1;
                               QRUN_AUTO: as many as memory allows, and no more than an epoch has for a micro-batch */
    int64_t batch_tokens;   /* GROUP: the most tokens of a micro-batch; 0: batch_size times seq_len */
    int32_t grad_accum;     /* micro-batches of a step; 1 to 2^20; 0: 1 */
    int32_t grad_sums;      /* sums that a step's gradients are added up in, each of micro-batches that are neighbours,
                               before these are added in a tree; a power of two, at most 1,024 and grad_accum; 0: 1.
                               The result's bits depend on it. Where the number of ranks divides it, each rank sends one
                               sum in a step */
    double epochs;          /* up to 1e6; 0: 1; max_steps wins */
    int64_t max_steps;      /* up to 1e12; 0: by epochs */
    uint64_t seed;          /* of the order of the data, the new weights and dropout */
} qrun_train_batches;

typedef struct qrun_train_memory {
    int64_t memory_bytes;      /* budget of device memory for everything, the context included; 0: what is free */
    const char *checkpointing; /* of activations: "auto" (NULL), "none", "full", "every:N", "attn", "mlp" */
    bool offload_optimizer;    /* optimizer states in host memory, copied to the device in pieces during the update */
    bool offload_gradients;    /* of `full`: gradients leave for host memory layer by layer of the backward pass. F32
                                  weights and optimizer states are there too: the processor updates, and sends back
                                  what the model computes with. Needed for offload_parameters with `full` */
    bool offload_activations;  /* the inputs of recomputed layers (checkpointing full, every:N, auto) in host memory:
                                  copied there after the forward pass, fetched ahead of the backward pass */
    int32_t tile_rows; /* rows that recomputed layers (checkpointing full or auto) have of all but attention at a
                          time; 1 to 2^20. 0 or QRUN_AUTO: all, or where that does not fit the most that do, of
                          128, 256 … 8,192 */
} qrun_train_memory;

typedef struct qrun_train_evaluation {
    int64_t eval_every;              /* steps, up to 1e12; 0: only at the end. Needs examples to evaluate on */
    int32_t early_stopping_patience; /* stop after this many evaluations in a row that did not improve on the best by
                                        more than the threshold; 0: never. Needs eval_every */
    double early_stopping_threshold; /* 0 to 1e9, in units of the loss */
    bool load_best; /* qrun_trainer_run exports the parameters of the best evaluation, not the last ones; early
                       stopping implies it. As load_best_model_at_end of the Hugging Face Trainer */
} qrun_train_evaluation;

typedef struct qrun_train_saving {
    const char *out;    /* the adapter's folder, or the trained model's; checkpoints go inside. Required */
    int64_t save_every; /* steps between checkpoints, up to 1e12; 0: only at the end */
    int32_t keep; /* how many of the last checkpoints stay, up to 1e6; 0: 2. That of the best evaluation stays too */
    bool restart; /* begin again: the first checkpoint replaces those in out; otherwise training resumes from the last
                     one. Folders there that are not qrun's stay in either case */
} qrun_train_saving;

typedef struct qrun_train_callbacks {
    qrun_progress_fn progress; /* bytes of the data while they are read and tokenised; examples during an evaluation */
    void *progress_user;
    qrun_train_metrics_fn on_metrics;
    void *metrics_user;
} qrun_train_callbacks;

/* Of a run on several ranks (qrun_context_params). Its result does not depend on them. */
typedef struct qrun_train_ranks {
    int32_t zero;      /* ZeRO: 1: each rank holds the optimizer states of a share of the parameters, updates it and
                          sends it to the others. 2: gradients too go to the rank whose share they are of, layer by
                          layer of the backward pass, and no rank holds those of all layers. 3: the weights too are
                          shared out, for which the model is opened with shard_parameters. 0: each has all */
    int32_t n_ranks;   /* for qrun_plan_training: how many ranks to plan for, up to 1,024; 0: one. A trainer has those
                          that were launched, and refuses another number */
    int32_t plan_rank; /* of these, whose plan it is; QRUN_AUTO: that of the one that needs the most */
} qrun_train_ranks;

typedef struct qrun_train_params {
    size_t struct_size;
    qrun_train_data data;
    qrun_train_lora lora;
    qrun_train_weights weights; /* instead of lora: full fine-tuning */
    qrun_train_preference preference;
    qrun_train_optimization optimization;
    qrun_train_batches batches;
    qrun_train_memory memory;
    qrun_train_evaluation evaluation;
    qrun_train_saving saving;
    qrun_train_callbacks callbacks;
    qrun_train_ranks ranks;
} qrun_train_params;
#define QRUN_TRAIN_PARAMS_INIT \
    { .struct_size = sizeof(qrun_train_params) }

/* Checks params before a model is loaded: QRUN_ERROR_ARGUMENT for a value outside its range and for fields that do not
 * go together. qrun_trainer_create checks the same, and what depends on model and data. */
QRUN_API qrun_status qrun_train_params_check(const qrun_train_params *params, qrun_error *error);

/* A file of train_data. */
typedef struct qrun_train_file {
    const char *path;
    const char *data_format;  /* "messages", "prompt/completion", "prompt/completion messages", "alpaca", "text",
                                 "question/answer", "input/output", "sharegpt", "preference",
                                 "preference messages" */
    int64_t n_examples;       /* to train on, without those set aside for evaluation */
    int64_t n_epoch_examples; /* of an epoch; more than n_examples where data_weights repeat them */
    /* Names of members that are not read, unless the chat template reads them, and of tools, calls and thoughts that it
     * leaves out: "mood", "likes"; "": there are none. unknown_line: of the first. */
    const char *unknown_members;
    int64_t unknown_line;
} qrun_train_file;

typedef struct qrun_train_info {
    size_t struct_size;
    const qrun_train_file *files; /* [n_files]: the train_data. Lent */
    int32_t n_files;
    const char *data_format; /* of the first file */
    int64_t n_examples, n_eval_examples, n_dropped, n_truncated, n_bad_lines;
    const char *first_bad; /* why the first of n_bad_lines was skipped, with its position; "": no line was */
    int64_t n_tokens, n_target_tokens; /* of an epoch; with data_weights, of the first one */
    int64_t n_trainable;               /* parameters */
    int64_t total_steps, first_step;   /* first_step > 1 after a resume */
    /* Where a resumed run had fewer steps in all, it is extended, and the schedule is that of the longer run. The two
     * rates are that of the last step as it was, and that of the next one. Steps 0: it is not extended. */
    int64_t earlier_total_steps;
    double earlier_learning_rate, next_learning_rate;
    int64_t best_step;    /* the step after which the evaluation was best; 0: no evaluation yet */
    double best_loss;     /* of it */
    int32_t n_not_better; /* evaluations in a row, up to now, without an improvement; early stopping counts them */
    bool stopped_early;
    const char *checkpointing;                   /* as chosen */
    int32_t tile_rows;                           /* of recomputed layers, as chosen; 0: all rows at a time */
    int64_t planned_bytes, peak_bytes;           /* device memory, the context's included */
    int64_t planned_host_bytes, peak_host_bytes; /* host memory where it is separate (on a GPU); else 0 */
    double flops_per_token;  /* operations of matrix products and attention for a token of a full row: forward,
                                recomputed and backward. A multiply-add counts 2; frozen weights have no gradient */
    int64_t step_sent_bytes; /* that this rank sends to others in a step with grad_accum micro-batches, by the plan */
    int64_t sent_bytes;      /* that it has sent so far, as counted, whatever for */
    int64_t n_replans;       /* by qrun_trainer_replan */
    const char *replanned; /* a line about the last of them: what the run takes since, and where it continued; "": none.
                              Lent */
} qrun_train_info;
#define QRUN_TRAIN_INFO_INIT \
    { .struct_size = sizeof(qrun_train_info) }

/* How far pairs of answers have been learned: means over them. */
typedef struct qrun_rewards {
    int64_t n_pairs;
    double chosen;   /* of the chosen answers: beta times what the objective compares */
    double rejected; /* of the rejected answers */
    double margin;   /* chosen − rejected */
    double accuracy; /* share of pairs whose chosen answer has the higher reward */
} qrun_rewards;

struct qrun_train_metrics {
    size_t struct_size;
    bool is_evaluation; /* for on_metrics: loss, seconds and the tokens are those of an evaluation after the step */
    int64_t step;       /* 1 … */
    double epoch;
    double loss; /* mean over the step's target tokens, or its pairs, before the update */
    double learning_rate;
    double grad_norm;      /* before clipping */
    double loss_scale;     /* the factor on the loss for this step's gradients; 0: the run has none */
    bool skipped;          /* loss or gradient was not finite: parameters unchanged */
    const char *nonfinite; /* if skipped, the first tensor whose gradient was not finite; NULL: none, or overflowed.
                              Lent until the next step */
    bool overflowed;       /* skipped because the loss scale may have been too large; a dynamic one is lower now. Not an
                              error */
    int64_t n_tokens, n_target_tokens; /* of this step */
    qrun_rewards rewards;              /* with pairs of answers; else all 0 */
    double seconds;
    qrun_phases phases; /* with a timeline; else, and of evaluations, all 0 */
    int64_t n_skipped;  /* steps of the run so far that were skipped, for whatever reason, this one included */
};
#define QRUN_TRAIN_METRICS_INIT \
    { .struct_size = sizeof(qrun_train_metrics) }

/* Reads and tokenises the data, plans the memory and refuses what does not fit. Resumes from the last checkpoint in
 * `out`, if there is one (QRUN_ERROR_INPUT if it was written with other options). More steps or epochs than it was
 * written with extend the run. The model must not have sessions. */
QRUN_API qrun_status qrun_trainer_create(qrun_model *model, const qrun_train_params *params, qrun_trainer **trainer,
                                         qrun_error *error);
QRUN_API void qrun_trainer_destroy(qrun_trainer *trainer);
QRUN_API qrun_status qrun_trainer_get_info(const qrun_trainer *trainer, qrun_train_info *info, qrun_error *error);
/* Puts into params, which the trainer was made from, what they left to the defaults: other runs with them, on any day,
 * give the same result. What it adds is lent from the trainer. */
QRUN_API qrun_status qrun_trainer_settle(const qrun_trainer *trainer, qrun_train_params *params, qrun_error *error);
/* The run's plan by category, as it is now (qrun_trainer_replan); entries [*n_entries], lent. */
QRUN_API const qrun_plan_entry *qrun_trainer_plan(const qrun_trainer *trainer, int32_t *n_entries);

/* What a run would take, without loading weights, reading data or allocating the memory. The params' data and out are
 * not read, so rows for tokens that only the data have are not counted. The caller releases entries [*n_entries] with
 * qrun_free, and *checkpointing too: what "auto" chose, as in qrun_train_info. Pointer and info may be NULL.
 * QRUN_ERROR_MEMORY, with what would fit, when the budget (memory_bytes, or what is free) is too small: entries and
 * info are those of the run that keeps the fewest activations then. */
QRUN_API qrun_status qrun_plan_training(qrun_context *context, const qrun_model_params *model_params,
                                        const qrun_train_params *params, qrun_plan_entry **entries, int32_t *n_entries,
                                        char **checkpointing, qrun_plan_info *info, qrun_error *error);

/* The largest run of this kind that fits into its budget, by qrun_plan_training: everything else is as in params. */
QRUN_API qrun_status qrun_fit_training(qrun_context *context, const qrun_model_params *model_params,
                                       const qrun_train_params *params, qrun_fit what, qrun_fit_result *result,
                                       qrun_error *error);

/* An example as the model is trained on it, with its target tokens between «…» (qrun_free). */
QRUN_API qrun_status qrun_trainer_show_example(const qrun_trainer *trainer, int64_t example, char **text,
                                               qrun_error *error);

/* Runs everything that is left: steps, evaluations, checkpoints (every save_every steps, after the best
 * evaluation so far, and at the end), and the adapter in `out`. After qrun_trainer_cancel it saves a checkpoint and
 * returns QRUN_ERROR_CANCELLED. A rank other than 0 follows rank 0 instead, until that destroys its trainer: it
 * computes its share, writes nothing, and makes none of the calls below. They are for programs that have a loop of
 * their own:
 *
 *     for (qrun_train_action next; (next = qrun_trainer_next(trainer)) != QRUN_TRAIN_DONE;)
 *         next == QRUN_TRAIN_STEP ? qrun_trainer_step(trainer, &metrics, &done, &error)
 *                                 : qrun_trainer_evaluate(trainer, &loss, &error); */
QRUN_API qrun_status qrun_trainer_run(qrun_trainer *trainer, qrun_error *error);

/* Ends the step or evaluation that runs now, or else the next one, with QRUN_ERROR_CANCELLED. It then counts as not
 * begun, so the trainer can save and continue. Call it from any thread or from a signal handler. While the data is read
 * there is no trainer yet, and `progress` cancels. */
QRUN_API void qrun_trainer_cancel(qrun_trainer *trainer);

typedef enum qrun_train_action {
    QRUN_TRAIN_STEP = 0,
    QRUN_TRAIN_EVALUATE = 1, /* an evaluation is due: eval_every says so, or the last step is done */
    QRUN_TRAIN_DONE = 2      /* the last step is done, or early stopping has ended the run */
} qrun_train_action;
/* What comes next. Also after a resume: an evaluation that was due when the run was stopped is still due. */
QRUN_API qrun_train_action qrun_trainer_next(const qrun_trainer *trainer);

/* Runs one step; *done when it was the last. */
QRUN_API qrun_status qrun_trainer_step(qrun_trainer *trainer, qrun_train_metrics *metrics, bool *done,
                                       qrun_error *error);

/* Mean loss per target token, or pair, of the evaluation examples. QRUN_ERROR_ARGUMENT when there are none. Where it is
 * the best so far (best_step of qrun_train_info), save a checkpoint: qrun_trainer_load_best takes the parameters from
 * there. */
QRUN_API qrun_status qrun_trainer_evaluate(qrun_trainer *trainer, double *loss, qrun_error *error);

/* Writes a checkpoint (out/checkpoint-<step>) from which training resumes to the bit; whole or not at all. */
QRUN_API qrun_status qrun_trainer_save(qrun_trainer *trainer, qrun_error *error);

/* After a call on the trainer has failed with QRUN_ERROR_MEMORY, because something else has taken memory since the run
 * began: saves a checkpoint of the last finished step, releases what can be made again, plans the rest of the run for
 * what is there now, and continues. Layers may be recomputed that were kept, in tiles, and what was on a GPU may go to
 * host memory: all of it without changing a bit of the result. Where no step is finished in between, each time the run
 * is planned to take less.
 *
 * The next step is then first_step of qrun_train_info. It is an earlier one where the failure has interrupted an
 * update: steps since the last checkpoint are taken again, and their metrics told again. With QRUN_ERROR_MEMORY not
 * even the least plan fits (or there are several ranks, which cannot be planned anew). The message says what is needed
 * and what is saved, and the trainer refuses all else until another call of this succeeds. qrun_trainer_run calls it by
 * itself. */
QRUN_API qrun_status qrun_trainer_replan(qrun_trainer *trainer, qrun_error *error);

/* Replaces the current parameters with those of the best evaluation, for qrun_trainer_export. This ends the run:
 * further steps, evaluations and checkpoints are refused, so save first. */
QRUN_API qrun_status qrun_trainer_load_best(qrun_trainer *trainer, qrun_error *error);

/* Writes the adapter to `out`, as PEFT and qrun_adapter_open read it; a fully trained model as a whole folder, in the
 * compute type, as transformers and qrun_model_open read it. */
QRUN_API qrun_status qrun_trainer_export(qrun_trainer *trainer, qrun_error *error);

/* ---- Writing a quantised folder ---------------------------------------------------------------------------------- */

/* Which matrices of a model are held in INT8 or in 16 bits and which in NF4_DQ, and the measurement that says so. */
typedef struct qrun_mixed qrun_mixed;

typedef struct qrun_mixed_params {
    size_t struct_size;
    const char *path;         /* as in qrun_model_params; not quantised yet */
    const char *text;         /* what is measured on: like what the model will read */
    size_t text_bytes;        /* 0: text is NUL-terminated */
    const int32_t *token_ids; /* in place of text */
    int64_t n_token_ids;
    int32_t max_tokens;   /* of the text, from its beginning; 0: 512 */
    int64_t budget_bytes; /* of the whole model's weights, as they will be held; 0: a tenth more than with all linear
                             layers in NF4_DQ */
    qrun_quant raise_to;  /* of the matrices that lose most: INT8 (AUTO), or BF16, which is F16 where the model is */
    qrun_dtype dtype;     /* compute type of the measurement */
    qrun_progress_fn progress; /* in tokens, over all passes; 0 of 0 while the model is read */
    void *progress_user;
} qrun_mixed_params;
#define QRUN_MIXED_PARAMS_INIT \
    { .struct_size = sizeof(qrun_mixed_params) }

/* Runs the unquantised model over the text, and again for every linear layer with that layer's matrix alone in NF4_DQ.
 * The matrices of all experts of a layer that do the same count as one. Those with the largest `kl` for each byte that
 * it takes are raised to INT8 or BF16, as far as the budget allows. The same for any number of threads. Holds the model
 * in the compute type, and the text's logits. */
QRUN_API qrun_status qrun_mixed_measure(qrun_context *context, const qrun_mixed_params *params, qrun_mixed **mixed,
                                        qrun_error *error);
QRUN_API void qrun_mixed_destroy(qrun_mixed *mixed);

typedef struct qrun_mixed_info {
    size_t struct_size;
    int32_t n_matrices;             /* measured */
    int32_t n_raised;               /* of those, not held in NF4_DQ */
    int32_t n_tokens;               /* of the text, that the model read */
    double loss;                    /* of the unquantised model, in nats a token */
    double nf4_loss, nf4_kl;        /* with all of them in NF4_DQ; of its predictions from the unquantised model's */
    double left_kl;                 /* the sum of `kl` of those that stay in NF4_DQ */
    int64_t weight_bytes;           /* of the whole model, as it will be held */
    int64_t least_bytes, all_bytes; /* with all of them in NF4_DQ, and with all raised */
    int64_t budget_bytes;
} qrun_mixed_info;
#define QRUN_MIXED_INFO_INIT \
    { .struct_size = sizeof(qrun_mixed_info) }
QRUN_API qrun_status qrun_mixed_get_info(const qrun_mixed *mixed, qrun_mixed_info *info, qrun_error *error);

/* What quantising one matrix costs: the model with this one in NF4_DQ, and all others unquantised. */
typedef struct qrun_mixed_matrix {
    const char *name; /* of the module; of experts that of the first */
    qrun_quant quant; /* NF4_DQ, INT8, BF16 or F16 */
    int32_t n_alike;  /* matrices, one of each expert; else 1 */
    int64_t n_parameters;
    int64_t weight_bytes; /* as it will be held */
    double kl; /* mean Kullback-Leibler divergence of the predictions from the unquantised model's, in nats a token:
                  what the loss grows by on text that the model itself would write */
    double loss_difference; /* what it grows by on this text, in nats a token; on a short one mostly chance */
} qrun_mixed_matrix;
/* Number i, the largest `kl` first; lent. NULL: there is none. */
QRUN_API const qrun_mixed_matrix *qrun_mixed_get_matrix(const qrun_mixed *mixed, int32_t i);
/* All of it as one JSON object, which a folder is written with as "qrun_mixed.json"; lent. */
QRUN_API const char *qrun_mixed_json(const qrun_mixed *mixed);

typedef struct qrun_quantize_params {
    size_t struct_size;
    const char *path;        /* as in qrun_model_params */
    const char *out;         /* a folder that does not exist yet */
    qrun_quant quant;        /* NF4_DQ (AUTO), NF4, INT8 or MIXED */
    int64_t max_shard_bytes; /* 0: 5 GB */
    qrun_progress_fn progress;
    void *progress_user;
    const qrun_mixed *mixed;   /* MIXED: measured on this model; else NULL */
    bool quant_embedding_int8; /* the embeddings of tokens too, as quant_embedding_int8 of qrun_model_params holds them.
                                  Not with MIXED */
} qrun_quantize_params;
#define QRUN_QUANTIZE_PARAMS_INIT \
    { .struct_size = sizeof(qrun_quantize_params) }
/* Writes a folder that transformers with bitsandbytes loads unchanged; with INT8 among mixed formats, or with
 * embeddings in INT8, only qrun does. Appears whole or not at all. */
QRUN_API qrun_status qrun_quantize_folder(qrun_context *context, const qrun_quantize_params *params, qrun_error *error);

/* ---- How two models' outputs differ ------------------------------------------------------------------------------ */

typedef struct qrun_compare_params {
    size_t struct_size;
    const qrun_model_params *model, *other; /* of one vocabulary; opened one after the other */
    const char *adapter, *other_adapter;    /* folders; NULL: none */
    const char *text;   /* NULL: a short one of the library's own (random tokens for a model without tokenizer) */
    size_t text_bytes;  /* 0: text is NUL-terminated */
    int32_t max_tokens; /* of the text, from its beginning; 0: 256 */
    qrun_progress_fn progress; /* in tokens, over both models */
    void *progress_user;
} qrun_compare_params;
#define QRUN_COMPARE_PARAMS_INIT \
    { .struct_size = sizeof(qrun_compare_params) }

typedef struct qrun_difference {
    size_t struct_size;
    int64_t n_tokens;     /* positions compared: the prediction after each token of the text */
    double max_abs_logit; /* of the first model: to compare the differences with */
    double mean_logit_difference, max_logit_difference; /* absolute */
    double mean_kl, max_kl; /* Kullback-Leibler divergence of the other model from the first, in nats a token */
    int64_t n_same_greedy;  /* positions where both have the same best token */
} qrun_difference;
#define QRUN_DIFFERENCE_INIT \
    { .struct_size = sizeof(qrun_difference) }
/* Runs both models over a text and compares their logits at every token. Holds one model at a time, and the first one's
 * logits. */
QRUN_API qrun_status qrun_compare_outputs(qrun_context *context, const qrun_compare_params *params,
                                          qrun_difference *difference, qrun_error *error);

/* ---- Merging an adapter into its model --------------------------------------------------------------------------- */

typedef enum qrun_merge_onto {
    QRUN_MERGE_AUTO = 0,     /* ORIGINAL; of a folder that is stored quantised, QUANTIZED */
    QRUN_MERGE_ORIGINAL = 1, /* the folder's own weights */
    QRUN_MERGE_QUANTIZED = 2 /* linear layers as the engine holds them: quantised, then dequantised */
} qrun_merge_onto;

typedef struct qrun_merge_params {
    size_t struct_size;
    const char *path;    /* as in qrun_model_params */
    const char *adapter; /* a PEFT LoRA folder that was made for this model */
    const char *out;     /* a folder that does not exist yet */
    qrun_merge_onto onto;
    qrun_quant quant;        /* QUANTIZED, of a folder stored plain: NF4_DQ (AUTO), NF4 or INT8 */
    qrun_quant dtype;        /* to write: BF16, F16 or F32; AUTO: F16 where the model is F16, else BF16, and experts in
                                MXFP4 stay so where the adapter does not change them */
    int64_t max_shard_bytes; /* 0: the folder's own largest file, or 5 GB where all is in one */
    qrun_progress_fn progress;
    void *progress_user;
} qrun_merge_params;
#define QRUN_MERGE_PARAMS_INIT \
    { .struct_size = sizeof(qrun_merge_params) }

typedef struct qrun_merge_result {
    size_t struct_size;
    qrun_merge_onto onto;       /* ORIGINAL or QUANTIZED */
    qrun_quant base_quant;      /* the qrun_model_params.quant that holds the weights that were merged onto */
    qrun_quant dtype;           /* as written */
    int64_t n_merged;           /* matrices that LoRA changed */
    int64_t n_replaced;         /* parameters that the adapter brought whole (modules_to_save) */
    bool head_untied;           /* embedding and output head were one matrix and are two now */
    int64_t n_tensors, n_bytes; /* written */
    qrun_quant expert_quant;    /* of experts that are stored in MXFP4: MXFP4, or dtype. AUTO: there are none */
} qrun_merge_result;
#define QRUN_MERGE_RESULT_INIT \
    { .struct_size = sizeof(qrun_merge_result) }
/* Writes a model that computes alone what `path` computes with the adapter: a Hugging Face folder in 16 or 32 bits that
 * any tool loads. Holds about one tensor at a time. Appears whole or not at all. result may be NULL. QRUN_ERROR_INPUT
 * for an adapter of another model. */
QRUN_API qrun_status qrun_merge_folder(qrun_context *context, const qrun_merge_params *params,
                                       qrun_merge_result *result, qrun_error *error);

/* ---- For other programs ------------------------------------------------------------------------------------------ */

typedef enum qrun_export_format {
    QRUN_EXPORT_GGUF = 0,     /* a model for llama.cpp and what is built on it */
    QRUN_EXPORT_GGUF_LORA = 1 /* the adapter alone, for their --lora */
} qrun_export_format;

typedef enum qrun_gguf_type {
    QRUN_GGUF_AUTO = 0, /* Q8_0; of an adapter F32 */
    QRUN_GGUF_F32 = 1,
    QRUN_GGUF_F16 = 2,
    QRUN_GGUF_BF16 = 3,
    QRUN_GGUF_Q8_0 = 4, /* blocks of 32: 8.5 bits per weight */
    QRUN_GGUF_Q4_0 = 5  /* 4.5 bits; embedding and head in Q8_0 */
} qrun_gguf_type;

typedef struct qrun_export_params {
    size_t struct_size;
    const char *path;    /* as in qrun_model_params; a folder, or (GGUF_LORA) a GGUF file too */
    const char *adapter; /* a PEFT LoRA folder: merged into the model, or (GGUF_LORA) written. NULL: none */
    const char *out;     /* the file to write; one of that name is replaced when the new one is whole */
    qrun_export_format format;
    qrun_gguf_type type; /* of matrices; vectors are F32. Matrices whose rows do not fill blocks are F16 */
    qrun_progress_fn progress;
    void *progress_user;
    bool check_only; /* only find out whether it can be written: nothing is, and the result says nothing */
} qrun_export_params;
#define QRUN_EXPORT_PARAMS_INIT \
    { .struct_size = sizeof(qrun_export_params) }

typedef struct qrun_export_result {
    size_t struct_size;
    qrun_gguf_type type;        /* as written */
    int64_t n_tensors, n_bytes; /* written, and the size of the file */
    int64_t
        context_tokens; /* that the file says; fewer than the model's where llama.cpp has no sliding window for it */
} qrun_export_result;
#define QRUN_EXPORT_RESULT_INIT \
    { .struct_size = sizeof(qrun_export_result) }
/* Writes one GGUF file: weights, config, tokenizer and chat template. Holds about one tensor at a time. result may be
 * NULL. QRUN_ERROR_UNSUPPORTED for a model that llama.cpp cannot compute as it is, with the reason. */
QRUN_API qrun_status qrun_export(qrun_context *context, const qrun_export_params *params, qrun_export_result *result,
                                 qrun_error *error);

#ifdef __cplusplus
}
#endif

#endif
