/* The three registration calls, their parameters, and the arguments that they refuse. */

#include "suite.h"
#include <rdma/fi_ext.h>

CHECK(synchronous_registration, "FI-001 FI-020 FI-200", "fi_mr_reg returns 0 and a region that is ready: registration is synchronous by default") {
    unsigned char *at = pages(1);
    struct area area = {.bytes = at, .length = PAGE};
    wants("fi_mr_reg", reg(&w->there, at, PAGE, REMOTE, next_key(), 0, &area.mr), 0);
    wants_that(area.mr != NULL, "the call sets mr");
    wants_that(area.mr->fid.fclass == FI_CLASS_MR, "mr is a region");
    make_usable(w, &w->there, &area);
    if (!(mode(w) & FI_MR_RAW)) wants_that(fi_mr_key(area.mr) != FI_KEY_NOTAVAIL, "the region has a key");
    name_area(w, &w->there, &area);
    wants("a write of a peer", access_area(w, WRITE, &area, 0, 64), 0);
    wants_pattern(w, at, 64, "the bytes are written");
}

/* A region of the first, third and fifth of five pages. */
static struct area three_pages_of_five(struct world *w) {
    if (w->there.info->domain_attr->mr_iov_limit < 3) differs("mr_iov_limit is below 3");
    unsigned char *at = pages(5);
    struct iovec parts[] = {{at, PAGE}, {at + 2 * PAGE, PAGE}, {at + 4 * PAGE, PAGE}};
    struct area area = {.bytes = at, .length = 3 * PAGE};
    wants("fi_mr_regv", fi_mr_regv(w->there.domain, parts, 3, REMOTE, 0, next_key(), 0, &area.mr, NULL), 0);
    make_usable(w, &w->there, &area);
    name_area(w, &w->there, &area);
    return area;
}

CHECK(several_buffers, "FI-002 FI-109", "fi_mr_regv makes one region of three buffers, with one key",
      .without = FI_MR_VIRT_ADDR) {
    struct area area = three_pages_of_five(w);
    unsigned char *at = area.bytes;
    for (size_t i = 0; i < 3; i++) {
        wants("a write to a part", access_area(w, WRITE, &area, i * PAGE, 64), 0);
        wants_pattern(w, at + 2 * i * PAGE, 64, "each part is at its offset in the region");
    }
    wants("a write across two parts", access_area(w, WRITE, &area, PAGE - 32, 64), 0);
    wants_pattern(w, at + PAGE - 32, 32, "the end of the first part is written");
    wants_pattern(w, at + 2 * PAGE, 32, "the start of the second part is written");
    wants_that(at[PAGE] == 0xEE, "the gap between two parts is not touched");
}

CHECK(several_buffers_by_address, "FI-I38", "peers reach a region of three buffers by their addresses, and not the gaps between them",
      .needs = FI_MR_VIRT_ADDR) {
    struct area area = three_pages_of_five(w);
    unsigned char *at = area.bytes;
    for (size_t i = 0; i < 5; i += 2) {
        wants("a write to a part", access_area(w, WRITE, &area, i * PAGE, 64), 0);
        wants_pattern(w, at + i * PAGE, 64, "the part at this address is written");
    }
    wants_failure("a write between two parts", access_area(w, WRITE, &area, PAGE, 64));
    wants_that(at[PAGE] == 0xEE, "the gap between two parts is not touched");
}

CHECK(by_attributes, "FI-003 FI-108 FI-117", "fi_mr_regattr makes the region that its attributes describe") {
    unsigned char *at = pages(1);
    struct iovec part = {at, PAGE};
    struct attributes attr = attributes(&part, 1, REMOTE);
    struct area area = {.bytes = at, .length = PAGE};
    wants("fi_mr_regattr", regattr(&w->there, &attr, 0, &area.mr), 0);
    make_usable(w, &w->there, &area);
    name_area(w, &w->there, &area);
    wants("a write of a peer", access_area(w, WRITE, &area, 0, 64), 0);
    wants_pattern(w, at, 64, "the bytes are written");
}

/* Registers with one of the three calls. */
static int reg_by(struct side *side, int call, struct iovec *part, size_t parts, uint64_t access, uint64_t offset,
                  uint64_t flags, struct fid_mr **mr) {
    struct attributes attr = attributes(part, parts, access);
    uint64_t key = attr.known.requested_key;
    attr.known.offset = offset;
    *mr = NULL;
    if (call == 0)
        return fi_mr_reg(side->domain, part->iov_base, part->iov_len, access, offset, key, flags, mr, NULL);
    if (call == 1) return fi_mr_regv(side->domain, part, parts, access, offset, key, flags, mr, NULL);
    return regattr(side, &attr, flags, mr);
}

static const char *const calls[] = {"fi_mr_reg", "fi_mr_regv", "fi_mr_regattr"};

CHECK(equivalent_calls, "FI-004 FI-019", "the three registration calls make regions with the same rights and the same rules for keys") {
    struct area areas[3];
    for (int call = 0; call < 3; call++) {
        struct area *area = &areas[call];
        *area = (struct area){.bytes = pages(1), .length = PAGE};
        struct iovec part = {area->bytes, PAGE};
        wants(calls[call], reg_by(&w->there, call, &part, 1, FI_REMOTE_READ, 0, 0, &area->mr), 0);
        make_usable(w, &w->there, area);
        name_area(w, &w->there, area);
        wants("a read with a read-only key", access_area(w, READ, area, 0, 64), 0);
    }
    for (int call = 0; call < 3; call++) {
        wants_failure("a write with a read-only key", access_area(w, WRITE, &areas[call], 0, 64));
        wants_that(areas[call].bytes[0] == 0xEE, "nothing is written");
    }
}

CHECK(length_of_0, "FI-015 FI-I34", "a region of length 0 is refused with -FI_EINVAL") {
    unsigned char *at = pages(1);
    struct fid_mr *mr;
    for (int call = 0; call < 3; call++) {
        struct iovec part = {at, 0};
        wants(calls[call], reg_by(&w->there, call, &part, 1, REMOTE, 0, 0, &mr), -FI_EINVAL);
    }
}

CHECK(no_buffers, "FI-I34", "a list of no buffers is refused with -FI_EINVAL") {
    unsigned char *at = pages(1);
    struct iovec part = {at, PAGE};
    struct fid_mr *mr;
    for (int call = 1; call < 3; call++)
        wants(calls[call], reg_by(&w->there, call, &part, 0, REMOTE, 0, 0, &mr), -FI_EINVAL);
}

CHECK(no_attributes, "FI-I34", "fi_mr_regattr without attributes is refused with -FI_EINVAL") {
    struct fid_mr *mr;
    wants("fi_mr_regattr", fi_mr_regattr(w->there.domain, NULL, 0, &mr), -FI_EINVAL);
}

CHECK(too_many_buffers, "FI-110", "more buffers than mr_iov_limit are refused") {
    size_t limit = w->there.info->domain_attr->mr_iov_limit, count = limit + 1;
    struct iovec *parts = calloc(count, sizeof *parts);
    unsigned char *at = pages(1);
    for (size_t i = 0; i < count; i++) parts[i] = (struct iovec){at, 1};
    struct fid_mr *mr;
    wants_refusal("fi_mr_regv", reg_by(&w->there, 1, parts, count, REMOTE, 0, 0, &mr));
    wants_refusal("fi_mr_regattr", reg_by(&w->there, 2, parts, count, REMOTE, 0, 0, &mr));
}

CHECK(reserved_offset, "FI-016 FI-112", "an offset other than 0 is refused: it is reserved", .strict = true) {
    unsigned char *at = pages(1);
    struct iovec part = {at, PAGE};
    struct fid_mr *mr;
    for (int call = 0; call < 3; call++)
        wants_refusal(calls[call], reg_by(&w->there, call, &part, 1, REMOTE, 8, 0, &mr));
}

CHECK(unknown_flags, "FI-141 FI-228", "each call refuses an unknown flag with -FI_EBADFLAGS") {
    unsigned char *at = pages(1);
    struct iovec part = {at, PAGE};
    struct fid_mr *mr;
    for (int call = 0; call < 3; call++)
        wants(calls[call], reg_by(&w->there, call, &part, 1, REMOTE, 0, 1ULL << 62, &mr), -FI_EBADFLAGS);
}

CHECK(unknown_rights, "FI-089", "an unknown right is refused", .strict = true) {
    unsigned char *at = pages(1);
    struct fid_mr *mr;
    wants_refusal("fi_mr_reg", reg(&w->there, at, PAGE, REMOTE | 1ULL << 62, next_key(), 0, &mr));
}

CHECK(reserved_offset_ignored, "FI-016 FI-112", "an offset other than 0 is ignored", .lenient = true) {
    for (int call = 0; call < 3; call++) {
        struct area area = {.bytes = pages(1), .length = PAGE};
        struct iovec part = {area.bytes, PAGE};
        wants(calls[call], reg_by(&w->there, call, &part, 1, REMOTE, 8, 0, &area.mr), 0);
        make_usable(w, &w->there, &area);
        name_area(w, &w->there, &area);
        wants("a write to the start", access_area(w, WRITE, &area, 0, 8), 0);
        wants_pattern(w, area.bytes, 8, "the start is written");
        wants_failure("a write past the end", access_area(w, WRITE, &area, PAGE, 8));
    }
}

CHECK(unknown_rights_ignored, "FI-089", "unknown capabilities and rights grant nothing", .lenient = true) {
    const uint64_t bits[] = {FI_RMA | FI_MSG, FI_TAGGED, FI_ATOMIC, 1ULL << 62};
    for (size_t i = 0; i < sizeof bits / sizeof *bits; i++) {
        struct area area = share(w, FI_REMOTE_READ | bits[i]);
        wants("a read", access_area(w, READ, &area, 0, 8), 0);
        wants_failure("a write", access_area(w, WRITE, &area, 0, 8));
        wants_that(area.bytes[0] == 0xEE, "nothing is written");
    }
}

CHECK(flags_of_device_memory, "FI-145 FI-147 FI-149", "flags about device memory are refused with -FI_EBADFLAGS without FI_HMEM") {
    if (w->there.info->caps & FI_HMEM) does_not_apply("the provider grants FI_HMEM unasked");
    unsigned char *at = pages(1);
    struct iovec part = {at, PAGE};
    /* FI_HMEM_DEVICE_ONLY, FI_HMEM_HOST_ALLOC and FI_MR_DMABUF; the headers have the last only since 1.20. */
    const uint64_t flags[] = {FI_HMEM_DEVICE_ONLY, FI_HMEM_HOST_ALLOC, 1ULL << 40};
    struct fid_mr *mr;
    for (size_t i = 0; i < 3; i++)
        wants("fi_mr_regattr", reg_by(&w->there, 2, &part, 1, REMOTE, 0, flags[i], &mr), -FI_EBADFLAGS);
}

CHECK(rma_event_flag, "FI-142", "FI_RMA_EVENT is a registration flag even without the mode bit FI_MR_RMA_EVENT",
      .without = FI_MR_RMA_EVENT, .caps = FI_RMA_EVENT) {
    struct area area = {.bytes = pages(1), .length = PAGE};
    wants("fi_mr_reg", reg(&w->there, area.bytes, PAGE, REMOTE, next_key(), FI_RMA_EVENT, &area.mr), 0);
    make_usable(w, &w->there, &area);
    name_area(w, &w->there, &area);
    wants("a write of a peer", access_area(w, WRITE, &area, 0, 8), 0);
}

CHECK(persistent_flag, "FI-143", "FI_RMA_PMEM is granted, or refused with -FI_EBADFLAGS; for memory that maps no file, it is refused with -FI_EINVAL") {
    unsigned char *at = pages(1);
    struct fid_mr *mr;
    int code = reg(&w->there, at, PAGE, REMOTE, next_key(), FI_RMA_PMEM, &mr);
    if (code && code != -FI_EBADFLAGS && code != -FI_EINVAL) wants("fi_mr_reg", code, -FI_EBADFLAGS);
}

CHECK(context_of_a_synchronous_call, "FI-116", "the context of a synchronous registration may be anything") {
    unsigned char *at = pages(1);
    struct fid_mr *mr;
    void *context = (void *)(uintptr_t)0x1234567;
    wants("fi_mr_reg", fi_mr_reg(w->there.domain, at, PAGE, REMOTE, 0, next_key(), 0, &mr, context), 0);
}

CHECK(interface_without_hmem, "FI-123", "without FI_HMEM, the attribute iface is ignored: the memory is system memory") {
    if (w->there.info->caps & FI_HMEM) does_not_apply("the provider grants FI_HMEM unasked");
    unsigned char *at = pages(1);
    struct iovec part = {at, PAGE};
    struct attributes attr = attributes(&part, 1, REMOTE);
    attr.known.iface = FI_HMEM_CUDA;
    attr.known.device.cuda = 77;
    struct area area = {.bytes = at, .length = PAGE};
    wants("fi_mr_regattr", regattr(&w->there, &attr, 0, &area.mr), 0);
    make_usable(w, &w->there, &area);
    name_area(w, &w->there, &area);
    wants("a write of a peer", access_area(w, WRITE, &area, 0, 8), 0);
}

CHECK(closing, "FI-005 FI-156 FI-159 FI-160", "after fi_close a peer gets an error, the memory is unchanged, and the endpoints keep working") {
    needs_closable_regions(w);
    struct area area = share(w, REMOTE);
    wants("a write before", access_area(w, WRITE, &area, 0, 8), 0);
    close_area(&area);
    memset(area.bytes, 0xEE, PAGE);
    wants_failure("a write after fi_close", access_area(w, WRITE, &area, 0, 8));
    wants_that(area.bytes[0] == 0xEE, "nothing is written");
    endpoints_work(w);
}

CHECK(closing_everything, "FI-005", "once the regions are closed, everything else can be closed") {
    struct area area = share(w, REMOTE);
    if (mode(w) & FI_MR_RAW) wants("fi_mr_unmap_key", fi_mr_unmap_key(w->here.domain, area.key), 0);
    if (!(mode(w) & FI_MR_ENDPOINT)) close_area(&area);
    close_endpoint(&w->there);
    if (area.mr) close_area(&area);
    wants("fi_close of the domain", fi_close(&w->there.domain->fid), 0);
    wants("fi_close of the fabric", fi_close(&w->there.fabric->fid), 0);
    close_side(&w->here);
}

CHECK(closing_the_domain_first, "FI-I05", "a domain with a region is busy: -FI_EBUSY", .without = FI_MR_ENDPOINT) {
    struct area area = {.bytes = pages(1), .length = PAGE};
    wants("fi_mr_reg", reg(&w->there, area.bytes, PAGE, REMOTE, next_key(), 0, &area.mr), 0);
    close_endpoint(&w->there);
    wants("fi_close of the domain", fi_close(&w->there.domain->fid), -FI_EBUSY);
    close_area(&area);
    wants("fi_close of the domain without regions", fi_close(&w->there.domain->fid), 0);
}
