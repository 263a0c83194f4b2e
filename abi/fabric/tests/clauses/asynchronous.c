/* Registration that an event queue reports. */

#include "suite.h"

static struct fid_eq *bind_queue(struct world *w, uint64_t flags) {
    struct fi_eq_attr attr = {.wait_obj = FI_WAIT_NONE};
    struct fid_eq *queue = NULL;
    wants("fi_eq_open", fi_eq_open(w->there.fabric, &attr, &queue, NULL), 0);
    wants("fi_domain_bind", fi_domain_bind(w->there.domain, &queue->fid, flags), 0);
    return queue;
}

struct event {
    struct fid_eq *queue;
    uint32_t kind;
    struct fi_eq_entry entry;
    ssize_t length;
};

static bool has_come(void *of) {
    struct event *event = of;
    event->length = fi_eq_read(event->queue, &event->kind, &event->entry, sizeof event->entry, 0);
    return event->length != -FI_EAGAIN;
}

CHECK(event_of_a_registration, "FI-115 FI-201 FI-202 FI-204 FI-206 FI-I01 FI-I02 FI-I04",
      "with FI_REG_MR one event reports each registration, with the region's fid and context") {
    struct event event = {.queue = bind_queue(w, FI_REG_MR)};
    for (uintptr_t context = 0x100; context < 0x103; context++) {
        struct fid_mr *mr = NULL;
        wants("fi_mr_reg", fi_mr_reg(w->there.domain, pages(1), PAGE, REMOTE, 0, next_key(), 0, &mr, (void *)context), 0);
        wants_that(mr != NULL, "the call sets mr");
        wants_that(comes(w, has_come, &event), "an event arrives");
        wants_that(event.length == sizeof event.entry, "the event has the size of fi_eq_entry");
        wants_that(event.kind == FI_MR_COMPLETE, "the event is FI_MR_COMPLETE");
        wants_that(event.entry.fid == &mr->fid, "the event names the region");
        wants_that(event.entry.context == (void *)context, "the event has the context");
    }
    wants_that(!has_come(&event), "there is one event for each registration");
}

CHECK(use_after_the_event, "FI-162 FI-163 FI-167", "after the event the region's descriptor, key and raw attributes are available and valid",
      .without = FI_MR_ENDPOINT) {
    struct event event = {.queue = bind_queue(w, FI_REG_MR)};
    struct area area = {.bytes = pages(1), .length = PAGE};
    wants("fi_mr_reg", reg(&w->there, area.bytes, PAGE, REMOTE | FI_RECV, next_key(), 0, &area.mr), 0);
    wants_that(comes(w, has_come, &event), "an event arrives");
    wants_that(event.entry.fid == &area.mr->fid, "the event names the region");
    name_area(w, &w->there, &area);
    wants("a write with the key", access_area(w, WRITE, &area, 0, 64), 0);
    wants_pattern(w, area.bytes, 64, "the bytes are written");
    memset(area.bytes, 0xEE, PAGE);
    unsigned char *from = pages(1);
    memset(from, 0x5A, PAGE);
    void *desc = local(w, &w->here, from, PAGE, FI_SEND);
    wants("a message received with the descriptor", message(w, from, desc, area.bytes, fi_mr_desc(area.mr), 64, false), 0);
    wants_pattern(w, area.bytes, 64, "the message has its bytes");
}

CHECK(no_event_of_a_failure, "FI-203", "a registration that the call refuses reports no event") {
    struct event event = {.queue = bind_queue(w, FI_REG_MR)};
    struct fid_mr *mr;
    unsigned char *at = pages(1);
    wants_refusal("fi_mr_reg of length 0", reg(&w->there, at, 0, REMOTE, next_key(), 0, &mr));
    /* The first event is that of the next registration. */
    wants("fi_mr_reg", reg(&w->there, at, PAGE, REMOTE, next_key(), 0, &mr), 0);
    wants_that(comes(w, has_come, &event), "an event arrives");
    wants_that(event.entry.fid == &mr->fid, "the event names the region that was created");
}

CHECK(queue_without_the_flag, "FI-I01", "an event queue that is bound without FI_REG_MR leaves registration synchronous",
      .without = FI_MR_ENDPOINT) {
    struct event event = {.queue = bind_queue(w, 0)};
    struct area area = share(w, REMOTE);
    wants("a write at once", access_area(w, WRITE, &area, 0, 8), 0);
    wants_that(!has_come(&event), "no event arrives");
}
