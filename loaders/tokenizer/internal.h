/* What the files of this folder share; no other file includes this. */
#ifndef QR_LOADERS_TOKENIZER_INTERNAL_H
#define QR_LOADERS_TOKENIZER_INTERNAL_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/alloc.h"
#include "base/keyed_hash.h"
#include "loaders/files/json.h"
#include "loaders/tokenizer/budget.h"
#include "loaders/tokenizer/tokenizer.h"

/* --- tokenizer/vocab.c: token texts, both ways -------------------------------------------------------------------- */

enum { QR_VOCAB_HOLE = -1 };

typedef struct qr_vocab_entry {
    uint32_t offset; /* into bytes */
    int32_t length;  /* QR_VOCAB_HOLE: no token has this id */
} qr_vocab_entry;

typedef struct qr_vocab_slot {
    uint32_t hash;
    int32_t id; /* −1: free */
} qr_vocab_slot;

typedef struct qr_vocab {
    char *bytes; /* all texts, back to back */
    size_t n_bytes;
    qr_vocab_entry *entries; /* [n_ids] */
    int32_t n_ids;
    size_t longest;       /* of the texts, in bytes */
    qr_vocab_slot *slots; /* open addressing, power of two, at most half full */
    uint32_t slot_mask;
    qr_hash_key hash_key;
} qr_vocab;

/* Room for n_tokens texts of n_bytes in all, with ids below n_ids. */
qrun_status qr_vocab_create(qr_vocab *vocab, int32_t n_tokens, int32_t n_ids, size_t n_bytes, qr_error *err);
void qr_vocab_free(qr_vocab *vocab);
/* Fails when the text or the id is already there. */
qrun_status qr_vocab_add(qr_vocab *vocab, int32_t id, const char *text, size_t n_bytes, const char *what,
                         qr_error *err);
int32_t qr_vocab_find(const qr_vocab *vocab, const char *text, size_t n_bytes); /* −1 where there is none */
const char *qr_vocab_text(const qr_vocab *vocab, int32_t id, size_t *n_bytes);  /* NULL where there is none */

/* --- tokenizer/trie.c: longest and all prefixes over bytes -------------------------------------------------------- */

typedef struct qr_trie_edge {
    uint64_t key; /* (node << 8 | byte) + 1; 0: free */
    uint32_t child;
    int32_t value; /* of the child: ≥ 0 where a key ends; the last key inserted wins */
} qr_trie_edge;

typedef struct qr_trie {
    qr_trie_edge *edges; /* open addressing */
    uint32_t edge_mask;
    uint32_t n_nodes; /* node 0 is the root */
    qr_hash_key hash_key;
    bool begins[256]; /* bytes that begin some key */
} qr_trie;

/* n_bytes bounds the bytes of all keys together. */
qrun_status qr_trie_create(qr_trie *trie, size_t n_bytes, qr_error *err);
void qr_trie_free(qr_trie *trie);
void qr_trie_insert(qr_trie *trie, const char *key, size_t n_bytes, int32_t value);
/* One step from *node by a byte: false where there is no such edge; *value is −1 where no key ends. */
bool qr_trie_step(const qr_trie *trie, uint32_t *node, unsigned char byte, int32_t *value);

/* --- tokenizer/unicode.c ------------------------------------------------------------------------------------------ */

/* Length of the well-formed character that begins with this byte. */
static inline size_t qr_char_length(char lead) {
    const unsigned char c = (unsigned char)lead;
    return c < 0x80U ? 1 : c < 0xE0U ? 2 : c < 0xF0U ? 3 : 4;
}

bool qr_is_space(uint32_t c);       /* White_Space */
bool qr_is_numeric(uint32_t c);     /* Nd, Nl, No */
bool qr_is_punctuation(uint32_t c); /* P*, and the ASCII symbols */
bool qr_is_mark(uint32_t c);        /* Mn, Mc, Me */
bool qr_is_word(uint32_t c);        /* \w of Unicode TR 18 */

/* The byte-level alphabet of GPT-2: every byte as a printable character. */
uint32_t qr_byte_to_char(unsigned char byte);
int qr_char_to_byte(uint32_t c); /* −1 where the character is not in the alphabet */

typedef enum qr_normal_form { QR_NFC, QR_NFD, QR_NFKC, QR_NFKD } qr_normal_form;
/* Appends the normal form of well-formed text. */
qrun_status qr_unicode_normalize(qr_normal_form form, const char *text, size_t n_bytes, qr_buffer *out, qr_error *err);

/* Bytes that are not UTF-8 travel through the encoder as characters base + byte of a private-use plane; base is chosen
 * so that the text has no character of that block. 0: the text is well formed. */
qrun_status qr_escape_bytes(const char *text, size_t n_bytes, qr_buffer *escaped, uint32_t *base, qr_error *err);
static inline bool qr_is_escape(uint32_t base, uint32_t c) { return base != 0 && c >= base && c < base + 256U; }

/* --- tokenizer/pattern.c: literal and regular-expression search --------------------------------------------------- */

typedef struct qr_regex_context {
    pcre2_general_context *general;
    pcre2_compile_context *compile;
    size_t compiled_bytes; /* of all expressions so far */
} qr_regex_context;

typedef struct qr_pattern {
    char *literal; /* NULL: a regular expression */
    size_t n_literal;
    pcre2_code *code;
    int64_t meter_steps; /* what one of its meters costs */
} qr_pattern;

qrun_status qr_regex_context_create(qr_regex_context *context, qr_error *err);
void qr_regex_context_free(qr_regex_context *context);
qrun_status qr_pattern_literal(qr_pattern *pattern, const char *text, const char *what, qr_error *err);
qrun_status qr_pattern_regex(qr_pattern *pattern, qr_regex_context *context, const char *regex, const char *what,
                             qr_error *err);
void qr_pattern_free(qr_pattern *pattern);
/* tokenizer/oniguruma.c: appends the expression as PCRE2 reads it, with meters, and what one of them costs. */
qrun_status qr_oniguruma_translate(const qr_regex_context *context, const char *regex, qr_buffer *out,
                                   int64_t *meter_steps, const char *what, qr_error *err);

/* Where a match was when it last passed a meter. */
typedef struct qr_meter {
    size_t start, at; /* offsets: of the attempt, and where it had come to */
    uint32_t branch;
} qr_meter;

/* What one thread needs to search; the two blocks are made on first use. Must not move afterwards. */
typedef struct qr_matcher {
    const qr_regex_context *regex;
    qr_budget *budget;
    pcre2_match_context *context;
    pcre2_match_data *data;
    int64_t meter_steps; /* of the search in progress */
    qr_meter last_meter;
} qr_matcher;

void qr_matcher_free(qr_matcher *matcher);

typedef struct qr_pattern_search {
    const qr_pattern *pattern;
    qr_matcher *matcher;
    const char *text;
    size_t n_bytes, at;
    size_t last_end; /* end of the last match; SIZE_MAX before the first */
} qr_pattern_search;

qr_pattern_search qr_pattern_search_in(const char *text, size_t n_bytes, const qr_pattern *pattern,
                                       qr_matcher *matcher);
/* Advances to the next match [*start, *end) in search->text; *found is false at the end. */
qrun_status qr_pattern_next(qr_pattern_search *search, size_t *start, size_t *end, bool *found, qr_error *err);

/* --- components --------------------------------------------------------------------------------------------------- */

typedef enum qr_normalizer_kind {
    QR_NORMALIZE_FORM,
    QR_NORMALIZE_REPLACE,
    QR_NORMALIZE_PREPEND,
    QR_NORMALIZE_STRIP,
    QR_NORMALIZE_LOWERCASE,
    QR_NORMALIZE_STRIP_ACCENTS,
    QR_NORMALIZE_STRIP_NONSPACING,
    QR_NORMALIZE_BERT_CLEAN,
    QR_NORMALIZE_BERT_CHINESE,
    QR_NORMALIZE_NMT,
    QR_NORMALIZE_CHARSMAP,
    QR_NORMALIZE_BYTE_LEVEL
} qr_normalizer_kind;

/* SentencePiece's precompiled character map: a Darts double array and the NUL-terminated replacements. */
typedef struct qr_charsmap {
    uint32_t *units;
    size_t n_units;
    char *replacements;
    size_t n_replacement_bytes;
} qr_charsmap;

typedef struct qr_normalizer {
    qr_normalizer_kind kind;
    qr_normal_form form;
    qr_pattern pattern;
    char *content; /* Replace, Prepend */
    size_t n_content;
    bool left, right; /* Strip */
    qr_charsmap charsmap;
} qr_normalizer;

typedef enum qr_split_behavior {
    QR_SPLIT_REMOVED,
    QR_SPLIT_ISOLATED,
    QR_SPLIT_MERGED_WITH_PREVIOUS,
    QR_SPLIT_MERGED_WITH_NEXT,
    QR_SPLIT_CONTIGUOUS
} qr_split_behavior;

typedef enum qr_pretokenizer_kind {
    QR_PRETOKENIZE_SPLIT,
    QR_PRETOKENIZE_BYTE_LEVEL,
    QR_PRETOKENIZE_METASPACE,
    QR_PRETOKENIZE_FIXED_LENGTH
} qr_pretokenizer_kind;

typedef enum qr_prepend_scheme { QR_PREPEND_ALWAYS, QR_PREPEND_FIRST, QR_PREPEND_NEVER } qr_prepend_scheme;

typedef struct qr_pretokenizer {
    qr_pretokenizer_kind kind;
    /* Split and all that are one: where `is_delimiter` is set it decides by character, else the pattern does. */
    bool (*is_delimiter)(uint32_t c);
    qr_pattern pattern;
    qr_split_behavior behavior;
    bool invert;
    bool add_prefix_space;    /* ByteLevel */
    bool split;               /* ByteLevel: use_regex; Metaspace: split */
    qr_prepend_scheme scheme; /* Metaspace; its replacement is `pattern` */
    int64_t n_characters;     /* FixedLength */
} qr_pretokenizer;

typedef enum qr_decoder_kind {
    QR_DECODE_BYTE_LEVEL,
    QR_DECODE_METASPACE,
    QR_DECODE_BYTE_FALLBACK,
    QR_DECODE_FUSE,
    QR_DECODE_STRIP,
    QR_DECODE_REPLACE,
    QR_DECODE_WORD_PIECE,
    QR_DECODE_BPE,
    QR_DECODE_JOIN /* no decoder: a space between tokens */
} qr_decoder_kind;

typedef struct qr_decoder {
    qr_decoder_kind kind;
    qr_pattern pattern; /* Replace; Metaspace: its replacement; Strip: the character; BPE: the suffix */
    char *content;      /* Replace; WordPiece: the prefix */
    size_t n_content;
    size_t n_start, n_stop; /* Strip */
    bool drop_first;        /* Metaspace: the mark leaves nothing in the first token */
    bool clean_up;          /* WordPiece */
} qr_decoder;

/* --- models ------------------------------------------------------------------------------------------------------- */

typedef struct qr_merge {
    int32_t left, right; /* left −1: a free slot of the table */
    uint32_t rank;
    int32_t result;
} qr_merge;

enum { QR_BPE_DIRECT_CHARS = 0x180 };

typedef struct qr_bpe {
    qr_merge *table; /* (left, right) → rank, result; open addressing */
    uint32_t table_mask;
    qr_hash_key hash_key;
    int32_t *result_of_rank; /* [n_merges] */
    int64_t n_merges;
    int32_t direct[QR_BPE_DIRECT_CHARS]; /* ids of the one-character tokens below U+0180, −1 where there is none */
    char *prefix, *suffix;               /* continuing_subword_prefix, end_of_word_suffix; NULL where empty */
    bool ignore_merges;
    bool fuse_unk;
    bool splits_before_mark; /* no merge crosses into U+2581 from another character: words can be taken alone */
} qr_bpe;

/* The slot of the table that has the pair, or the free one where it belongs. */
static inline qr_merge *qr_bpe_find_slot(const qr_bpe *bpe, int32_t left, int32_t right) {
    const uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    uint32_t at = (uint32_t)qr_hash_keyed_word(&bpe->hash_key, pair) & bpe->table_mask;
    while (bpe->table[at].left >= 0 && (bpe->table[at].left != left || bpe->table[at].right != right)) {
        at = (at + 1) & bpe->table_mask;
    }
    return &bpe->table[at];
}

typedef struct qr_unigram {
    double *scores; /* [n_ids] */
    double unk_score;
    qr_trie trie;
} qr_unigram;

typedef struct qr_word_piece {
    qr_trie trie;         /* of the whole vocabulary */
    uint32_t continuing;  /* the node after continuing_subword_prefix */
    bool continues;       /* false: no token has that prefix */
    int64_t longest_word; /* in characters; what is longer is unknown */
} qr_word_piece;

typedef enum qr_model_kind { QR_MODEL_BPE, QR_MODEL_UNIGRAM, QR_MODEL_WORD_PIECE, QR_MODEL_WORD_LEVEL } qr_model_kind;

typedef struct qr_added_token {
    char *content;
    size_t n_content;
    char *decoded; /* what the decoder is given: the normalised content where it differs, else NULL */
    size_t n_decoded;
    int32_t id;
    bool single_word, lstrip, rstrip, normalized, special;
} qr_added_token;

struct qr_tokenizer {
    qr_regex_context regex;
    qr_model_kind model;
    qr_vocab vocab; /* the model's own, without added tokens */
    qr_bpe bpe;
    qr_unigram unigram;
    qr_word_piece word_piece;
    int32_t model_unk_id; /* −1: none */
    bool byte_fallback;
    int32_t byte_ids[256]; /* of "<0xNN>", −1 where there is none */

    int32_t n_ids;
    qr_added_token *added;
    size_t n_added, added_capacity;
    int32_t *added_of_id;   /* [n_ids]: index into added, −1 for the model's own */
    qr_trie added_contents; /* the three tries' values are indices into added */
    qr_trie added_raw;      /* found in the text as it came */
    qr_trie added_normalized;

    qr_normalizer *normalizers;
    size_t n_normalizers, normalizers_capacity;
    qr_pretokenizer *pretokenizers;
    size_t n_pretokenizers, pretokenizers_capacity;
    qr_decoder *decoders;
    size_t n_decoders, decoders_capacity;
    qr_tokens prefix, suffix; /* what the post-processor adds */

    int32_t bos_id, eos_id, pad_id, unk_id;
};

/* tokenizer/model.c */
qrun_status qr_tokenizer_load_model(qr_tokenizer *tokenizer, const qr_json *model, const char *what, qr_error *err);
void qr_tokenizer_free_model(qr_tokenizer *tokenizer);
/* tokenizer/tokenizer_config.c */
typedef struct qr_tokenizer_files {
    const char *class;       /* as below */
    const qr_json *config;   /* tokenizer_config.json; NULL: there is none, as the next two */
    const qr_json *specials; /* special_tokens_map.json */
    const qr_json *added;    /* added_tokens.json */
} qr_tokenizer_files;
/* The class that tokenizer_config.json says, where it counts for such a tokenizer.json and such a model (config.json);
 * else "". Lent. */
const char *qr_tokenizer_class_of(const qr_json *root, const qr_json *config, const qr_json *model_config);
bool qr_tokenizer_class_is(const char *class, const char *wanted); /* with "Fast" at its end or without */
/* A list like added_tokens, without ids, for qr_json_free: tokens that files beside tokenizer.json name as special, or
 * add. */
qrun_status qr_tokenizer_named_tokens(const qr_tokenizer_files *files, qr_json **list, qr_error *err);

/* tokenizer/added.c: the list of tokenizer.json, then the added_tokens_decoder of tokenizer_config.json (an object by
 * id; NULL where there is none), which has the last word on a token's flags, then those of `named` (NULL: none) that
 * are no added tokens yet: their ids are the vocabulary's, or the next ones. With raw_specials, special tokens are
 * looked for before normalisation, whatever their flags say. */
qrun_status qr_tokenizer_load_added(qr_tokenizer *tokenizer, const qr_json *list, const qr_json *by_id,
                                    const qr_json *named, bool raw_specials, const char *what, qr_error *err);
/* After the normalisers were loaded: the forms that are searched for. */
qrun_status qr_tokenizer_index_added(qr_tokenizer *tokenizer, qr_error *err);
int32_t qr_tokenizer_find_added(const qr_tokenizer *tokenizer, const char *text, size_t n_bytes); /* index or −1 */

/* Walks a text from added token to added token. Zero-initialise but for the first five. */
typedef struct qr_added_search {
    const qr_tokenizer *tokenizer;
    const qr_trie *trie;
    const char *text;
    size_t n_bytes;
    bool skip_special; /* special tokens are ordinary text */
    size_t at, gap_start;
    qr_budget *budget; /* the search ends early where its steps are spent */
} qr_added_search;

/* The next added token, or −1 at the end; [*gap_start, *gap_end) is the text between it and the one before, which may
 * be empty. */
int32_t qr_added_next(qr_added_search *search, size_t *gap_start, size_t *gap_end);
void qr_tokenizer_free_added(qr_tokenizer *tokenizer);
/* A member of a component's object as a whole number in [0, limit], or a failure that names it. */
qrun_status qr_tokenizer_json_id(const qr_json *value, int64_t limit, int32_t *id, const char *what, qr_error *err);
/* tokenizer/components.c */
qrun_status qr_tokenizer_load_components(qr_tokenizer *tokenizer, const qr_json *root, const char *what, qr_error *err);
qrun_status qr_tokenizer_load_post_processor(qr_tokenizer *tokenizer, const qr_json *processor, const char *what,
                                             qr_error *err);
void qr_tokenizer_free_components(qr_tokenizer *tokenizer);
/* tokenizer/charsmap.c */
qrun_status qr_charsmap_parse(qr_charsmap *map, const char *base64, const char *what, qr_error *err);
void qr_charsmap_free(qr_charsmap *map);
/* Appends the mapped text, or stops once *out is longer than max_bytes. */
void qr_charsmap_apply(const qr_charsmap *map, const char *text, size_t n_bytes, size_t max_bytes, qr_buffer *out);

/* --- encoding ----------------------------------------------------------------------------------------------------- */

/* Text between added tokens, on its way through the encoder. Its first n_first bytes come from the first character of
 * the whole input: the `first` of Metaspace asks where text comes from, not where it is. */
typedef struct qr_segment {
    const char *text;
    size_t n_bytes;
    size_t n_first;
} qr_segment;

typedef struct qr_piece {
    size_t start, end;
    size_t n_first; /* as in qr_segment, from start on */
} qr_piece;

typedef struct qr_piece_list {
    qr_piece *items;
    size_t n, capacity;
} qr_piece_list;

typedef struct qr_match_span {
    size_t start, end;
    bool is_match;
} qr_match_span;

typedef struct qr_bpe_symbol {
    int32_t id; /* −1: merged into its left neighbour */
    int32_t prev, next;
} qr_bpe_symbol;

typedef struct qr_unigram_node {
    double score;  /* of the best path that ends here */
    int64_t start; /* where its last piece begins; −1: none yet */
    int32_t id;
} qr_unigram_node;

/* Scratch of one call of encode; grows as needed. */
typedef struct qr_encode_work {
    const qr_tokenizer *tokenizer;
    qr_budget budget;
    uint32_t escape_base;
    qr_buffer normal[2]; /* the normaliser writes one while it reads the other */
    qr_buffer mapped[2]; /* the same for the pre-tokeniser */
    qr_buffer word;
    qr_piece_list pieces, next_pieces;
    qr_match_span *spans;
    size_t n_spans, spans_capacity;
    qr_matcher matcher;
    qr_bpe_symbol *symbols;
    size_t symbols_capacity;
    uint64_t *heap; /* rank << 32 | position */
    size_t n_heap, heap_capacity;
    qr_unigram_node *nodes;
    size_t nodes_capacity;
    qr_tokens *out;
    size_t max_out; /* tokens that are enough: with more, encoding ends */
    qr_error *err;
} qr_encode_work;

/* For a text of n_bytes; `out` may be NULL where nothing is encoded. The block must not move afterwards. */
void qr_encode_work_init(qr_encode_work *work, const qr_tokenizer *tokenizer, size_t n_bytes, qr_tokens *out,
                         qr_error *err);

static inline bool qr_encode_is_over(const qr_encode_work *work) { return work->out->n > work->max_out; }

/* What is left of n_first bytes at `offset`, in a part of n_bytes. */
static inline size_t qr_first_from(size_t n_first, size_t offset, size_t n_bytes) {
    const size_t n = n_first > offset ? n_first - offset : 0;
    return n < n_bytes ? n : n_bytes;
}

/* tokenizer/normalize.c: *segment is replaced by its normal form, lent from `work`. */
qrun_status qr_normalize(qr_encode_work *work, qr_segment *segment);
/* tokenizer/pretokenize.c: work->pieces over *text, which is lent from `work`. */
qrun_status qr_pretokenize(qr_encode_work *work, const qr_segment *segment, const char **text);
/* One pre-token to ids, appended to work->out. */
qrun_status qr_bpe_encode(qr_encode_work *work, const char *text, size_t n_bytes);
qrun_status qr_unigram_encode(qr_encode_work *work, const char *text, size_t n_bytes);
qrun_status qr_word_piece_encode(qr_encode_work *work, const char *text, size_t n_bytes);
qrun_status qr_word_level_encode(qr_encode_work *work, const char *text, size_t n_bytes);
/* The ids of the bytes of text by byte fallback; *done is false, with nothing appended, where one is missing. */
qrun_status qr_byte_fallback(qr_encode_work *work, const char *text, size_t n_bytes, bool *done);

void qr_encode_work_free(qr_encode_work *work);

#endif
