/* Buffers of the program's own transfers: when they must be registered, and with which rights. */

#include "suite.h"

/* The kinds of transfer that use the program's own buffer, and the right that each needs for it. */
enum use { SENT, SENT_TAGGED, RECEIVED, RECEIVED_TAGGED, READ_INTO, WRITTEN_FROM, USES };

static const struct {
    const char *name;
    uint64_t right;
} uses[USES] = {
    {"fi_send", FI_SEND},  {"fi_tsend", FI_SEND}, {"fi_recv", FI_RECV},
    {"fi_trecv", FI_RECV}, {"fi_read", FI_READ},  {"fi_write", FI_WRITE},
};

/* A transfer of this kind, with this descriptor for its buffer; the other buffer is as the mode requires. */
static int transfer(struct world *w, enum use use, unsigned char *at, void *desc) {
    static unsigned char *other;
    static struct area area;
    if (!other) {
        other = pages(1);
        memset(other, 0x5A, PAGE);
        area = share(w, REMOTE);
    }
    switch (use) {
    case SENT:
    case SENT_TAGGED: return message(w, at, desc, other, local(w, &w->there, other, PAGE, FI_RECV), 64, use == SENT_TAGGED);
    case RECEIVED:
    case RECEIVED_TAGGED:
        return message(w, other, local(w, &w->here, other, PAGE, FI_SEND), at, desc, 64, use == RECEIVED_TAGGED);
    case READ_INTO: return read_into(w, at, 64, desc, &area);
    default: return write_from(w, at, 64, desc, &area);
    }
}

/* The side whose buffer it is. */
static struct side *owner(struct world *w, enum use use) {
    return use == RECEIVED || use == RECEIVED_TAGGED ? &w->there : &w->here;
}

CHECK(unregistered_buffers, "FI-024 FI-036 FI-043 FI-046", "without FI_MR_LOCAL, every transfer accepts unregistered buffers",
      .without = FI_MR_LOCAL) {
    for (int use = 0; use < USES; use++) wants(uses[use].name, transfer(w, use, pages(1), NULL), 0);
}

CHECK(optional_descriptor, "FI-006 FI-047 FI-049", "without FI_MR_LOCAL, a program may still pass a valid descriptor", .without = FI_MR_LOCAL) {
    for (int use = 0; use < USES; use++) {
        unsigned char *at = pages(1);
        void *desc = describe(w, owner(w, use), at, PAGE, uses[use].right);
        wants(uses[use].name, transfer(w, use, at, desc), 0);
    }
}

CHECK(invalid_descriptor_before_1_22, "FI-044 FI-256", "without FI_MR_LOCAL, before 1.22, descriptors are ignored, even invalid ones",
      .without = FI_MR_LOCAL | FI_MR_HMEM, .below = FI_VERSION(1, 22)) {
    for (int use = 0; use < USES; use++) wants(uses[use].name, transfer(w, use, pages(1), (void *)(uintptr_t)0x11), 0);
}

CHECK(invalid_descriptor_from_1_22_on, "FI-045 FI-256", "without FI_MR_LOCAL, from 1.22 on, a descriptor must be valid",
      .without = FI_MR_LOCAL | FI_MR_HMEM, .from = FI_VERSION(1, 22)) {
    for (int use = 0; use < USES; use++)
        wants_failure(uses[use].name, transfer(w, use, pages(1), (void *)(uintptr_t)0x11));
    for (int use = 0; use < USES; use++) wants(uses[use].name, transfer(w, use, pages(1), NULL), 0);
}

CHECK(buffers_without_registration, "FI-024 FI-042 partly FI-085", "with FI_MR_LOCAL, a transfer without a descriptor is refused", .needs = FI_MR_LOCAL) {
    for (int use = 0; use < USES; use++) {
        unsigned char *at = pages(1);
        wants_failure(uses[use].name, transfer(w, use, at, NULL));
        void *desc = describe(w, owner(w, use), at, PAGE, uses[use].right);
        wants(uses[use].name, transfer(w, use, at, desc), 0);
    }
}

CHECK(rights_of_local_buffers, "FI-090 FI-091 FI-092 FI-094", "with FI_MR_LOCAL, a transfer needs its own right; all the other rights together do not suffice",
      .needs = FI_MR_LOCAL) {
    for (int use = 0; use < USES; use++) {
        unsigned char *at = pages(1);
        void *without = describe(w, owner(w, use), at, PAGE, EVERY_RIGHT & ~uses[use].right);
        wants_failure(uses[use].name, transfer(w, use, at, without));
        void *with = describe(w, owner(w, use), at, PAGE, uses[use].right);
        wants(uses[use].name, transfer(w, use, at, with), 0);
    }
}

CHECK(bytes_of_local_buffers, "FI-093 FI-095 FI-097", "a read changes the initiator's buffer and not the target's; a write leaves the initiator's buffer unchanged") {
    struct area area = share(w, REMOTE);
    unsigned char *at = pages(1);
    memset(area.bytes, 0x5A, PAGE);
    wants("fi_read", read_into(w, at, 64, local(w, &w->here, at, PAGE, FI_READ), &area), 0);
    wants_pattern(w, at, 64, "the buffer has the bytes");
    wants_pattern(w, area.bytes, 64, "the region has them too");
    wants("fi_write", write_from(w, at, 64, local(w, &w->here, at, PAGE, FI_WRITE), &area), 0);
    wants_pattern(w, at, 64, "the buffer still has the bytes");
}

CHECK(program_for_any_mode, "FI-026 FI-040", "a program that does exactly what the mode bits in force require can use every transfer") {
    struct area area = share(w, REMOTE);
    for (int operation = 0; operation < OPERATIONS; operation++)
        wants(operation_names[operation], access_area(w, operation, &area, 0, 8), 0);
    endpoints_work(w);
}
