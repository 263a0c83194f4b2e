/* Limits on peers: rights, keys, ranges and addresses, for every kind of remote access. */

#include "suite.h"

static const struct {
    uint64_t bits;
    const char *name;
} rights[] = {{REMOTE, "a read-write"}, {FI_REMOTE_WRITE, "a write-only"}, {FI_REMOTE_READ, "a read-only"}, {0, "a no-access"}};

/* Tries an operation with a key for each set of remote rights. The keys that allow the operation come first, because a
 * refusal may end the connection. */
static void rights_of(struct world *w, enum operation operation) {
    char what[64];
    uint64_t needed = rights_for(operation);
    for (int enough = 1; enough >= 0; enough--)
        for (size_t i = 0; i < sizeof rights / sizeof *rights; i++) {
            if (((rights[i].bits & needed) == needed) != enough) continue;
            /* FI_SEND, because a region must have at least one right. */
            struct area area = share(w, rights[i].bits | FI_SEND);
            snprintf(what, sizeof what, "%s with %s key", operation_names[operation], rights[i].name);
            int code = access_area(w, operation, &area, 0, 8);
            if (enough)
                wants(what, code, 0);
            else
                wants_failure(what, code);
            if (enough && operation != READ)
                wants_pattern(w, area.bytes, 8, "the target has the result of the operation");
            else
                wants_that(area.bytes[0] == 0xEE, "the target is not changed");
        }
}

CHECK(right_to_write, "FI-021 FI-098 FI-099", "a write needs FI_REMOTE_WRITE") { rights_of(w, WRITE); }
CHECK(right_to_read, "FI-021 FI-096 FI-097", "a read needs FI_REMOTE_READ and changes nothing at its target") { rights_of(w, READ); }
CHECK(right_to_change, "FI-098 FI-I49", "an atomic operation needs only FI_REMOTE_WRITE") { rights_of(w, ATOMIC); }
CHECK(right_to_fetch, "FI-I49", "a fetching atomic operation needs both remote rights") { rights_of(w, FETCH); }
CHECK(right_to_compare, "FI-I49", "a comparing atomic operation needs both remote rights") { rights_of(w, COMPARE); }

CHECK(result_of_a_comparison, "FI-099 FI-I11", "a comparing atomic operation changes its target when the values are equal") {
    struct area area = share(w, REMOTE);
    wants("comparing atomic", access_area(w, COMPARE, &area, 16, 8), 0);
    wants_pattern(w, area.bytes + 16, 8, "the 8 bytes at offset 16 have the new value");
        wants_that(area.bytes[15] == 0xEE && area.bytes[24] == 0xEE, "no others are written");
}

CHECK(wrong_key, "FI-022 FI-104", "an access with an unknown key fails and changes nothing") {
    struct area area = share(w, REMOTE);
    for (int operation = 0; operation < OPERATIONS; operation++) {
        wants_failure(operation_names[operation], remote(w, operation, area.base, 8, area.key + 0x5000));
        wants_that(area.bytes[0] == 0xEE, "nothing is written");
    }
}

CHECK(codes_of_refusals, "FI-I36", "a refusal is FI_EACCES, FI_EINVAL, FI_ENOKEY or FI_EREMOTEIO in the completion's error") {
    struct area area = share(w, FI_REMOTE_READ);
    const int codes[] = {access_area(w, WRITE, &area, 0, 8), remote(w, WRITE, area.base, 8, area.key + 0x5000),
                         access_area(w, READ, &area, PAGE, 8)};
    const char *const names[] = {"a write with a read-only key", "a write with an unknown key", "a read past the end"};
    for (size_t i = 0; i < 3; i++) {
        /* The call itself refuses an unknown raw key. */
        int code = mode(w) & FI_MR_RAW ? abs(codes[i]) : codes[i];
        if (code != FI_EACCES && code != FI_EINVAL && code != FI_ENOKEY && code != FI_EREMOTEIO)
            differs("%s: %s", names[i], code_name(code));
    }
}

CHECK(ends_of_a_region, "FI-054 FI-I09", "the last byte of a region can be reached, and the byte past the end cannot") {
    struct area area = share(w, REMOTE);
    wants("a write of the last bytes", access_area(w, WRITE, &area, PAGE - 8, 8), 0);
    wants_pattern(w, area.bytes + PAGE - 8, 8, "the bytes are written");
    memset(area.bytes, 0xEE, PAGE);
    for (int operation = 0; operation < OPERATIONS; operation++) {
        wants_failure("an access past the end", access_area(w, operation, &area, PAGE, 8));
        wants_failure("an access before the start", access_area(w, operation, &area, (uint64_t)-8, 8));
    }
    wants_failure("a write across the end", access_area(w, WRITE, &area, PAGE - 8, 16));
    wants_that(area.bytes[PAGE - 1] == 0xEE, "nothing is written");
}

CHECK(address_that_wraps, "FI-I39", "a range that wraps around the address space is refused") {
    struct area area = share(w, REMOTE);
    wants_failure("a write", remote(w, WRITE, UINT64_MAX - 3, 8, area.key));
    wants_failure("a read", remote(w, READ, UINT64_MAX - 3, 8, area.key));
    wants_that(area.bytes[0] == 0xEE && area.bytes[3] == 0xEE, "nothing is written");
}

CHECK(offsets, "FI-027 FI-033 FI-060 FI-I11", "without FI_MR_VIRT_ADDR, every operation names an offset from the start of the region", .without = FI_MR_VIRT_ADDR) {
    struct area area = share(w, REMOTE);
    for (int operation = 0; operation < COMPARE; operation++) {
        memset(area.bytes, 0xEE, PAGE);
        if (operation == READ) memset(area.bytes + 16, 0x5A, 8);
        wants(operation_names[operation], access_area(w, operation, &area, 16, 8), 0);
        if (operation == READ) wants_pattern(w, last_result(), 8, "the bytes from 16 on are read");
        wants_pattern(w, area.bytes + 16, 8, "the bytes from 16 on are written");
        wants_that(area.bytes[15] == 0xEE && area.bytes[24] == 0xEE, "no others are written");
    }
    wants_failure("a write by virtual address", remote(w, WRITE, (uintptr_t)area.bytes, 8, area.key));
}

CHECK(virtual_addresses, "FI-053 FI-055 FI-060 FI-I11", "with FI_MR_VIRT_ADDR, every operation names virtual addresses, and offsets fail", .needs = FI_MR_VIRT_ADDR) {
    struct area area = share(w, REMOTE);
    for (int operation = 0; operation < COMPARE; operation++) {
        memset(area.bytes, 0xEE, PAGE);
        if (operation == READ) memset(area.bytes + 16, 0x5A, 8);
        wants(operation_names[operation], remote(w, operation, (uintptr_t)area.bytes + 16, 8, area.key), 0);
        if (operation == READ) wants_pattern(w, last_result(), 8, "the bytes at the address are read");
        wants_pattern(w, area.bytes + 16, 8, "the bytes at the address are written");
        wants_that(area.bytes[15] == 0xEE && area.bytes[24] == 0xEE, "no others are written");
    }
    wants_failure("a write by offset", remote(w, WRITE, 16, 8, area.key));
}

CHECK(overlapping_regions, "FI-I40", "regions may overlap; each has its own key and rights") {
    unsigned char *at = pages(1);
    struct area one = share_at(w, at, FI_REMOTE_READ), two = share_at(w, at, REMOTE);
    wants("a read with the read-only key", access_area(w, READ, &one, 0, 8), 0);
    wants("a write with the read-write key", access_area(w, WRITE, &two, 0, 8), 0);
    memset(at, 0xEE, PAGE);
    wants_failure("a write with the read-only key", access_area(w, WRITE, &one, 0, 8));
    wants_that(at[0] == 0xEE, "nothing is written");
}

CHECK(empty_transfer, "FI-I12", "a transfer of 0 bytes needs neither a buffer nor a descriptor") {
    struct area area = share(w, REMOTE);
    wants("a write of no bytes", write_from(w, NULL, 0, NULL, &area), 0);
    wants_that(area.bytes[0] == 0xEE, "nothing is written");
}

CHECK(region_of_another_domain, "FI-I42", "a key of one domain is not valid in another") {
    struct area area = share(w, REMOTE);
    struct side third = {0};
    open_side(w, &third);
    w->here.peer = name_of(&w->here, third.ep);
    w->there.cq = third.cq;
    wants_failure("a write to the domain that has no such region", access_area(w, WRITE, &area, 0, 8));
    wants_that(area.bytes[0] == 0xEE, "nothing is written");
}

CHECK(region_of_its_domain, "FI-I42", "a region works for every endpoint of its domain", .without = FI_MR_ENDPOINT) {
    struct area area = share(w, REMOTE);
    wants("a write through the first endpoint", access_area(w, WRITE, &area, 0, 8), 0);
    struct side second = w->there;
    open_endpoint(&second);
    w->here.peer = name_of(&w->here, second.ep);
    w->there.cq = second.cq;
    wants("a write through the second endpoint", access_area(w, WRITE, &area, 64, 8), 0);
    wants_pattern(w, area.bytes + 64, 8, "the bytes are written");
}

CHECK(refusal_and_afterwards, "FI-160", "after a refused access both endpoints keep working") {
    struct area area = share(w, FI_REMOTE_READ);
    wants_failure("a write with a read-only key", access_area(w, WRITE, &area, 0, 8));
    endpoints_work(w);
}

CHECK(data_before_completion, "FI-I28", "when the target sees the completion data of a write, the bytes are in place") {
    struct area area = share(w, REMOTE);
    unsigned char *from = pages(1);
    void *desc = local(w, &w->here, from, PAGE, FI_WRITE);
    for (int round = 1; round <= 50; round++) {
        memset(from, round, PAGE);
        struct fi_cq_data_entry entry = {0};
        wants("fi_writedata", write_with_data(w, from, PAGE, desc, 0x1122 + round, &area), 0);
        wants("the completion at the target", completion(w, &w->there, &entry), 0);
        wants_that(entry.data == (uint64_t)0x1122 + round, "the completion has the data");
        wants_that(!memcmp(area.bytes, from, PAGE), "all bytes are those of this round");
    }
}
