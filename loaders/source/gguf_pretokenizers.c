#include "loaders/source/gguf_pretokenizers.h"

#include <string.h>

#include "base/sizes.h"

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define WORD "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"
#define SYMBOLS " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
#define SPACES "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define DIGIT "\\p{N}"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED_WORD(end) \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" end "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" end
/* Letters of alphabets that DeepSeek-V2's tokenizer keeps together. */
#define DEEPSEEK_LETTERS                                                                               \
    "\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ" \
    "-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛ"   \
    "ὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-" \
    "ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ" \
    "-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-"   \
    "𐳲𑢠-𑣟𞤀-𞥃]+"

const char qr_gguf_gpt2_regex[] = GPT2;
const char qr_gguf_digit_regex[] = DIGIT;

static const char *const as_gpt2[] = {"phi-2", "gigachat", "a.x-4.0",  "mellum",          "exaone4",
                                      "mpt",   "olmo",     "trillion", "granite-docling", NULL};
static const char *const as_llama3[] = {"llama3",  "llama-v3", "falcon3", "falcon-h1",
                                        "pixtral", "midm-2.0", "lfm2",    NULL};
static const char *const as_dbrx[] = {"smaug-bpe", "chatglm-bpe", NULL};
static const char *const as_glm4[] = {"glm5", NULL};
static const char *const as_qwen2[] = {"deepseek-r1-qwen", "kormo", "megrez", "stablelm2", "hunyuan", NULL};
static const char *const as_smollm[] = {"starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", NULL};
static const char *const as_gpt4o[] = {"llama4", "kanana2", NULL};

static const qr_gguf_pretokenizer known[] = {
    {.name = "gpt-2", .too = as_gpt2, .regexes = {GPT2}},
    {.name = "llama-bpe",
     .too = as_llama3,
     .regexes = {CONTRACTIONS "|" WORD "|\\p{N}{1,3}|" SYMBOLS "|" SPACES},
     .ignore_merges = true,
     .adds_bos = true},
    {.name = "glm4",
     .too = as_glm4,
     .regexes = {CONTRACTIONS "|" WORD "|\\p{N}{1,3}|" SYMBOLS "|" SPACES},
     .ignore_merges = true},
    {.name = "dbrx", .too = as_dbrx, .regexes = {CONTRACTIONS "|" WORD "|\\p{N}{1,3}|" SYMBOLS "|" SPACES}},
    {.name = "qwen2", .regexes = {CONTRACTIONS "|" WORD "|\\p{N}|" SYMBOLS "|" SPACES}, .nfc = true},
    {.name = "stablelm2", .too = as_qwen2, .regexes = {CONTRACTIONS "|" WORD "|\\p{N}|" SYMBOLS "|" SPACES}},
    {.name = "qwen35",
     .regexes = {CONTRACTIONS
                 "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" SPACES},
     .nfc = true},
    {.name = "deepseek-llm",
     .regexes = {"[\r\n]", DEEPSEEK_LETTERS, "\\s?[!-/:-~！-／：-～‘-‟　-。]+", "\\s+$", "[一-龥ࠀ-一가-퟿]+",
                 DIGIT}},
    {.name = "deepseek-v3",
     .regexes = {"\\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
                 "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?"
                 "[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"}},
    {.name = "seed-coder", .regexes = {CONTRACTIONS "|" WORD "|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|" SPACES}},
    {.name = "smollm", .too = as_smollm, .regexes = {DIGIT, GPT2}},
    {.name = "tekken",
     .regexes = {CASED_WORD("") "|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES},
     .ignore_merges = true,
     .adds_bos = true},
    {.name = "gpt-4o",
     .too = as_gpt4o,
     .regexes = {CASED_WORD(CONTRACTIONS "?") "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES}},
    {.name = "default", .regexes = {"[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}},
};

static bool is_also(const qr_gguf_pretokenizer *p, qr_gguf_text name) {
    for (size_t i = 0; p->too != NULL && p->too[i] != NULL; i++) {
        if (qr_gguf_text_is(name, p->too[i])) { return true; }
    }
    return false;
}

const qr_gguf_pretokenizer *qr_gguf_pretokenizer_find(qr_gguf_text name) {
    for (size_t i = 0; i < QR_COUNT_OF(known); i++) {
        if (qr_gguf_text_is(name, known[i].name) || is_also(&known[i], name)) { return &known[i]; }
    }
    return NULL;
}

const qr_gguf_pretokenizer *qr_gguf_pretokenizer_of(const char *const *regexes, int n, bool ignore_merges, bool nfc) {
    const qr_gguf_pretokenizer *nearest = NULL;
    for (size_t i = 0; i < QR_COUNT_OF(known); i++) {
        int same = 0;
        while (same < n && known[i].regexes[same] != NULL && strcmp(known[i].regexes[same], regexes[same]) == 0) {
            same++;
        }
        if (same < n || known[i].regexes[n] != NULL || known[i].ignore_merges != ignore_merges) { continue; }
        if (known[i].nfc == nfc) { return &known[i]; }
        if (nearest == NULL) { nearest = &known[i]; }
    }
    return nearest;
}
