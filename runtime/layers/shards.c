#include "runtime/layers/shards.h"

/* Part r of n, as equal as may be, begins there. */
static int64_t share_of(int64_t n_floats, int32_t r, int32_t n) { return n_floats / n * r + n_floats % n * r / n; }

/* The boundary of tensors nearest to a float of the arena. */
static int64_t tensor_cut(const qr_parameters *p, int64_t target) {
    const int64_t i = qr_parameters_find(p, target);
    const int64_t begin = p->list[i].offset, end = i + 1 < p->n ? p->list[i + 1].offset : p->n_floats;
    return target - begin < end - target ? begin : end;
}

/* The boundary of blocks of a tensor, at most there. */
static int64_t block_cut(const qr_parameters *p, int64_t target) {
    const int64_t begin = p->list[qr_parameters_find(p, target)].offset;
    return begin + (target - begin) / QR_SHARD_BLOCK * QR_SHARD_BLOCK;
}

int64_t qr_shards_begin(const qr_shards *shards, int64_t section, int32_t rank) {
    const qr_parameters *p = shards->parameters;
    const qr_section *s = &p->sections[section];
    const int64_t end = qr_parameters_section_end(p, section);
    int64_t cut;
    if (rank == 0 || rank == shards->n_ranks) { return rank == 0 ? s->begin : end; }
    if (shards->whole_tensors) {
        cut = tensor_cut(p, share_of(p->n_floats, rank, shards->n_ranks));
    } else {
        cut = s->begin + share_of(s->all_floats, rank, shards->n_ranks) - s->floats_before;
        if (cut > s->begin && cut < end) { cut = block_cut(p, cut); }
    }
    return qr_min(qr_max(cut, s->begin), end);
}

qr_shard_part qr_shards_part(const qr_shards *shards, int64_t section, int32_t rank) {
    return (qr_shard_part){qr_shards_begin(shards, section, rank), qr_shards_begin(shards, section, rank + 1)};
}

int64_t qr_shards_common(const qr_shards *shards, int32_t rank, int64_t begin, int64_t end, int64_t *first) {
    const qr_shard_part part = qr_shards_part(shards, qr_parameters_section(shards->parameters, begin), rank);
    *first = qr_max(begin, part.begin);
    return qr_max(0, qr_min(end, part.end) - *first);
}

int64_t qr_shards_floats(const qr_shards *shards, int32_t rank) {
    int64_t n_floats = 0;
    for (int64_t s = 0; s < shards->parameters->n_sections; s++) {
        const qr_shard_part part = qr_shards_part(shards, s, rank);
        n_floats += part.end - part.begin;
    }
    return n_floats;
}

int64_t qr_shards_place(const qr_shards *shards, int32_t rank, int64_t position) {
    const int64_t section = qr_parameters_section(shards->parameters, position);
    int64_t place = position - qr_shards_begin(shards, section, rank);
    for (int64_t s = 0; s < section; s++) {
        const qr_shard_part part = qr_shards_part(shards, s, rank);
        place += part.end - part.begin;
    }
    return place;
}

qr_shard_chunks qr_shards_chunks(const qr_shards *shards, int64_t section, int32_t rank) {
    const qr_parameters *p = shards->parameters;
    const qr_shard_part part = qr_shards_part(shards, section, rank);
    const int64_t begin = p->sections[section].begin, end = qr_parameters_section_end(p, section);
    const int64_t first = qr_ceil_div(part.begin - begin, QR_SQUARES_CHUNK);
    const int64_t next = qr_ceil_div(part.end - begin, QR_SQUARES_CHUNK);
    if (first == next) { return (qr_shard_chunks){0, part.end, part.end, part.end}; }
    return (qr_shard_chunks){.n = next - first,
                             .begin = begin + first * QR_SQUARES_CHUNK,
                             .tail = part.end,
                             .end = qr_min(begin + next * QR_SQUARES_CHUNK, end)};
}

int64_t qr_shards_count_chunks(const qr_shards *shards, int32_t rank) {
    int64_t n = 0;
    for (int64_t s = 0; s < shards->parameters->n_sections; s++) { n += qr_shards_chunks(shards, s, rank).n; }
    return n;
}
