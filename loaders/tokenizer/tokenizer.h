/* Text to token ids and back, from a Hugging Face tokenizer.json: the ids are those of the `tokenizers` library.
 *
 * Models: BPE (byte-level as GPT-2, Llama 3, Qwen; SentencePiece-style with byte fallback as Llama 2, Mistral, Gemma),
 * Unigram, WordPiece, WordLevel; with the normalisers, pre-tokenisers, post-processors and decoders that such files
 * use. What is not supported is refused at load with a message that names the component. The truncation and padding
 * sections are ignored, as is clean_up_tokenization_spaces.
 *
 * Bytes that are not UTF-8 are kept. Inside the encoder each one becomes a private-use character that the text does not
 * contain. It is then encoded as that single byte through the byte-level alphabet or the byte-fallback tokens; a
 * tokenizer that has neither treats it as an unknown character. Decoding always gives well-formed UTF-8: bytes that
 * form no character become U+FFFD, as in the `tokenizers` library.
 *
 * Regular expressions are Oniguruma's, translated for PCRE2; what cannot be made equal is refused at load. Classes of
 * characters and normal forms are those of the Unicode versions that the PCRE2 and utf8proc on the machine know (14 and
 * 15 on Debian 12): characters assigned later count as unassigned. docs/formats.md counts them.
 *
 * A text costs at most a fixed number of steps a byte, and grows at most by a fixed factor, whatever the file says; a
 * file that needs more fails with a message that names its section.
 *
 * A tokenizer does not change after it was loaded: any number of threads may encode and decode with it at once. */
#ifndef QR_LOADERS_TOKENIZER_TOKENIZER_H
#define QR_LOADERS_TOKENIZER_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buffer.h"
#include "base/status.h"
#include "loaders/tokenizer/budget.h"

typedef struct qr_tokenizer qr_tokenizer;

/* Reads <folder>/tokenizer.json and, where they exist, special_tokens_map.json and tokenizer_config.json: for the bos,
 * eos, pad and unk tokens, and for added_tokens_decoder, which may add tokens and has the last word on their flags.
 * The post-processor of tokenizer.json decides what `add_special` adds. As in transformers 5, add_bos_token and
 * add_eos_token change nothing where there is a tokenizer.json. A tokenizer_class of CodeLlamaTokenizer adds BOS and no
 * more, GPTNeoXTokenizer nothing, unless model_type in config.json is one that takes no class from the folder. */
qrun_status qr_tokenizer_open(const char *folder, qr_tokenizer **tokenizer, qr_error *err);

/* The same from the text of a tokenizer.json alone; `what` names it in messages. */
qrun_status qr_tokenizer_parse(const char *text, size_t n_bytes, const char *what, qr_tokenizer **tokenizer,
                               qr_error *err);
void qr_tokenizer_destroy(qr_tokenizer *tokenizer); /* NULL is fine */

/* A growing list of token ids. Zero-initialise before first use. */
typedef struct qr_tokens {
    int32_t *ids;
    size_t n;
    size_t capacity;
} qr_tokens;

qrun_status qr_tokens_push(qr_tokens *tokens, int32_t id, qr_error *err);
qrun_status qr_tokens_append(qr_tokens *tokens, const qr_tokens *more, qr_error *err);
void qr_tokens_free(qr_tokens *tokens); /* back to the zero state */

typedef struct qr_encode_options {
    bool add_special;   /* what the post-processor adds: BOS, EOS */
    bool parse_special; /* the text of a special token becomes its id; otherwise it is encoded as ordinary text.
                         * Added tokens that are not special are always recognised. */
    int64_t max_tokens; /* 0: no limit. Encoding ends once there are more, and what is left of the text is not read:
                         * then *tokens has grown by more than that, and not by all. */
} qr_encode_options;

/* Appends the ids of text[0, n_bytes) to *tokens. Time is linear in the text but for a logarithm inside one
 * pre-token, and for regular expressions that look far ahead. At most 1 GiB of text. On failure *tokens holds what it
 * held before. */
qrun_status qr_tokenizer_encode(const qr_tokenizer *tokenizer, const char *text, size_t n_bytes,
                                const qr_encode_options *options, qr_tokens *tokens, qr_error *err);

/* Appends the text of ids[0, n) to *out. With skip_special, special tokens leave nothing: all of them, also those with
 * `normalized`, which the `tokenizers` library since 0.22 leaves in. An id that is not a token is an error. */
qrun_status qr_tokenizer_decode(const qr_tokenizer *tokenizer, const int32_t *ids, size_t n, bool skip_special,
                                qr_buffer *out, qr_error *err);

/* Decoding one id at a time. What push and finish append, put together, is exactly the text of the whole decode, and
 * every append is whole characters. A run of byte-fallback tokens is held until it ends, because only then is it known
 * whether it is text. */
enum { QR_DECODE_MAX_STAGES = 8 };

typedef struct qr_decode_stage_state {
    qr_buffer token;   /* the token so far, for stages that read it whole */
    qr_buffer held;    /* what cannot be passed on yet */
    size_t n_stripped; /* Strip: characters taken from the front of this token */
    size_t n_trailing; /* Strip: held characters at the end of this token */
    int64_t n_tokens;  /* tokens that ended */
    bool open;         /* some of the current token was passed on */
} qr_decode_stage_state;

typedef struct qr_token_stream {
    const qr_tokenizer *tokenizer; /* lent; must outlive the stream */
    bool skip_special;
    qr_budget budget; /* grows with every token */
    qr_decode_stage_state stages[QR_DECODE_MAX_STAGES];
} qr_token_stream;

void qr_token_stream_init(qr_token_stream *stream, const qr_tokenizer *tokenizer, bool skip_special);
qrun_status qr_token_stream_push(qr_token_stream *stream, int32_t id, qr_buffer *out, qr_error *err);
/* Passes on what was held; the stream is then as after init. */
qrun_status qr_token_stream_finish(qr_token_stream *stream, qr_buffer *out, qr_error *err);
void qr_token_stream_free(qr_token_stream *stream);

/* One more than the largest id; ids without a token may lie below it. */
int32_t qr_tokenizer_vocab_size(const qr_tokenizer *tokenizer);
/* The id of a token's text as the file has it; −1 where there is none. */
int32_t qr_tokenizer_id(const qr_tokenizer *tokenizer, const char *text, size_t n_bytes);
/* The token's text as the file has it (byte-level tokens in their printable alphabet), not NUL-terminated, lent
 * from the tokenizer; NULL where the id is not a token. */
const char *qr_tokenizer_token(const qr_tokenizer *tokenizer, int32_t id, size_t *n_bytes);
bool qr_tokenizer_is_special(const qr_tokenizer *tokenizer, int32_t id);
bool qr_tokenizer_is_added(const qr_tokenizer *tokenizer,
                           int32_t id); /* beside the vocabulary's pieces, special or not */
/* Appends the bytes that a token adds to a text that has begun: of a byte-level token or a <0xNN> perhaps a part of a
 * character. Special tokens and ids without a token add none. QRUN_ERROR_UNSUPPORTED where what a token adds depends on
 * its neighbours, as with WordPiece. */
qrun_status qr_tokenizer_token_bytes(const qr_tokenizer *tokenizer, int32_t id, qr_buffer *out, qr_error *err);

int32_t qr_tokenizer_bos_id(const qr_tokenizer *tokenizer); /* −1 where the folder names none */
int32_t qr_tokenizer_eos_id(const qr_tokenizer *tokenizer);
int32_t qr_tokenizer_pad_id(const qr_tokenizer *tokenizer);
int32_t qr_tokenizer_unk_id(const qr_tokenizer *tokenizer);

typedef struct qr_tokenizer_info {
    const char *model;  /* "BPE", "Unigram", "WordPiece", "WordLevel" */
    bool byte_level;    /* bytes are spelled in the printable byte-level alphabet */
    bool byte_fallback; /* unknown characters are spelled as <0xNN> tokens */
    int32_t vocab_size;
    int32_t n_added; /* added tokens, special or not */
    int32_t n_special;
    int64_t n_merges;
} qr_tokenizer_info;

void qr_tokenizer_get_info(const qr_tokenizer *tokenizer, qr_tokenizer_info *info);

#endif
