/* How byte-level tokenizers split texts into words, by the name that llama.cpp gives it ("tokenizer.ggml.pre"). */
#ifndef QR_LOADERS_SOURCE_GGUF_PRETOKENIZERS_H
#define QR_LOADERS_SOURCE_GGUF_PRETOKENIZERS_H

#include <stdbool.h>

#include "loaders/files/gguf.h"

typedef struct qr_gguf_pretokenizer {
    const char *name;       /* the one that is written */
    const char *const *too; /* others that mean the same; NULL-terminated, or NULL */
    const char *regexes[7]; /* one after the other, each on the pieces of those before; NULL-terminated */
    bool ignore_merges;     /* a word that is a token stays whole */
    bool adds_bos;          /* unless the file says otherwise */
    bool nfc;               /* the tokenizers of that name bring texts into NFC first */
} qr_gguf_pretokenizer;

/* NULL where the name is not known. */
const qr_gguf_pretokenizer *qr_gguf_pretokenizer_find(qr_gguf_text name);

/* The one with exactly these n regular expressions; NULL: none. */
const qr_gguf_pretokenizer *qr_gguf_pretokenizer_of(const char *const *regexes, int n, bool ignore_merges, bool nfc);

/* The regular expression that a ByteLevel pre-tokenizer of a tokenizer.json has built in, and that of one digit, which
 * a Digits pre-tokenizer with individual_digits has. */
extern const char qr_gguf_gpt2_regex[], qr_gguf_digit_regex[];

#endif
