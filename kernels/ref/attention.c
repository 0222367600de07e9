/* kv_write and attention. */
#include <assert.h>
#include <math.h>

#include "base/half.h"
#include "kernels/ref/ref.h"

/* The head_dim elements of one token and head inside a page, and their scale (INT8 only). `half` is the first byte of
 * the K or V part of the layer's page. */
typedef struct kv_vector {
    unsigned char *elements;
    float *scale;
} kv_vector;

static kv_vector vector_at(const qr_kv_layout *layout, unsigned char *half, int64_t head, int64_t token) {
    const int64_t index = head * QR_KV_PAGE_TOKENS + token;
    return (kv_vector){
        .elements = half + (size_t)(index * layout->head_dim) * qr_kv_element_bytes(layout->format),
        .scale = (float *)(void *)(half + qr_kv_scale_offset(layout)) + index,
    };
}

static void store_int8(const kv_vector *dst, const float *src, int64_t n) {
    float largest = 0.0F;
    for (int64_t j = 0; j < n; j++) { largest = fmaxf(largest, fabsf(src[j])); }
    const float inverse = 127.0F / largest;
    *dst->scale = largest / 127.0F;
    for (int64_t j = 0; j < n; j++) {
        const float scaled = isfinite(inverse) ? src[j] * inverse : 0.0F;
        ((int8_t *)dst->elements)[j] = isnan(scaled) ? 0 : (int8_t)rintf(scaled);
    }
}

static qr_dtype element_dtype(qr_kv_format format) {
    return format == QR_KV_BF16 ? QR_DTYPE_BF16 : format == QR_KV_F16 ? QR_DTYPE_F16 : QR_DTYPE_F32;
}

static void store_vector(const qr_kv_layout *layout, const kv_vector *dst, const float *src) {
    if (layout->format == QR_KV_INT8) {
        store_int8(dst, src, layout->head_dim);
        return;
    }
    for (int64_t j = 0; j < layout->head_dim; j++) {
        qr_ref_store(dst->elements, element_dtype(layout->format), j, (double)src[j]);
    }
}

static double load_element(const qr_kv_layout *layout, const kv_vector *src, int64_t j) {
    if (layout->format == QR_KV_INT8) { return (double)((const int8_t *)src->elements)[j] * (double)*src->scale; }
    return (double)qr_ref_load(src->elements, element_dtype(layout->format), j);
}

void qr_ref_kv_write(const qr_kv_write_args *args, void *workspace) {
    (void)workspace;
    const qr_kv_layout *layout = &args->layout;
    for (int64_t i = 0; i < args->n_tokens; i++) {
        if (args->token_page[i] < 0) { continue; }
        unsigned char *page = args->pages + (size_t)args->token_page[i] * args->page_stride_bytes;
        const int64_t token = args->position[i] % QR_KV_PAGE_TOKENS;
        for (int64_t h = 0; h < layout->n_kv_heads; h++) {
            const kv_vector k = vector_at(layout, page, h, token);
            const kv_vector v = vector_at(layout, page + qr_kv_v_offset(layout), h, token);
            store_vector(layout, &k, args->k + i * args->k_stride + h * layout->head_dim);
            if (layout->keys_are_values) { continue; }
            store_vector(layout, &v, args->v + i * args->v_stride + h * layout->head_dim);
        }
    }
}

/* One query head: what it reads and where the result goes. */
typedef struct head_query {
    const qr_attention_args *args;
    const int32_t *table; /* of its sequence */
    const float *q;       /* [head_dim] */
    int64_t head, kv_head;
    int64_t first, last; /* positions it sees */
} head_query;

static kv_vector kv_at(const head_query *query, size_t part_offset, int64_t position) {
    const qr_attention_args *args = query->args;
    const int32_t page = query->table[position / QR_KV_PAGE_TOKENS];
    assert(page >= 0);
    /* The cast drops const for the type that kv_write shares; nothing is written through it here. */
    unsigned char *first = (unsigned char *)(uintptr_t)args->pages;
    unsigned char *part = first + (size_t)page * args->page_stride_bytes + part_offset;
    return vector_at(&args->layout, part, query->kv_head, position % QR_KV_PAGE_TOKENS);
}

static double score(const head_query *query, int64_t position) {
    const qr_attention_args *args = query->args;
    const kv_vector k = kv_at(query, 0, position);
    double sum = 0.0;
    for (int64_t j = 0; j < args->layout.head_dim; j++) {
        sum += (double)query->q[j] * load_element(&args->layout, &k, j);
    }
    sum *= (double)args->scale;
    return args->softcap > 0.0F ? qr_ref_softcap_value(sum, (double)args->softcap) : sum;
}

/* sums [head_dim] is scratch. */
static void attend(const head_query *query, double *sums, int64_t dst_first) {
    const qr_attention_args *args = query->args;
    const int64_t head_dim = args->layout.head_dim;
    const double sink = args->sinks != NULL ? (double)args->sinks[query->head] : -INFINITY;
    double largest = sink, total = 0.0;
    for (int64_t p = query->first; p <= query->last; p++) { largest = fmax(largest, score(query, p)); }
    for (int64_t j = 0; j < head_dim; j++) { sums[j] = 0.0; }
    if (args->sinks != NULL) { total = exp(sink - largest); }
    for (int64_t p = query->first; p <= query->last; p++) {
        const double weight = exp(score(query, p) - largest);
        const kv_vector v = kv_at(query, qr_kv_v_offset(&args->layout), p);
        total += weight;
        for (int64_t j = 0; j < head_dim; j++) { sums[j] += weight * load_element(&args->layout, &v, j); }
    }
    for (int64_t j = 0; j < head_dim; j++) { qr_ref_store(args->dst, args->dst_dtype, dst_first + j, sums[j] / total); }
}

size_t qr_ref_attention_workspace(const qr_attention_args *args) {
    return (size_t)args->layout.head_dim * sizeof(double);
}

void qr_ref_attention(const qr_attention_args *args, void *workspace) {
    const int64_t head_dim = args->layout.head_dim;
    const int64_t group = args->n_heads / args->layout.n_kv_heads;
    for (int64_t s = 0; s < args->n_seqs; s++) {
        for (int64_t t = args->q_start[s]; t < args->q_start[s + 1]; t++) {
            const int64_t position = args->first_position[s] + (t - args->q_start[s]);
            const int64_t window_first = args->window > 0 ? position - args->window + 1 : 0;
            for (int64_t h = 0; h < args->n_heads; h++) {
                const head_query query = {
                    .args = args,
                    .table = args->block_table + s * args->table_stride,
                    .q = args->q + t * args->q_stride + h * head_dim,
                    .head = h,
                    .kv_head = h / group,
                    .first = window_first > 0 ? window_first : 0,
                    .last = position,
                };
                attend(&query, workspace, (t * args->n_heads + h) * head_dim);
            }
        }
    }
}
