/* The pages of a region: when they must exist, and what a change of them requires. */

#define _GNU_SOURCE
#include "suite.h"
#include <sys/mman.h>

/* A page-sized address range where nothing is or will be mapped: far from where the kernel places mappings. */
static unsigned char *nothing(void) {
    unsigned char *at = (unsigned char *)0x200000000000;
    if (mmap(at, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != at) abort();
    munmap(at, PAGE);
    return at;
}

/* Maps new pages at an address, replacing what was there. */
static void put_pages_at(unsigned char *at) {
    if (mmap(at, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != at) abort();
    memset(at, 0xEE, PAGE);
}

CHECK(range_without_pages, "FI-030", "without FI_MR_ALLOCATED, a range without pages can be registered", .without = FI_MR_ALLOCATED) {
    share_at(w, nothing(), REMOTE);
}

CHECK(transfer_without_pages, "FI-031 FI-064", "a transfer to a range without pages fails, and succeeds once they are mapped",
      .without = FI_MR_ALLOCATED | FI_MR_MMU_NOTIFY) {
    struct area area = share_at(w, nothing(), REMOTE);
    wants_failure("a write without pages", access_area(w, WRITE, &area, 0, 8));
    put_pages_at(area.bytes);
    wants("a write with pages", access_area(w, WRITE, &area, 0, 8), 0);
    wants_pattern(w, area.bytes, 8, "the bytes are written");
}

CHECK(pages_that_change, "FI-064 FI-065", "a region follows its pages: peers reach what is currently mapped at its address",
      .without = FI_MR_ALLOCATED | FI_MR_MMU_NOTIFY) {
    struct area area = share(w, REMOTE);
    for (int i = 0; i < 10; i++) {
        wants("a write", access_area(w, WRITE, &area, 0, 8), 0);
        wants_pattern(w, area.bytes, 8, "the bytes are in the pages that are mapped now");
        munmap(area.bytes, PAGE);
        put_pages_at(area.bytes);
    }
}

CHECK(refresh_reports_pages, "FI-069 FI-260", "with FI_MR_MMU_NOTIFY, pages that are mapped later need fi_mr_refresh", .needs = FI_MR_MMU_NOTIFY,
      .without = FI_MR_ALLOCATED) {
    struct area area = share_at(w, nothing(), REMOTE);
    put_pages_at(area.bytes);
    wants_failure("a write before fi_mr_refresh", access_area(w, WRITE, &area, 0, 8));
    wants_that(area.bytes[0] == 0xEE, "nothing is written");
    wants("fi_mr_refresh", fi_mr_refresh(area.mr, NULL, 0, 0), 0);
    wants("a write after fi_mr_refresh", access_area(w, WRITE, &area, 0, 8), 0);
}

CHECK(pages_that_are_there, "FI-196 FI-260", "pages that exist at registration need no fi_mr_refresh") {
    struct area area = share(w, REMOTE);
    wants("a write", access_area(w, WRITE, &area, 0, 8), 0);
}

CHECK(range_must_have_pages, "FI-061", "with FI_MR_ALLOCATED, a range without memory is refused", .needs = FI_MR_ALLOCATED) {
    struct fid_mr *mr;
    wants_refusal("fi_mr_reg", reg(&w->there, nothing(), PAGE, REMOTE, next_key(), 0, &mr));
}

CHECK(refresh, "FI-012 FI-185 FI-188 FI-189 FI-193", "without FI_MR_ALLOCATED, fi_mr_refresh accepts all or part of a region, or returns -FI_ENOSYS if FI_MR_MMU_NOTIFY is clear",
      .without = FI_MR_ALLOCATED) {
    struct area area = share(w, REMOTE);
    struct iovec half = {area.bytes, PAGE / 2};
    int all = fi_mr_refresh(area.mr, NULL, 0, 0), part = fi_mr_refresh(area.mr, &half, 1, 0);
    if (all == -FI_ENOSYS && part == -FI_ENOSYS && !(mode(w) & FI_MR_MMU_NOTIFY)) return;
    wants("fi_mr_refresh of everything", all, 0);
    wants("fi_mr_refresh of a half", part, 0);
    wants("a write afterwards", access_area(w, WRITE, &area, 0, 8), 0);
}

CHECK(refresh_of_fixed_pages, "FI-257", "with FI_MR_ALLOCATED and without FI_MR_MMU_NOTIFY, fi_mr_refresh returns -FI_ENOSYS", .needs = FI_MR_ALLOCATED,
      .without = FI_MR_MMU_NOTIFY) {
    struct area area = share(w, REMOTE);
    wants("fi_mr_refresh", fi_mr_refresh(area.mr, NULL, 0, 0), -FI_ENOSYS);
}

CHECK(refresh_of_other_memory, "FI-190 FI-258", "fi_mr_refresh of memory outside the region is an error") {
    struct area area = share(w, REMOTE);
    struct iovec beside = {pages(1), PAGE};
    wants_refusal("fi_mr_refresh", fi_mr_refresh(area.mr, &beside, 1, 0));
}
