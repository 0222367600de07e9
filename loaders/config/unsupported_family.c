#include "loaders/config/unsupported_family.h"

#include <stddef.h>
#include <string.h>

#include "base/sizes.h"

static const char MAMBA[] = "Mamba layers";
static const char IMAGES[] = "a wrapper with images";
static const char DENSE[] = "Qwen3 or Llama 3", EXPERTS[] = "Qwen3-MoE or Qwen3.5-MoE";
static const char LATENTS[] = "DeepSeek V3 or GLM-4.7-Flash";
static const char SPACES[] = "Granite 4", HYBRID_EXPERTS[] = "Qwen3.5-MoE or Qwen3-Next";

/* The first that matches counts, so a longer beginning stands before a shorter one. */
static const qr_unsupported_family families[] = {
    {"llama4", "Llama 4", "chunked attention and a router of sigmoids", EXPERTS},
    {"mllama", "Llama 3.2 Vision", "cross-attention to images", "Llama 3"},
    {"deepseek_v4", "DeepSeek V4", "compressed sparse attention", EXPERTS},
    {"deepseek_v32", "DeepSeek V3.2", "sparse latent attention", LATENTS},
    {"deepseek_vl", "DeepSeek-VL", IMAGES, "DeepSeek V2 Lite"},
    {"deepseek_ocr", "DeepSeek-OCR", IMAGES, "DeepSeek V2 Lite"},
    {"deepseek", "DeepSeek", "its own mixture of experts", "DeepSeek V2 Lite"},
    {"kimi_k25", "Kimi K2.5", IMAGES, LATENTS},
    {"longcat", "LongCat", "two attention blocks a layer", LATENTS},
    {"glm_moe_dsa", "GLM-5", "sparse latent attention", "GLM-4.7-Flash"},
    {"glm5", "GLM-5", "sparse latent attention", "GLM-4.7-Flash"},
    {"glm", "GLM", IMAGES, "GLM-4 or GLM-4.5"},
    {"minimax_m3", "MiniMax M3", "attention to chosen blocks of keys", "MiniMax M2"},
    {"minimax", "MiniMax", "lightning attention", "MiniMax M2"},
    {"mimo_v2", "MiMo V2", "images, or q, k and v in one matrix", "MiMo-V2-Flash"},
    {"ernie4_5", "ERNIE 4.5", IMAGES, "ERNIE 4.5 without images"},
    {"hunyuan_vl", "Hunyuan-VL", IMAGES, "Hunyuan without images"},
    {"phimoe", "Phi-3.5-MoE", "a router of sparse mixers", EXPERTS},
    {"bailing_hybrid", "Ling", "Kimi delta attention", HYBRID_EXPERTS},
    {"dbrx", "DBRX", "its own mixture of experts", EXPERTS},
    {"nemotron-nas", "Nemotron NAS", "layers of different sizes", DENSE},
    {"falcon_mamba", "Falcon Mamba", MAMBA, SPACES},
    {"jamba", "Jamba", MAMBA, SPACES},
    {"zamba", "Zamba", MAMBA, SPACES},
    {"mamba", "Mamba", MAMBA, SPACES},
    {"recurrent_gemma", "RecurrentGemma", "gated linear recurrences", "Gemma 3 or Qwen3.5"},
    {"qwen4_exp", "Qwen4 Exp", "n-gram embeddings", HYBRID_EXPERTS},
    {"qwen3_omni_moe", "Qwen3-Omni", IMAGES, EXPERTS},
    {"cohere_", "Cohere", "another kind of model", "Command R"},
};

const qr_unsupported_family *qr_unsupported_family_find(const char *model_type) {
    for (size_t i = 0; i < QR_COUNT_OF(families); i++) {
        if (strncmp(model_type, families[i].model_type, strlen(families[i].model_type)) == 0) { return &families[i]; }
    }
    return NULL;
}
