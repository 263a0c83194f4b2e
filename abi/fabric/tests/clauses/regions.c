/* Memory, its registration, and the steps that mode bits require between registration and use. */

#define _GNU_SOURCE
#include "suite.h"
#include <sys/mman.h>

unsigned char *pages(size_t count) {
    void *at = mmap(NULL, count * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) abort();
    memset(at, 0xEE, count * PAGE);
    return at;
}

uint64_t next_key(void) {
    static uint64_t key = 0x100;
    return key++;
}

int reg(struct side *side, void *at, size_t length, uint64_t access, uint64_t key, uint64_t flags, struct fid_mr **mr) {
    *mr = NULL;
    return fi_mr_reg(side->domain, at, length, access, 0, key, flags, mr, NULL);
}

struct attributes attributes(const struct iovec *parts, size_t count, uint64_t access) {
    return (struct attributes){
        .known = {.mr_iov = parts, .iov_count = count, .access = access, .requested_key = next_key()}};
}

int regattr(struct side *side, const struct attributes *attr, uint64_t flags, struct fid_mr **mr) {
    *mr = NULL;
    return fi_mr_regattr(side->domain, &attr->known, flags, mr);
}

void make_usable(struct world *w, struct side *side, struct area *area) {
    if (!(mode(w) & FI_MR_ENDPOINT)) return;
    wants("fi_mr_bind to the endpoint", fi_mr_bind(area->mr, &side->ep->fid, 0), 0);
    wants("fi_mr_enable", fi_mr_enable(area->mr), 0);
}

void name_area(struct world *w, struct side *side, struct area *area) {
    area->base = mode(w) & FI_MR_VIRT_ADDR ? (uintptr_t)area->bytes : 0;
    area->key = fi_mr_key(area->mr);
    if (!(mode(w) & FI_MR_RAW)) return;
    struct side *other = side == &w->there ? &w->here : &w->there;
    uint8_t raw[256];
    size_t size = sizeof raw;
    wants("fi_mr_raw_attr", fi_mr_raw_attr(area->mr, &area->base, raw, &size, 0), 0);
    wants("fi_mr_map_raw", fi_mr_map_raw(other->domain, area->base, raw, size, &area->key, 0), 0);
}

struct area share_at(struct world *w, unsigned char *at, uint64_t access) {
    struct area area = {.bytes = at, .length = PAGE};
    wants("fi_mr_reg", reg(&w->there, at, PAGE, access, next_key(), 0, &area.mr), 0);
    wants_that(area.mr, "the call returns a region");
    make_usable(w, &w->there, &area);
    if (access & REMOTE)
        name_area(w, &w->there, &area);
    else
        area.key = 0x7777; /* it has none to pass on */
    return area;
}

struct area share(struct world *w, uint64_t access) { return share_at(w, pages(1), access); }

void needs_closable_regions(struct world *w) {
    if (mode(w) & FI_MR_ENDPOINT && w->api < FI_VERSION(2, 0)) does_not_apply("a region is closed after its endpoint");
}

void close_area(struct area *area) {
    wants("fi_close of the region", fi_close(&area->mr->fid), 0);
    area->mr = NULL;
}

void *describe(struct world *w, struct side *side, void *at, size_t length, uint64_t access) {
    struct area area = {.bytes = at, .length = length};
    wants("fi_mr_reg of a local buffer", reg(side, at, length, access, next_key(), 0, &area.mr), 0);
    make_usable(w, side, &area);
    return fi_mr_desc(area.mr);
}

void *local(struct world *w, struct side *side, void *at, size_t length, uint64_t access) {
    return mode(w) & FI_MR_LOCAL ? describe(w, side, at, length, access) : NULL;
}
