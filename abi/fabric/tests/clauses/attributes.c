/* Attributes of later versions: interfaces of accelerator memory, page sizes, and what older programs pass instead. */

#include "suite.h"

static void usable(struct world *w, struct attributes *attr) {
    struct area area = {.bytes = attr->known.mr_iov->iov_base, .length = PAGE};
    wants("fi_mr_regattr", regattr(&w->there, attr, 0, &area.mr), 0);
    make_usable(w, &w->there, &area);
    name_area(w, &w->there, &area);
    wants("a write of a peer", access_area(w, WRITE, &area, 0, 8), 0);
}

CHECK(fields_of_later_versions, "FI-I43", "before 1.19, the provider reads no attributes of later versions", .below = FI_VERSION(1, 19)) {
    struct iovec part = {pages(1), PAGE};
    struct attributes attr = attributes(&part, 1, REMOTE);
    memset(&attr.hmem_data, 0xEE, sizeof attr - offsetof(struct attributes, hmem_data));
    usable(w, &attr);
}

CHECK(supported_page_sizes, "FI-136 FI-137", "from 1.22 on, page_size may be 0 or a page size of the system", .from = FI_VERSION(1, 22)) {
    struct iovec part = {pages(1), PAGE};
    struct attributes attr = attributes(&part, 1, REMOTE);
    usable(w, &attr);
    attr.page_size = PAGE;
    attr.known.requested_key = next_key();
    usable(w, &attr);
}

CHECK(unsupported_page_size, "FI-138", "from 1.22 on, a page_size that the system does not have is refused", .from = FI_VERSION(1, 22), .strict = true) {
    struct iovec part = {pages(1), PAGE};
    struct attributes attr = attributes(&part, 1, REMOTE);
    attr.page_size = 12345;
    struct fid_mr *mr;
    wants_refusal("fi_mr_regattr", regattr(&w->there, &attr, 0, &mr));
}

CHECK(unsupported_page_size_ignored, "FI-140", "from 1.22 on, a page_size that the system does not have is ignored", .from = FI_VERSION(1, 22),
      .lenient = true) {
    struct iovec part = {pages(1), PAGE};
    struct attributes attr = attributes(&part, 1, REMOTE);
    attr.page_size = 12345;
    struct area area = {.bytes = part.iov_base, .length = PAGE};
    wants("fi_mr_regattr", regattr(&w->there, &attr, 0, &area.mr), 0);
    make_usable(w, &w->there, &area);
    name_area(w, &w->there, &area);
    wants("a write of a peer", access_area(w, WRITE, &area, 0, 8), 0);
}

CHECK(system_memory, "FI-124", "with FI_HMEM and FI_HMEM_SYSTEM the attribute device is ignored", .caps = FI_HMEM) {
    struct iovec part = {pages(1), PAGE};
    struct attributes attr = attributes(&part, 1, REMOTE);
    attr.known.iface = FI_HMEM_SYSTEM;
    attr.known.device.reserved = 0xEEEEEEEEEEEEEEEE;
    usable(w, &attr);
}

CHECK(interfaces_of_devices, "partly FI-125 FI-126 FI-127 FI-128 FI-129", "with FI_HMEM, a region of a device's memory is made, or refused with an error",
      .caps = FI_HMEM) {
    for (int iface = FI_HMEM_CUDA; iface <= FI_HMEM_SYNAPSEAI; iface++) {
        struct iovec part = {pages(1), PAGE};
        struct attributes attr = attributes(&part, 1, REMOTE);
        attr.known.iface = iface;
        struct fid_mr *mr = NULL;
        int code = regattr(&w->there, &attr, 0, &mr);
        wants_that(code < 0 || mr != NULL, "there is a region or an error");
    }
}

CHECK(unknown_interface, "FI-130", "with FI_HMEM, an interface that does not exist is refused", .caps = FI_HMEM) {
    struct iovec part = {pages(1), PAGE};
    struct attributes attr = attributes(&part, 1, REMOTE);
    attr.known.iface = 99;
    struct fid_mr *mr;
    wants_refusal("fi_mr_regattr", regattr(&w->there, &attr, 0, &mr));
}

CHECK(buffers_of_the_system, "FI-043 partly FI-084", "with FI_MR_HMEM and without FI_MR_LOCAL, buffers of system memory need no registration", .needs = FI_MR_HMEM,
      .without = FI_MR_LOCAL, .caps = FI_HMEM) {
    struct area area = share(w, REMOTE);
    wants("a write from an unregistered buffer", write_from(w, pages(1), 64, NULL, &area), 0);
    wants("a read into an unregistered buffer", read_into(w, pages(1), 64, NULL, &area), 0);
}
