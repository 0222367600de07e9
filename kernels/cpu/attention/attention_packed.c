/* attention_packed: attention over K and V that are first written to pages of their own (attention_packed.h), or on
 * matrix tiles. */
#include "kernels/cpu/attention/attention_packed.h"

#include "kernels/cpu/vector_ops_isa.h"

static void run_part(const qr_backend *backend, const qr_attention_packed_args *part, unsigned char *workspace) {
    qr_packed_pages pages;
    qr_kv_write_args write;
    qr_attention_args attention;
    unsigned char *rest = workspace + qr_packed_pages_make(part, workspace, &pages);
    qr_packed_kv_write(part, &pages, &write);
    qr_packed_attention(part, &pages, &attention);
    QR_ISA(qr_cpu_kv_write)(backend, &write);
    QR_ISA(qr_cpu_attention_lse)(backend, &attention, part->lse, rest);
}

void QR_ISA(qr_cpu_attention_packed)(const qr_backend *backend, const qr_attention_packed_args *args, void *workspace) {
    const qr_cpu_packed_tiles *tiles = qr_packed_tiles_of(backend, args);
    const int32_t page_tokens = tiles != NULL ? QR_PACKED_TILES_TOKENS : QR_KV_PAGE_TOKENS;
    qr_packed_part part;
    unsigned char *rest = (unsigned char *)workspace + qr_packed_parts_begin(args, page_tokens, workspace, &part);
    while (qr_packed_parts_next(args, &part)) {
        if (tiles != NULL) {
            tiles->forward(backend, &part.args, rest);
        } else {
            run_part(backend, &part.args, rest);
        }
    }
}
