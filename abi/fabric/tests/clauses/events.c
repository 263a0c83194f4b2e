/* Binding a region to counters and endpoints, and enabling it. */

#include "suite.h"

static struct fid_cntr *open_counter(struct side *side) {
    struct fi_cntr_attr attr = {.events = FI_CNTR_EVENTS_COMP};
    struct fid_cntr *counter = NULL;
    wants("fi_cntr_open", fi_cntr_open(side->domain, &attr, &counter, NULL), 0);
    return counter;
}

/* A region that will be bound to a counter. */
static struct area counted(struct world *w) {
    struct area area = {.bytes = pages(1), .length = PAGE};
    wants("fi_mr_reg", reg(&w->there, area.bytes, PAGE, REMOTE, next_key(), FI_RMA_EVENT, &area.mr), 0);
    return area;
}

/* The steps after a counter was bound. */
static void enable(struct world *w, struct area *area) {
    if (mode(w) & FI_MR_ENDPOINT) wants("fi_mr_bind to the endpoint", fi_mr_bind(area->mr, &w->there.ep->fid, 0), 0);
    if (mode(w) & (FI_MR_ENDPOINT | FI_MR_RMA_EVENT)) wants("fi_mr_enable", fi_mr_enable(area->mr), 0);
    name_area(w, &w->there, area);
}

static bool counts_one(void *of) { return fi_cntr_read(of) == 1; }
static bool counts_two(void *of) { return fi_cntr_read(of) == 2; }

CHECK(counter_of_a_region, "FI-011 FI-177 FI-180", "a counter that is bound to a region counts writes and atomic operations, not reads",
      .caps = FI_RMA_EVENT) {
    struct fid_cntr *counter = open_counter(&w->there);
    struct area area = counted(w);
    wants("fi_mr_bind", fi_mr_bind(area.mr, &counter->fid, FI_REMOTE_WRITE), 0);
    enable(w, &area);
    wants("a write", access_area(w, WRITE, &area, 0, 8), 0);
    wants_that(comes(w, counts_one, counter), "the write is counted");
    wants("a read", access_area(w, READ, &area, 0, 8), 0);
    wants("an atomic operation", access_area(w, ATOMIC, &area, 0, 8), 0);
    wants_that(comes(w, counts_two, counter), "the atomic operation is counted, and the read is not");
}

CHECK(flags_of_a_binding, "FI-179 FI-I37", "a counter is bound with FI_REMOTE_WRITE and no other flag", .caps = FI_RMA_EVENT) {
    struct fid_cntr *counter = open_counter(&w->there);
    struct area area = counted(w);
    wants_refusal("fi_mr_bind with FI_REMOTE_READ", fi_mr_bind(area.mr, &counter->fid, FI_REMOTE_READ));
    wants_refusal("fi_mr_bind with FI_SEND", fi_mr_bind(area.mr, &counter->fid, FI_REMOTE_WRITE | FI_SEND));
    wants("fi_mr_bind", fi_mr_bind(area.mr, &counter->fid, FI_REMOTE_WRITE), 0);
}

CHECK(what_can_be_bound, "FI-I37", "a second counter is refused with -FI_EBUSY, a counter of another domain with -FI_EINVAL, and a queue with -FI_ENOSYS",
      .caps = FI_RMA_EVENT) {
    struct area area = counted(w);
    wants("fi_mr_bind to a queue", fi_mr_bind(area.mr, &w->there.cq->fid, FI_REMOTE_WRITE), -FI_ENOSYS);
    wants("fi_mr_bind to a counter of another domain",
          fi_mr_bind(area.mr, &open_counter(&w->here)->fid, FI_REMOTE_WRITE), -FI_EINVAL);
    wants("fi_mr_bind", fi_mr_bind(area.mr, &open_counter(&w->there)->fid, FI_REMOTE_WRITE), 0);
    wants("fi_mr_bind to a second counter", fi_mr_bind(area.mr, &open_counter(&w->there)->fid, FI_REMOTE_WRITE), -FI_EBUSY);
}

CHECK(binding_without_capability, "FI-183 FI-227", "without FI_RMA_EVENT, a counter cannot be bound: -FI_ENOSYS", .without = FI_MR_RMA_EVENT) {
    if (w->there.info->caps & FI_RMA_EVENT) does_not_apply("the provider grants FI_RMA_EVENT unasked");
    struct area area = {.bytes = pages(1), .length = PAGE};
    wants("fi_mr_reg", reg(&w->there, area.bytes, PAGE, REMOTE, next_key(), 0, &area.mr), 0);
    struct fi_cntr_attr attr = {.events = FI_CNTR_EVENTS_COMP};
    struct fid_cntr *counter = NULL;
    if (fi_cntr_open(w->there.domain, &attr, &counter, NULL)) does_not_apply("the provider has no counters");
    wants("fi_mr_bind", fi_mr_bind(area.mr, &counter->fid, FI_REMOTE_WRITE), -FI_ENOSYS);
}

CHECK(closing_with_a_counter, "FI-161 FI-229 FI-267 FI-I06", "a region with a counter is busy: -FI_EBUSY; closing the counter releases it",
      .without = FI_MR_ENDPOINT, .caps = FI_RMA_EVENT, .strict = true) {
    struct fid_cntr *counter = open_counter(&w->there);
    struct area area = counted(w);
    wants("fi_mr_bind", fi_mr_bind(area.mr, &counter->fid, FI_REMOTE_WRITE), 0);
    enable(w, &area);
    wants("fi_close of the region", fi_close(&area.mr->fid), -FI_EBUSY);
    wants("a write to the region, which is not closed", access_area(w, WRITE, &area, 0, 8), 0);
    wants("fi_close of the counter", fi_close(&counter->fid), 0);
    wants("fi_close of the region afterwards", fi_close(&area.mr->fid), 0);
}

CHECK(closing_before_the_counter, "FI-005", "a region may be closed before its counter, which keeps its count",
      .without = FI_MR_ENDPOINT, .caps = FI_RMA_EVENT, .lenient = true) {
    struct fid_cntr *counter = open_counter(&w->there);
    struct area area = counted(w);
    wants("fi_mr_bind", fi_mr_bind(area.mr, &counter->fid, FI_REMOTE_WRITE), 0);
    enable(w, &area);
    wants("a write", access_area(w, WRITE, &area, 0, 8), 0);
    wants_that(comes(w, counts_one, counter), "the write is counted");
    wants("fi_close of the region", fi_close(&area.mr->fid), 0);
    wants_failure("a write after fi_close", access_area(w, WRITE, &area, 0, 8));
    wants_that(counts_one(counter), "the counter keeps its value");
    wants("fi_close of the counter", fi_close(&counter->fid), 0);
}

CHECK(disabled_at_first, "FI-013 FI-072 FI-074 FI-197 FI-198", "with FI_MR_RMA_EVENT, a region with the flag FI_RMA_EVENT is unusable until fi_mr_enable",
      .needs = FI_MR_RMA_EVENT, .without = FI_MR_ENDPOINT | FI_MR_RAW | FI_MR_PROV_KEY, .caps = FI_RMA_EVENT) {
    struct area area = {.bytes = pages(1), .length = PAGE};
    wants("fi_mr_reg", reg(&w->there, area.bytes, PAGE, REMOTE, 0x77, FI_RMA_EVENT, &area.mr), 0);
    area.base = mode(w) & FI_MR_VIRT_ADDR ? (uintptr_t)area.bytes : 0;
    area.key = 0x77;
    wants_failure("a write before fi_mr_enable", access_area(w, WRITE, &area, 0, 8));
    wants_that(area.bytes[0] == 0xEE, "nothing is written");
    wants("fi_mr_bind", fi_mr_bind(area.mr, &open_counter(&w->there)->fid, FI_REMOTE_WRITE), 0);
    wants("fi_mr_enable", fi_mr_enable(area.mr), 0);
    wants("a write after fi_mr_enable", access_area(w, WRITE, &area, 0, 8), 0);
}

CHECK(binding_after_enabling, "FI-075 FI-199 FI-I35", "with FI_MR_RMA_EVENT, nothing can be bound after fi_mr_enable", .needs = FI_MR_RMA_EVENT,
      .without = FI_MR_ENDPOINT, .caps = FI_RMA_EVENT) {
    struct area area = counted(w);
    wants("fi_mr_enable", fi_mr_enable(area.mr), 0);
    wants("fi_mr_bind", fi_mr_bind(area.mr, &open_counter(&w->there)->fid, FI_REMOTE_WRITE), -FI_EOPBADSTATE);
}

CHECK(binding_without_the_flag, "FI-070 FI-071", "with FI_MR_RMA_EVENT, a region made without the flag FI_RMA_EVENT takes no counter",
      .needs = FI_MR_RMA_EVENT, .caps = FI_RMA_EVENT) {
    struct area area = {.bytes = pages(1), .length = PAGE};
    wants("fi_mr_reg", reg(&w->there, area.bytes, PAGE, REMOTE, next_key(), 0, &area.mr), 0);
    wants_refusal("fi_mr_bind", fi_mr_bind(area.mr, &open_counter(&w->there)->fid, FI_REMOTE_WRITE));
}

CHECK(region_of_an_endpoint, "FI-076 FI-077 FI-078 FI-178 FI-I35", "with FI_MR_ENDPOINT a region works for the endpoint that it is bound to, once it is enabled",
      .needs = FI_MR_ENDPOINT, .without = FI_MR_RMA_EVENT | FI_MR_RAW | FI_MR_PROV_KEY) {
    struct area area = {.bytes = pages(1), .length = PAGE};
    wants("fi_mr_reg", reg(&w->there, area.bytes, PAGE, REMOTE, 0x77, 0, &area.mr), 0);
    area.base = mode(w) & FI_MR_VIRT_ADDR ? (uintptr_t)area.bytes : 0;
    area.key = 0x77;
    wants("fi_mr_enable before fi_mr_bind", fi_mr_enable(area.mr), -FI_EOPBADSTATE);
    wants("fi_mr_bind", fi_mr_bind(area.mr, &w->there.ep->fid, 0), 0);
    wants_failure("a write before fi_mr_enable", access_area(w, WRITE, &area, 0, 8));
    wants("fi_mr_enable", fi_mr_enable(area.mr), 0);
    wants("a write after fi_mr_enable", access_area(w, WRITE, &area, 0, 8), 0);
    memset(area.bytes, 0xEE, PAGE);
    struct side second = w->there;
    open_endpoint(&second);
    w->here.peer = name_of(&w->here, second.ep);
    w->there.cq = second.cq;
    wants_failure("a write through another endpoint", access_area(w, WRITE, &area, 0, 8));
    wants_that(area.bytes[0] == 0xEE, "nothing is written");
}

CHECK(flags_of_an_endpoint, "FI-182", "a region is bound to an endpoint without flags", .needs = FI_MR_ENDPOINT) {
    struct area area = {.bytes = pages(1), .length = PAGE};
    wants("fi_mr_reg", reg(&w->there, area.bytes, PAGE, REMOTE, next_key(), 0, &area.mr), 0);
    wants_refusal("fi_mr_bind with FI_REMOTE_WRITE", fi_mr_bind(area.mr, &w->there.ep->fid, FI_REMOTE_WRITE));
}

CHECK(closing_with_an_endpoint, "FI-161 FI-267", "before 2.0, a region with an endpoint is busy: -FI_EBUSY; closing the endpoint releases it",
      .needs = FI_MR_ENDPOINT, .below = FI_VERSION(2, 0), .strict = true) {
    struct area area = share(w, REMOTE);
    if (mode(w) & FI_MR_RAW) wants("fi_mr_unmap_key", fi_mr_unmap_key(w->here.domain, area.key), 0);
    wants("fi_close of the region", fi_close(&area.mr->fid), -FI_EBUSY);
    close_endpoint(&w->there);
    close_area(&area);
}

CHECK(closing_before_the_endpoint_before_2_0, "FI-005", "before 2.0, a region may be closed before its endpoint", .needs = FI_MR_ENDPOINT,
      .below = FI_VERSION(2, 0), .lenient = true) {
    struct area area = share(w, REMOTE);
    close_area(&area);
    wants_failure("a write after fi_close", access_area(w, WRITE, &area, 0, 8));
    close_endpoint(&w->there);
}

CHECK(closing_before_the_endpoint, "FI-I07", "from 2.0 on, a region is closed before its endpoint", .needs = FI_MR_ENDPOINT,
      .from = FI_VERSION(2, 0)) {
    struct area area = share(w, REMOTE);
    close_area(&area);
    wants_failure("a write after fi_close", access_area(w, WRITE, &area, 0, 8));
    close_endpoint(&w->there);
}
