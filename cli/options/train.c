#include "cli/options/train.h"

#include <limits.h>
#include <unistd.h>

/* clang-format off */
const option_choice train_optimizers[] = {
    {"adamw", QRUN_OPTIMIZER_ADAMW}, {"adamw8bit", QRUN_OPTIMIZER_ADAMW8BIT}, {"adafactor", QRUN_OPTIMIZER_ADAFACTOR},
    {"sgd", QRUN_OPTIMIZER_SGD}, {NULL, 0}};
const option_choice train_offloads[] = {
    {"none", 0}, {"optimizer", TRAIN_OFFLOAD_OPTIMIZER}, {"gradients", TRAIN_OFFLOAD_GRADIENTS},
    {"activations", TRAIN_OFFLOAD_ACTIVATIONS}, {"parameters", TRAIN_OFFLOAD_PARAMETERS}, {"auto", TRAIN_OFFLOAD_AUTO},
    {NULL, 0}};
static const option_choice sizes[] = {{"auto", QRUN_AUTO}, {NULL, 0}};
static const option_choice loss_scales[] = {{"dynamic", QRUN_AUTO}, {NULL, 0}};
const option_choice fit_choices[] = {
    {"context", QRUN_FIT_CONTEXT}, {"batch", QRUN_FIT_BATCH}, {"rank", QRUN_FIT_RANK}, {"model", FIT_MODEL}, {NULL, 0}};
static const option_choice inits[] = {{"model", false}, {"random", true}, {NULL, 0}};
static const option_choice objectives[] = {
    {"sft", QRUN_OBJECTIVE_SFT}, {"dpo", QRUN_OBJECTIVE_DPO}, {"orpo", QRUN_OBJECTIVE_ORPO},
    {"simpo", QRUN_OBJECTIVE_SIMPO}, {NULL, 0}};
static const option_choice schedules[] = {
    {"linear", QRUN_SCHEDULE_LINEAR}, {"cosine", QRUN_SCHEDULE_COSINE}, {"constant", QRUN_SCHEDULE_CONSTANT},
    {NULL, 0}};
static const option_choice formats[] = {
    {"auto", QRUN_FORMAT_AUTO}, {"json", QRUN_FORMAT_JSON}, {"csv", QRUN_FORMAT_CSV}, {"tsv", QRUN_FORMAT_TSV},
    {"text", QRUN_FORMAT_TEXT}, {"paragraphs", QRUN_FORMAT_PARAGRAPHS}, {NULL, 0}};
static const option_choice batchings[] = {
    {"pack", QRUN_BATCHING_PACK}, {"group", QRUN_BATCHING_GROUP}, {NULL, 0}};

#define TRAIN(field) INTO(finetune_options, train.field)

static const option data_table[] = {
    {.name = "data", .letter = 'd', .kind = OPTION_TEXTS, .value_name = "FILE", INTO(finetune_options, data),
     .completion = COMPLETE_FILE,
     .help = "The examples: JSON Lines or one JSON array, a table with a header (.csv, .tsv), or plain text (.txt, "
             ".md). It may be in gzip or Zstandard, a pipe, \"-\" for stdin, or a folder of files with --format. An "
             "example is {\"messages\": [{\"role\", \"content\"}, …]}, {\"prompt\", \"completion\"} (or \"response\"), "
             "{\"instruction\", \"input\", \"output\"} (alpaca), {\"question\", \"answer\"}, {\"input\", \"output\"}, "
             "{\"conversations\": [{\"from\", \"value\"}, …]} (ShareGPT) or {\"text\"}; the first one decides. With "
             "--objective dpo, orpo or simpo it is {\"prompt\", \"chosen\", \"rejected\"}, as texts or messages. The "
             "loss counts what the assistant says (of a text, everything), without messages that have \"weight\": 0 or "
             "\"train\": false. Given several times, the files are trained on together, each in its own format."},
    {.name = "format", .kind = OPTION_CHOICE, .choices = formats, TRAIN(data.format),
     .help = "How examples lie in the files. text: a file is one text, cut into rows of --seq-len tokens; paragraphs: "
             "each paragraph is a text, with empty lines between them. Default: auto, by the file's name, and json for "
             "a name that says nothing."},
    {.name = "columns", .kind = OPTION_TEXT, .value_name = "LIST", TRAIN(data.columns),
     .help = "Other names of members or columns, as in prompt=question,completion=answer: ours, then the file's. Only "
             "those named are read."},
    {.name = "data-weight", .kind = OPTION_NUMBERS, .value_name = "X", .low = 1e-6, .high = 1e6,
     INTO(finetune_options, data_weights),
     .help = "Once for each --data, in their order: its share of the examples of an epoch is X divided by the sum of "
             "all. An epoch has every example of every file, some of them repeated. Default: every example once."},
    {.name = "eval-data", .kind = OPTION_TEXTS, .value_name = "FILE", INTO(finetune_options, eval_data),
     .completion = COMPLETE_FILE, .help = "Examples to evaluate on, never trained on. May be given several times."},
    {.name = "eval-split", .kind = OPTION_NUMBER, .value_name = "SHARE", .low = 0, .high = 0.9, TRAIN(data.eval_split),
     .help = "The share of --data to set aside for evaluation, such as 0.1. Not with --eval-data."},
    {.name = "date", .kind = OPTION_TEXT, .value_name = "DAY", TRAIN(data.date),
     .help = "The day that chat templates write, such as 2026-11-22. Default: that on which the run began."},
    {.name = "skip-bad", .kind = OPTION_FLAG, TRAIN(data.skip_bad),
     .help = "Skip and count lines that are not valid examples. Without it, the first one ends the run with an error."},
    {.name = "show-mask", .once = true, .neutral = true, .kind = OPTION_INT, .value_name = "N", .low = 1,
     .high = 1000000, INTO(finetune_options, show_mask),
     .help = "Print the first N examples as the model is trained on them, the tokens that count in the loss between "
             "«…», and exit. Needs no --out, and writes nothing there."},
};

const option train_adapter_table[N_TRAIN_ADAPTER_OPTIONS] = {
    {.name = "out", .letter = 'o', .kind = OPTION_TEXT, .value_name = "DIR", TRAIN(saving.out),
     .completion = COMPLETE_FOLDER,
     .help = "The folder for the adapter (as PEFT and 'qrun generate --adapter' read it), or with --full for the new "
             "model, with checkpoints, metrics.jsonl, trainer_state.json and report.html."},
    {.name = "target-modules", .kind = OPTION_TEXT, .value_name = "WHICH", TRAIN(lora.target_modules),
     .help = "Linear layers that get LoRA: all, attn, mlp, or names such as q_proj,v_proj. Default: all."},
    {.name = "target-parameters", .kind = OPTION_TEXT, .value_name = "NAMES", TRAIN(lora.target_parameters),
     .help = "LoRA on the experts of a mixture too, as PEFT's target_parameters: experts (both), or names such as "
             "mlp.experts.down_proj. --target-modules none leaves it at these."},
    {.name = "layers-to-transform", .kind = OPTION_TEXT, .value_name = "LAYERS", TRAIN(lora.layers_to_transform),
     .help = "LoRA on these layers alone, counted from 0, as PEFT's layers_to_transform: 0,1,8-15. Default: all."},
    {.name = "rank", .letter = 'r', .kind = OPTION_INT, .value_name = "N", .low = 1, .high = 512, TRAIN(lora.rank),
     .help = "Rank of the update of each layer. Default: 16."},
    {.name = "alpha", .kind = OPTION_NUMBER, .value_name = "X", .low = 1e-6, .high = 1e6, TRAIN(lora.alpha),
     .help = "The update is scaled by alpha / rank. Default: twice the rank."},
    {.name = "train-head", .kind = OPTION_FLAG, INTO(finetune_options, train_head),
     .help = "Train the whole output head too: --modules-to-save lm_head."},
    {.name = "modules-to-save", .kind = OPTION_TEXT, .value_name = "NAMES", TRAIN(lora.modules_to_save),
     .help = "Modules that are trained whole and stored in the adapter, as in PEFT: such as lm_head,embed_tokens. "
             "These two get rows for tokens that were added to the tokenizer, if the examples have such tokens; so "
             "does --full."},
    {.name = "rslora", .kind = OPTION_FLAG, TRAIN(lora.rslora), .help = "Scale by alpha / √rank instead."},
    {.name = "adapter", .kind = OPTION_TEXT, .value_name = "DIR", TRAIN(lora.adapter), .completion = COMPLETE_FOLDER,
     .help = "Continue training this PEFT LoRA adapter instead of a new one. Its rank, alpha, targets, layers and kind "
             "are kept; options that say otherwise are refused."},
    {.name = "dora", .kind = OPTION_FLAG, TRAIN(lora.dora),
     .help = "DoRA: also train the magnitude of every row of the adapted matrices. Takes a third more time."},
    {.name = "lora-dropout", .kind = OPTION_NUMBER, .value_name = "P", .low = 0, .high = 0.99, TRAIN(lora.lora_dropout),
     .help = "While training, drop each input of an adapter with this probability. Results do not depend on "
             "how examples are batched. Default: 0."},
};

const option train_full_table[N_TRAIN_FULL_OPTIONS] = {
    {.name = "full", .kind = OPTION_FLAG, TRAIN(weights.full),
     .help = "Train every weight instead of an adapter. The model is held in the compute type (--dtype), and --out "
             "becomes a model folder of its own. Takes about 18 bytes per weight with adamw; with adamw8bit 12, and "
             "18 for embeddings."},
    {.name = "init", .kind = OPTION_CHOICE, .choices = inits, TRAIN(weights.init_random),
     .help = "With --full: start from the model's weights, or from random ones as its family initialises them. random "
             "needs no weights in --model, only config.json and the tokenizer. Default: model."},
    {.name = "init-embedding-std", .kind = OPTION_NUMBER, .value_name = "X", .low = 1e-6, .high = 100,
     TRAIN(weights.init_embedding_std),
     .help = "With --init random: standard deviation of the embeddings. Default: that of the other matrices, "
             "initializer_range in config.json."},
};

const option train_objective_table[N_TRAIN_OBJECTIVE_OPTIONS] = {
    {.name = "objective", .kind = OPTION_CHOICE, .choices = objectives, TRAIN(preference.objective),
     .help = "What is learned. sft: to write what the examples have. dpo, orpo, simpo: from pairs of answers, of which "
             "one was preferred: {\"prompt\", \"chosen\", \"rejected\"}. dpo makes the chosen one likelier than the "
             "rejected one, next to what the model as it was makes of them; simpo does so by the mean of the tokens "
             "and without that model; orpo learns to write the chosen ones too. Default: sft."},
    {.name = "beta", .kind = OPTION_NUMBER, .value_name = "X", .low = 1e-6, .high = 1e6, TRAIN(preference.beta),
     .help = "With --objective dpo or simpo: how much differences between answers weigh; small values let the model go "
             "far. orpo: the weight of preferring next to writing. Default: 0.1, and 2 with simpo."},
    {.name = "target-margin", .kind = OPTION_NUMBER, .value_name = "X", .low = 1e-6, .high = 1e6,
     TRAIN(preference.target_margin),
     .help = "With --objective simpo: by how much the chosen answer's mean, times --beta, should be ahead. Default: "
             "half of --beta."},
};

const option train_batch_table[N_TRAIN_BATCH_OPTIONS] = {
    {.name = "epochs", .kind = OPTION_NUMBER, .value_name = "X", .low = 1e-6, .high = 1e6, TRAIN(batches.epochs),
     .help = "How often to go through the data. Default: 1."},
    {.name = "max-steps", .kind = OPTION_INT, .value_name = "N", .low = 1, .high = 1e12, TRAIN(batches.max_steps),
     .help = "Train for this many steps, whatever --epochs says."},
    {.name = "seq-len", .kind = OPTION_INT, .value_name = "N|auto", .low = 2, .high = 1 << 20, .choices = sizes,
     TRAIN(batches.seq_len),
     .help = "Longest example in tokens (of a pair, both answers with their prompts); a longer one is cut. Shorter "
             "ones are packed together into rows of this length, and do not see each other. auto: that of the longest "
             "example, as far as --memory allows. Default: 1024, or the model's context where that is smaller."},
    {.name = "batching", .kind = OPTION_CHOICE, .choices = batchings, TRAIN(batches.batching),
     .help = "Which examples are computed together: packed into --batch-size rows as they come, or grouped by length, "
             "as many as --batch-tokens has room for. Default: pack."},
    {.name = "batch-size", .letter = 'b', .kind = OPTION_INT, .value_name = "N|auto", .low = 1, .high = 4096,
     .choices = sizes, TRAIN(batches.batch_size),
     .help = "Rows computed at a time. auto: as many as --memory allows, and no more than an epoch has. Default: 1."},
    {.name = "batch-tokens", .kind = OPTION_INT, .value_name = "N", .low = 2, .high = INT32_MAX,
     TRAIN(batches.batch_tokens),
     .help = "With --batching group: the most tokens computed at a time; the number of examples follows from their "
             "lengths. Default: --batch-size times --seq-len."},
    {.name = "grad-accum", .kind = OPTION_INT, .value_name = "N", .low = 1, .high = 1 << 20, TRAIN(batches.grad_accum),
     .help = "Batches that make one step: the memory of one, the gradient of all. Default: 1."},
    {.name = "grad-sums", .kind = OPTION_INT, .value_name = "N", .low = 1, .high = 1024, TRAIN(batches.grad_sums),
     .help = "Add the gradients of a step up in N sums of neighbouring batches, and these in a tree: a power of two, "
             "at most --grad-accum. Ranks whose number divides N send one sum each in a step, for the memory of "
             "unfinished sums of all gradients. The result has other bits for each N, and the same for any number of "
             "ranks. Default: 1, the plain order."},
    {.name = "seed", .kind = OPTION_SEED, .value_name = "N", TRAIN(batches.seed),
     .help = "Order of the data and initial values of the adapter. The same seed gives the same adapter. Default: 0."},
};

const option train_optimizer_table[N_TRAIN_OPTIMIZER_OPTIONS] = {
    {.name = "optimizer", .kind = OPTION_CHOICE, .choices = train_optimizers, TRAIN(optimization.optimizer),
     .help = "adamw8bit holds its states in 8 bits as bitsandbytes does, but for embeddings; sgd has momentum. "
             "Default: adamw."},
    {.name = "learning-rate", .kind = OPTION_NUMBER, .value_name = "X", .low = 1e-12, .high = 100,
     TRAIN(optimization.learning_rate),
     .help = "Highest learning rate. Default: 2e-4; with --full 2e-5, from random weights 1e-3; of pairs "
             "of answers 1e-5, or 1e-6 for all weights."},
    {.name = "schedule", .kind = OPTION_CHOICE, .choices = schedules, TRAIN(optimization.schedule),
     .help = "How the learning rate falls after the warm-up. Default: linear, to 0."},
    {.name = "warmup", .kind = OPTION_NUMBER, .value_name = "X", .low = 0, .high = 1e9, TRAIN(optimization.warmup),
     .help = "Steps in which the learning rate rises from 0; below 1, a share of all steps. Default: 0."},
    {.name = "weight-decay", .kind = OPTION_NUMBER, .value_name = "X", .low = 0, .high = 1,
     TRAIN(optimization.weight_decay),
     .help = "Decoupled from the gradient; norms and biases do not decay, as in the Hugging Face Trainer. Default: 0."},
    {.name = "decay-all", .kind = OPTION_FLAG, TRAIN(optimization.decay_all),
     .help = "Let norms and biases decay too."},
    {.name = "loraplus-lr-ratio", .kind = OPTION_NUMBER, .value_name = "X", .low = 1e-6, .high = 1e6,
     TRAIN(optimization.loraplus_lr_ratio),
     .help = "LoRA+: the learning rate of B divided by that of A, such as 16. Default: 1."},
    {.name = "max-grad-norm", .kind = OPTION_NUMBER, .value_name = "X", .low = 0, .high = 1e9,
     TRAIN(optimization.max_grad_norm), .help = "Scale a gradient whose norm is larger; 0: never. Default: 1."},
    {.name = "loss-scale", .kind = OPTION_INT, .value_name = "N|dynamic", .low = 1, .high = 0x1p32,
     .choices = loss_scales, TRAIN(optimization.loss_scale),
     .help = "Multiply the loss by N, and divide its gradients by it in F32, so that small ones do not become zero; a "
             "step that overflows is skipped. dynamic: as large as the gradients allow, by the rule of torch's "
             "GradScaler. Powers of two cost no rounding. Default: dynamic with --dtype f16, else 1."},
    {.name = "loss-scale-initial", .kind = OPTION_INT, .value_name = "N", .low = 1, .high = 0x1p32,
     TRAIN(optimization.loss_scale_initial), .help = "What a dynamic --loss-scale begins with. Default: 65536."},
    {.name = "loss-scale-growth", .kind = OPTION_NUMBER, .value_name = "X", .low = 1, .high = 1024,
     TRAIN(optimization.loss_scale_growth),
     .help = "What a dynamic --loss-scale is multiplied by after --loss-scale-window steps. Default: 2."},
    {.name = "loss-scale-backoff", .kind = OPTION_NUMBER, .value_name = "X", .low = 1e-6, .high = 0.999999,
     TRAIN(optimization.loss_scale_backoff),
     .help = "What an overflow multiplies a dynamic --loss-scale by. Default: 0.5."},
    {.name = "loss-scale-window", .kind = OPTION_INT, .value_name = "N", .low = 1, .high = 1e9,
     TRAIN(optimization.loss_scale_window),
     .help = "Steps in a row without an overflow after which a dynamic --loss-scale grows. Default: 2000."},
};

const option train_policy_table[N_TRAIN_POLICY_OPTIONS] = {
    {.name = "checkpointing", .neutral = true, .kind = OPTION_TEXT, .value_name = "POLICY",
     TRAIN(memory.checkpointing),
     .help = "Which activations are kept for the backward pass and which are recomputed: none (all are kept), full "
             "(as few as possible are), every:N (layers), attn, mlp, or auto. Results do not depend on it. Default: "
             "auto, which keeps as many as --memory allows."},
    {.name = "tile-rows", .neutral = true, .kind = OPTION_INT, .value_name = "N|auto", .low = 1, .high = 1 << 20,
     .choices = sizes, TRAIN(memory.tile_rows),
     .help = "With --checkpointing full or auto: compute N tokens at a time of everything in a layer but attention, so "
             "that long rows take less memory. Results do not depend on it on the CPU (with AMX in BF16: for "
             "multiples of 32); on a GPU, sums are rounded in another order. Default: auto, which is all tokens, or "
             "where that does not fit into --memory the most "
             "that do, from 128 to 8192."},
};

static const option memory_table[] = {
    {.name = "memory", .neutral = true, .kind = OPTION_BYTES, .value_name = "SIZE",
     INTO(finetune_options, engine.model.memory_bytes),
     .help = "Budget for everything: 6GiB, 500MB … (G alone is GiB). Default: what the machine has free. What cannot "
             "fit is refused before it starts."},
    {.name = "offload", .neutral = true, .kind = OPTION_SET, .choices = train_offloads,
     INTO(finetune_options, offload),
     .help = "Names with commas between them. optimizer: hold its states in host memory and copy them to the device in "
             "pieces during the update. gradients, with --full: send them there layer by layer of the backward pass; "
             "the CPU updates F32 weights and optimizer states, which are there too. activations: hold the "
             "inputs of recomputed layers (see --checkpointing) there, from the forward to the backward pass. "
             "parameters: hold the layers there, or frozen ones on the CPU leave in the folder, which must be "
             "quantised already; two are on the device at a time; with --full, together with gradients. auto: "
             "parameters, where the weights do not fit into --memory. Copying overlaps computing. Results do not "
             "depend on it. On the CPU only frozen parameters save anything. Default: none."},
    {.name = "plan", .neutral = true, .once = true, .kind = OPTION_FLAG, INTO(finetune_options, plan),
     .help = "Show what the run would take, by category, and end. Only the model's description is read; "
             "--data and --out are not needed."},
    {.name = "fit", .neutral = true, .once = true, .kind = OPTION_CHOICE, .choices = fit_choices,
     INTO(finetune_options, fit),
     .help = "With --plan: the largest --seq-len (context), --batch-size (batch) or --rank that fits into --memory, "
             "exactly, and what it takes. Or the largest model: of those known by name or, with --shape, of a list "
             "with commas, where the beginning of a name (qwen3) stands for all that begin so."},
    {.name = "compare", .neutral = true, .once = true, .kind = OPTION_FLAG, INTO(finetune_options, compare),
     .help = "With --plan: a table of what each option that saves memory saves alone, and all of them together, with "
             "what they cost: operations and copied bytes."},
    {.name = "measure", .neutral = true, .once = true, .kind = OPTION_FLAG, INTO(finetune_options, measure),
     .help = "With --compare: also run a few steps with each option, on random tokens, and show the memory used at "
             "most and the time of a step beside the plan. What is larger than the free memory is not run."},
    {.name = "device-memory", .neutral = true, .once = true, .kind = OPTION_TEXT, .value_name = "GPU",
     INTO(finetune_options, engine.context.device_memory),
     .help = "With --plan: plan for a GPU that need not be there, such as rtx-4090 or h100."},
    {.name = "shape", .neutral = true, .once = true, .kind = OPTION_TEXT, .value_name = "CONFIG.json",
     INTO(finetune_options, engine.shape), .completion = COMPLETE_FILE,
     .help = "With --plan, instead of --model: only a model's config.json, or the name of a known model, such as "
             "llama-3.1-8b."},
};

static const option course_table[] = {
    {.name = "eval-every", .neutral = true, .kind = OPTION_INT, .value_name = "N", .low = 1, .high = 1e12,
     TRAIN(evaluation.eval_every), .help = "Evaluate every N steps, and at the end. Default: only at the end."},
    {.name = "early-stopping-patience", .kind = OPTION_INT, .value_name = "N", .low = 1, .high = 1e9,
     TRAIN(evaluation.early_stopping_patience),
     .help = "End the run after N evaluations in a row that were not better than the best. Needs --eval-every; "
             "the adapter is then that of the best evaluation."},
    {.name = "early-stopping-threshold", .kind = OPTION_NUMBER, .value_name = "X", .low = 0, .high = 1e9,
     TRAIN(evaluation.early_stopping_threshold),
     .help = "How much lower than the best a loss has to be to count as better. Default: 0."},
    {.name = "load-best", .kind = OPTION_FLAG, TRAIN(evaluation.load_best),
     .help = "Write the adapter of the best evaluation at the end, not that of the last step. The checkpoint of the "
             "best evaluation stays in --out in either case."},
    {.name = "save-every", .neutral = true, .kind = OPTION_INT, .value_name = "N", .low = 1, .high = 1e12,
     TRAIN(saving.save_every), .help = "Write a checkpoint every N steps, and at the end. Default: only at the end."},
    {.name = "keep", .neutral = true, .kind = OPTION_INT, .value_name = "N", .low = 1, .high = 1000000,
     TRAIN(saving.keep),
     .help = "How many of the last checkpoints to keep, besides that of the best evaluation; older ones are removed. "
             "Default: 2."},
    {.name = "restart", .neutral = true, .once = true, .kind = OPTION_FLAG, TRAIN(saving.restart),
     .help = "Start again from the first step. Without it, training resumes from the last checkpoint in --out."},
    {.name = "sample-prompts", .neutral = true, .kind = OPTION_TEXT, .value_name = "FILE.jsonl",
     INTO(finetune_options, sample_prompts), .completion = COMPLETE_FILE,
     .help = "Requests as 'qrun generate --prompts' takes them, at most 64: what the model answers before and after "
             "the run is in samples-before.jsonl, samples-after.jsonl and the report. Greedy and at most 128 tokens, "
             "unless a line says otherwise."},
    {.name = "profile", .neutral = true, .once = true, .kind = OPTION_TEXT, .value_name = "DIR",
     INTO(finetune_options, profile), .completion = COMPLETE_FOLDER,
     .help = "Write where the time and the memory of a step go: a picture in report.html, and into this folder "
             "trace.json for Perfetto, memory.pickle for torch.cuda._memory_viz, and a file for TensorBoard. It is the "
             "third step of the run, or the last of a shorter one. metrics.jsonl gets the seconds of each phase of "
             "every step."},
    {.name = "json", .neutral = true, .once = true, .kind = OPTION_FLAG, INTO(finetune_options, json),
     .help = "Write JSON lines to stdout and nothing else: {\"start\"} with data and plan, the lines of metrics.jsonl, "
             "and {\"result\"}."},
    {.name = "verbose", .neutral = true, .once = true, .letter = 'v', .kind = OPTION_FLAG,
     INTO(finetune_options, verbose),
     .help = "Without a progress bar: about twenty lines of progress on stderr."},
    {.name = "quiet", .neutral = true, .once = true, .letter = 'q', .kind = OPTION_FLAG, INTO(finetune_options, quiet),
     .help = "No progress, no tables."},
};
/* clang-format on */

const option train_ranks_table[N_TRAIN_RANKS_OPTIONS] = {
    {.name = "zero",
     .neutral = true,
     .kind = OPTION_INT,
     .value_name = "STAGE",
     .low = 0,
     .high = 3,
     INTO(finetune_options, train.ranks.zero),
     .help = "Under mpirun, srun or torchrun: what ranks share out instead of holding it each. 1: the states of the "
             "optimiser. 2: the gradients too. 3: the weights of the layers too. Results and checkpoints do not depend "
             "on it. Default: 0, nothing."},
    {.name = "ranks",
     .neutral = true,
     .once = true,
     .kind = OPTION_INT,
     .value_name = "N",
     .low = 1,
     .high = 1024,
     INTO(finetune_options, train.ranks.n_ranks),
     .help = "Of a plan: what each of N ranks would take in a fine-tuning run, and send in a step. None need to be "
             "there."},
    {.name = "bandwidth",
     .neutral = true,
     .once = true,
     .kind = OPTION_BYTES,
     .value_name = "SIZE",
     INTO(finetune_options, bandwidth),
     .help = "With --ranks: what a rank sends in a second, such as 25GB; how long it sends in a step follows from it."},
    {.name = "tflops",
     .neutral = true,
     .once = true,
     .kind = OPTION_NUMBER,
     .value_name = "X",
     .low = 1e-3,
     .high = 1e6,
     INTO(finetune_options, tflops),
     .help = "With --bandwidth: 10^12 operations that a rank computes in a second, such as 400; the share of a step's "
             "time that sending takes follows from both."},
    {.name = "collective-timeout",
     .neutral = true,
     .kind = OPTION_NUMBER,
     .value_name = "SECONDS",
     .low = 1,
     .high = 1e6,
     INTO(finetune_options, engine.context.collective_timeout),
     .help =
         "Under mpirun, srun or torchrun: how long a rank may be silent while another waits for it, before all end. "
         "Default: 1800."},
};

enum { N_THREAD_OPTIONS = 3 }; /* --threads, --device, --numerics: the table's others have words of their own here */

const option_group finetune_groups[N_FINETUNE_GROUPS] = {
    OPTION_GROUP("Model", model_option_table, offsetof(finetune_options, engine)),
    OPTION_GROUP("Data", data_table, 0),
    OPTION_GROUP("Adapter", train_adapter_table, 0),
    OPTION_GROUP("Full fine-tuning", train_full_table, 0),
    OPTION_GROUP("Objective", train_objective_table, 0),
    OPTION_GROUP("Training", train_batch_table, 0),
    OPTION_GROUP("Optimiser", train_optimizer_table, 0),
    OPTION_GROUP("Memory", memory_table, 0),
    OPTION_GROUP("Recomputing", train_policy_table, 0),
    OPTION_GROUP("Course", course_table, 0),
    OPTION_GROUP("Several devices", train_ranks_table, 0),
    {"Machine", machine_option_table, N_THREAD_OPTIONS, offsetof(finetune_options, engine)},
};

const finetune_options finetune_defaults = {
    .engine = ENGINE_OPTIONS_INIT,
    .fit = FIT_NOTHING,
    .train = {.struct_size = sizeof(qrun_train_params), .optimization.max_grad_norm = 1},
};

void train_set_offload(qrun_train_params *params, int offload) {
    params->memory.offload_optimizer = (offload & TRAIN_OFFLOAD_OPTIMIZER) != 0;
    params->memory.offload_gradients = (offload & TRAIN_OFFLOAD_GRADIENTS) != 0;
    params->memory.offload_activations = (offload & TRAIN_OFFLOAD_ACTIVATIONS) != 0;
}

qrun_offload train_offload_of_model(int offload) {
    return (offload & TRAIN_OFFLOAD_PARAMETERS) != 0 ? QRUN_OFFLOAD_ALL
           : (offload & TRAIN_OFFLOAD_AUTO) != 0     ? QRUN_OFFLOAD_AUTO
                                                     : QRUN_OFFLOAD_NONE;
}

qrun_train_params finetune_train_params(const finetune_options *o, text_buffer *modules) {
    qrun_train_params p = o->train;
    p.data.train_data = o->data.values;
    p.data.n_train_data = o->data.count;
    p.data.data_weights = o->data_weights.values;
    p.data.n_data_weights = o->data_weights.count;
    p.data.eval_data = o->eval_data.values;
    p.data.n_eval_data = o->eval_data.count;
    if (o->train_head) {
        const char *others = p.lora.modules_to_save;
        text_format(modules, "lm_head%s%s", others != NULL ? "," : "", others != NULL ? others : "");
        p.lora.modules_to_save = modules->data;
    }
    if (p.optimization.max_grad_norm == 0) { p.optimization.max_grad_norm = -1; } /* 0: never; to the library, 1 */
    train_set_offload(&p, o->offload);
    p.memory.memory_bytes = o->engine.model.memory_bytes;
    p.saving.save_every = 0; /* training.c saves, once the metrics of the step are on file */
    return p;
}

int finetune_settle(const finetune_options *o, const engine *e, const qrun_trainer *trainer,
                    finetune_options *settled) {
    qrun_error error = QRUN_ERROR_INIT;
    text_buffer modules = {0};
    qrun_train_params p = finetune_train_params(o, &modules);
    const qrun_status status = qrun_trainer_settle(trainer, &p, &error);
    text_free(&modules);
    *settled = *o;
    settled->train = p;
    settled->train.lora.modules_to_save = o->train.lora.modules_to_save; /* --train-head is an option of its own */
    settled->train.saving.save_every = o->train.saving.save_every;
    if (e->info.hub_name != NULL && access(o->engine.model.path, F_OK) != 0) {
        settled->engine.model.path = e->info.hub_name;
    }
    if (p.optimization.max_grad_norm < 0) { settled->train.optimization.max_grad_norm = 0; }
    return complain_unless_ok(status, &error);
}

qrun_model_params finetune_model_params(const finetune_options *o) {
    qrun_model_params p = engine_model_params(&o->engine);
    p.offload_parameters = train_offload_of_model(o->offload);
    p.shard_parameters = o->train.ranks.zero == 3;
    p.trainable = o->train.weights.full;
    p.random_weights = p.random_weights || o->train.weights.init_random;
    return p;
}
