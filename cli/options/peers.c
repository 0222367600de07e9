#include "cli/options/peers.h"

#include <string.h>
#include <strings.h>

typedef struct peer_words {
    const char *ours;
    const char *theirs; /* separated by spaces */
} peer_words;

static const peer_words command_words[] = {
    {"generate", "run infer inference predict complete completions batch llama-cli main"},
    {"chat", "interactive repl talk conversation"},
    {"finetune", "train fine-tune sft lora qlora tune trl fit"},
    {"merge", "fuse export-lora merge-lora merge-adapter merge-and-unload"},
    {"export", "gguf to-gguf convert-hf-to-gguf convert-lora-to-gguf save-gguf"},
    {"inspect", "info show describe stat ls list"},
    {"plan", "estimate estimate-memory memory fit-params vram"},
    {"tokenize", "detokenize tokenizer encode decode tokens"},
    {"eval", "perplexity ppl evaluate lm-eval"},
    {"quantize", "convert quantise awq gptq bnb"},
    {"bench", "benchmark llama-bench speed perf"},
    {"serve", "server llama-server api api-server start openai"},
};

static const peer_words missing_commands[] = {
    {"qrun downloads nothing. 'hf download MODEL' fetches a model, and --model MODEL then finds it in its cache",
     "download pull fetch login push upload"},
};

/* Options that no option of ours stands for, and what there is in their place, of commands that have the option
 * `beside`. */
static const struct {
    const char *beside;
    peer_words words;
} missing_options[] = {
    {"temperature",
     {"an answer's form is a JSON Schema (--json-schema); there are no other grammars",
      "grammar grammar-file guided-grammar guided-regex guided-choice guided-decoding-backend"}},
    {"plain-text",
     {"names of special tokens in a prompt are these tokens; --plain-text keeps them text",
      "parse-special special parse-special-tokens"}},
    {"n", {"there is no beam search; --n gives several sampled answers", "num-beams beams beam-size use-beam-search"}},
    {"prompts",
     {"a line of --prompts may have typical_p; there is no mirostat, XTC or DRY",
      "typical typical-p mirostat mirostat-lr mirostat-ent xtc-probability xtc-threshold dry-multiplier"}},
    {"model",
     {"the chat template is that of the model's folder: chat_template.jinja, or tokenizer_config.json",
      "chat-template chat-template-file"}},
    {"restart",
     {"the same command resumes a run by itself, from its last checkpoint in --out; --restart begins again",
      "resume resume-from-checkpoint continue auto-resume-from-checkpoints"}},
    {"restart",
     {"metrics.jsonl, trainer_state.json and report.html in --out have what a run did",
      "report-to wandb wandb-project use-wandb tensorboard logging-dir log-dir report-to-wandb"}},
    {"show-mask",
     {"the loss counts what the assistant says, or a completion; \"train\": true makes another message count, and a "
      "\"text\" counts whole",
      "train-on-inputs train-on-prompt train-on-responses-only mask-prompt completion-only-loss completion-only "
      "assistant-only-loss"}},
    {"out", {"qrun uploads nothing: 'hf upload' does", "push-to-hub hub-model-id hub-token"}},
};

/* A word may stand in several rows: a command suggests those of its own options alone, and the first of them. */
static const peer_words option_words[] = {
    /* What to run, and on what. */
    {"model", "model-path model-name model-id model-name-or-path base-model hf hf-repo hf-model pretrained path ckpt"},
    {"adapter", "lora lora-path lora-modules lora-scaled adapter-path adapter-file peft peft-model resume-adapter-file "
                "lora-model-dir"},
    {"quant", "quantization quantize load-in-4bit load-in-8bit load-in-nbit bits wbits q q-bits bnb-4bit-quant-type "
              "bnb-4bit"},
    {"experts", "cpu-moe n-cpu-moe cmoe ncmoe override-tensor ot moe-offload expert-offload"},
    {"dtype", "torch-dtype compute-dtype bnb-4bit-compute-dtype precision mixed-precision bf16 fp16 fp32 float16 half"},
    {"kv", "kv-cache-dtype kv-dtype cache-type-k cache-type-v ctk ctv kv-bits cache-dtype kv-cache-type"},
    {"threads", "n-threads num-threads threads-batch tb thread cpu-threads nproc j jobs"},
    {"device", "gpu cuda cpu ngl n-gpu-layers gpu-layers num-gpu device-map gpus main-gpu accelerator"},
    {"memory", "gpu-memory-utilization max-memory vram memory-limit mem ram gpu-memory max-kv-size"},
    {"context", "ctx-size c ctx n-ctx num-ctx max-model-len max-seq-len max-context max-position-embeddings "
                "context-length max-length"},
    {"max-sequences", "max-batch max-num-seqs parallel np batch-size n-parallel concurrency num-parallel"},
    {"max-step-tokens", "step-tokens max-num-batched-tokens ubatch-size ub prefill-step-size chunk-size num-batch"},
    {"no-prefix-sharing", "no-enable-prefix-caching no-cache-prompt no-prompt-cache"},
    {"prefix-cache", "cache-ram swap-space cram cpu-offload-gb kv-offloading-size"},
    {"cache-dir", "slot-save-path prompt-cache prompt-cache-all"},
    {"speculate", "speculative-config spec-type model-draft md draft draft-model num-speculative-tokens draft-max "
                  "prompt-lookup-num-tokens lookup"},
    /* Prompts and answers. */
    {"prompt", "p text input question query"},
    {"prompts", "file f prompt-file input-file prompts-file i input dataset"},
    {"chat", "cnv conversation apply-chat-template jinja"},
    {"system", "system-prompt sys system-message system-prompt-file"},
    {"template-arg", "chat-template-kwargs chat-template-args chat-template-config"},
    {"enable-thinking", "thinking think reasoning no-think reasoning-budget"},
    {"no-special", "no-bos ignore-chat-template add-special-tokens no-special-tokens"},
    {"plain-text", "no-parse-special split-special-tokens"},
    {"max-tokens", "n n-predict predict num-predict max-new-tokens max-completion-tokens max-gen-len tokens "
                   "output-len max-output-tokens"},
    {"temperature", "temp t do-sample greedy"},
    {"top-k", "topk k"},
    {"top-p", "topp nucleus"},
    {"min-p", "minp"},
    {"repetition-penalty", "repeat-penalty rep-penalty rep-pen repetition"},
    {"presence-penalty", "presence"},
    {"frequency-penalty", "frequency"},
    {"seed", "s random-seed rng-seed"},
    {"stop", "r reverse-prompt stop-sequences stop-strings eos stop-words extra-eos-token"},
    {"stop-token-ids", "eos-token-id stop-token-id"},
    {"json-schema", "json-schema-file jf guided-json structured-outputs response-format"},
    {"min-tokens", "min-new-tokens"},
    {"n", "num-return-sequences num-samples n-samples best-of num-completions"},
    {"logprobs", "n-probs top-logprobs output-scores"},
    {"output", "out output-file save o output-path results"},
    {"quiet", "log-disable silent no-progress no-verbose disable-tqdm"},
    {"summary", "verbose v timings perf show-timings verbose-prompt"},
    {"resume", "continue resume-from"},
    /* Training. */
    {"data", "train-file dataset train-data dataset-path dataset-name datasets train train-dataset data-path"},
    {"eval-data", "val validation-file eval-file valid val-data test-datasets eval-dataset validation val-file"},
    {"eval-split", "val-set-size validation-split val-split test-size test-split"},
    {"out", "output-dir output save-dir save-path output-path mlx-path o output-folder"},
    {"target-modules", "lora-targets lora-target-modules lora-target targets modules lora-keys lora-layers "
                       "lora-target-linear"},
    {"target-parameters", "lora-target-parameters lora-experts"},
    {"layers-to-transform", "lora-layers-to-transform layers-to-train"},
    {"rank", "r lora-r lora-rank"},
    {"alpha", "lora-alpha scale lora-scale"},
    {"lora-dropout", "dropout"},
    {"rslora", "use-rslora"},
    {"dora", "use-dora peft-use-dora"},
    {"modules-to-save", "lora-modules-to-save"},
    {"full", "full-finetuning full-finetune no-lora no-peft"},
    {"epochs", "num-train-epochs num-epochs n-epochs epoch e"},
    {"max-steps", "steps iters iterations n-iters num-iters total-steps"},
    {"seq-len", "max-seq-length max-seq-len max-length cutoff-len sequence-len sequence-length block-size context ctx "
                "ctx-size max-sequence-length"},
    {"batching", "packing sample-packing pack group-by-length length-grouped-sampling"},
    {"batch-size", "per-device-train-batch-size micro-batch-size train-batch-size bs batch"},
    {"grad-accum", "gradient-accumulation-steps accumulation-steps grad-accumulation-steps ga accumulate"},
    {"optimizer", "optim opt optimiser"},
    {"learning-rate", "lr eta"},
    {"schedule", "lr-scheduler-type lr-scheduler lr-schedule scheduler"},
    {"warmup", "warmup-steps warmup-ratio warmup-iters"},
    {"weight-decay", "wd decay"},
    {"loraplus-lr-ratio", "loraplus-ratio lora-plus-lr-ratio"},
    {"max-grad-norm", "grad-clip gradient-clipping clip-grad clip-grad-norm grad-norm"},
    {"checkpointing", "gradient-checkpointing grad-checkpoint activation-checkpointing recompute "
                      "use-gradient-checkpointing"},
    {"tile-rows", "tiled-mlp tile-size tiled-mlp-num-shards"},
    {"offload", "cpu-offload optimizer-offload offload-optimizer activation-offloading"},
    {"eval-every", "eval-steps steps-per-eval eval-interval evals-per-epoch val-every"},
    {"save-every", "save-steps save-interval checkpoint-every saves-per-epoch save-freq"},
    {"keep", "save-total-limit keep-last max-checkpoints"},
    {"load-best", "load-best-model-at-end"},
    {"early-stopping-patience", "early-stopping patience"},
    {"restart", "overwrite-output-dir force overwrite no-resume"},
    {"show-mask", "debug debug-num-examples"},
    {"plan", "dry-run estimate"},
    {"verbose", "logging-steps log-every steps-per-report"},
    /* Folders, texts and measurements. */
    {"max-shard-size", "shard-size split-max-size"},
    {"onto", "base"},
    {"text", "file f dataset data input"},
    {"window", "ctx-size c stride ctx n-ctx max-length context-length"},
    {"decode", "detokenize ids-to-text"},
    {"ids", "no-escape show-ids"},
    {"prompt-tokens", "n-prompt p pp prompt-len input-len pg"},
    {"decode-tokens", "n-gen n tg output-len gen generation-tokens"},
    {"batch", "batch-size batches b concurrency"},
    {"repeat", "repetitions r reps num-trials num-iters iterations runs"},
    {"json", "o output output-json format json-output"},
    {"tensors", "verbose v all layers"},
};

static const struct {
    const char *option;
    peer_words words;
} value_words[] = {
    {"device", {"cuda", "gpu nvidia gpu:0 0 cuda0"}},
    {"device", {"cpu", "none off no host"}},
    {"quant",
     {"nf4-dq", "4bit 4-bit 4 q4 int4 bnb-4bit bitsandbytes bnb double q4_0 q4_k q4_k_m q4_k_s nf4_dq iq4_nl "
                "gptq awq"}},
    {"quant", {"nf4", "fp4 nf4_0"}},
    {"quant", {"int8", "8bit 8-bit 8 q8 q8_0 i8 llm.int8 bnb-8bit w8a16 fp8"}},
    {"quant", {"bf16", "none no off 16bit 16 bfloat16 full"}},
    {"quant", {"f16", "fp16 float16 half"}},
    {"quant", {"f32", "fp32 float32 float 32"}},
    {"experts", {"host", "cpu ram true yes 1"}},
    {"experts", {"device", "gpu cuda none no false 0"}},
    {"expert-compute", {"host", "cpu processor"}},
    {"expert-compute", {"device", "gpu cuda fetch"}},
    {"quant-head", {"int8", "8bit q8 q8_0 8"}},
    {"quant-head", {"keep", "none no off bf16"}},
    {"quant-embedding", {"int8", "8bit q8 q8_0 8"}},
    {"quant-embedding", {"keep", "none no off bf16"}},
    {"dtype", {"bf16", "bfloat16 brain auto"}},
    {"dtype", {"f16", "fp16 float16 half 16"}},
    {"dtype", {"f32", "fp32 float32 float full 32 no"}},
    {"kv", {"int8", "q8 q8_0 8bit 8 i8 fp8 fp8_e5m2 fp8_e4m3 q4_0"}},
    {"kv", {"bf16", "bfloat16"}},
    {"kv", {"f16", "fp16 float16 half"}},
    {"kv", {"f32", "fp32 float32 float"}},
    {"optimizer", {"adamw8bit", "adamw_8bit adamw_bnb_8bit paged_adamw_8bit adam8bit paged_adamw8bit adamw-8bit"}},
    {"optimizer", {"adamw", "adam adamw_torch adamw_hf adamw_torch_fused paged_adamw_32bit adamw_apex_fused"}},
    {"schedule", {"cosine", "cosine_with_restarts cosine_decay cosine_with_min_lr"}},
    {"schedule", {"linear", "linear_schedule polynomial"}},
    {"schedule", {"constant", "constant_with_warmup none fixed"}},
    {"batching", {"pack", "packing packed true"}},
    {"batching", {"group", "group_by_length grouped length"}},
    {"offload", {"optimizer", "cpu optim true"}},
    {"enable-thinking", {"true", "yes on 1 enable"}},
    {"enable-thinking", {"false", "no off 0 disable"}},
    {"init", {"random", "scratch none"}},
    {"onto", {"original", "fp16 bf16 full base"}},
    {"onto", {"quantized", "quantised 4bit nf4"}},
};

/* Upper and lower case count as one: Q4_K_M, BF16. */
static bool has_word(const peer_words *row, const char *word) {
    const size_t length = strlen(word);
    for (const char *at = row->theirs; *at != '\0' && length > 0; at += strspn(at, " ")) {
        const size_t n_bytes = strcspn(at, " ");
        if (n_bytes == length && strncasecmp(at, word, length) == 0) { return true; }
        at += n_bytes;
    }
    return false;
}

const char *peer_command(const char *theirs) {
    for (size_t i = 0; i < sizeof command_words / sizeof command_words[0]; i++) {
        if (has_word(&command_words[i], theirs)) { return command_words[i].ours; }
    }
    return NULL;
}

const char *peer_missing_command(const char *theirs) {
    for (size_t i = 0; i < sizeof missing_commands / sizeof missing_commands[0]; i++) {
        if (has_word(&missing_commands[i], theirs)) { return missing_commands[i].ours; }
    }
    return NULL;
}

static bool has_option(const command *cmd, const char *name) {
    const option *o;
    for (size_t i = 0; (o = option_at(cmd, i, NULL)) != NULL; i++) {
        if (strcmp(o->name, name) == 0) { return true; }
    }
    return false;
}

const char *peer_option(const command *cmd, const char *theirs) {
    for (size_t i = 0; i < sizeof option_words / sizeof option_words[0]; i++) {
        if (has_word(&option_words[i], theirs) && has_option(cmd, option_words[i].ours)) {
            return option_words[i].ours;
        }
    }
    return NULL;
}

const char *peer_missing_option(const command *cmd, const char *theirs) {
    for (size_t i = 0; i < sizeof missing_options / sizeof missing_options[0]; i++) {
        if (has_word(&missing_options[i].words, theirs) && has_option(cmd, missing_options[i].beside)) {
            return missing_options[i].words.ours;
        }
    }
    return NULL;
}

const char *peer_value(const option *o, const char *theirs) {
    for (size_t i = 0; i < sizeof value_words / sizeof value_words[0]; i++) {
        if (strcmp(value_words[i].option, o->name) != 0 || !has_word(&value_words[i].words, theirs)) { continue; }
        for (const option_choice *c = o->choices; c->name != NULL; c++) {
            if (strcmp(c->name, value_words[i].words.ours) == 0) { return c->name; }
        }
    }
    return NULL;
}
