/* Keys: the side that chooses them, and raw keys, which must be mapped. */

#include "suite.h"

CHECK(requested_key, "FI-017 FI-034 FI-113 FI-114", "the program chooses the key, which a peer can use without exchanging it first",
      .without = CHOSEN_KEYS) {
    struct area area = {.bytes = pages(1), .length = PAGE};
    wants("fi_mr_reg", reg(&w->there, area.bytes, PAGE, REMOTE, 0x1234, 0, &area.mr), 0);
    make_usable(w, &w->there, &area);
    wants_that(fi_mr_key(area.mr) == 0x1234, "fi_mr_key returns the requested key");
    name_area(w, &w->there, &area);
    wants("a write with the agreed key", remote(w, WRITE, area.base, 64, 0x1234), 0);
    wants_pattern(w, area.bytes, 64, "the bytes are written");
}

CHECK(key_in_use, "FI-225", "a key that another region has is refused with -FI_ENOKEY", .without = FI_MR_PROV_KEY) {
    unsigned char *at = pages(2);
    struct fid_mr *one, *two;
    wants("fi_mr_reg", reg(&w->there, at, PAGE, REMOTE, 0x77, 0, &one), 0);
    wants("fi_mr_reg with the same key", reg(&w->there, at + PAGE, PAGE, REMOTE, 0x77, 0, &two), -FI_ENOKEY);
}

CHECK(key_used_again, "FI-I41", "the key of a closed region may be requested again", .without = FI_MR_PROV_KEY) {
    unsigned char *at = pages(1);
    for (int i = 0; i < 3; i++) {
        struct fid_mr *mr;
        wants("fi_mr_reg", reg(&w->there, at, PAGE, REMOTE, 0x77, 0, &mr), 0);
        wants("fi_close", fi_close(&mr->fid), 0);
    }
}

CHECK(key_of_the_provider, "FI-018 FI-057", "the provider chooses keys and ignores the requested key", .needs = FI_MR_PROV_KEY,
      .without = FI_MR_RAW) {
    struct area one = {.bytes = pages(1), .length = PAGE}, two = {.bytes = pages(1), .length = PAGE};
    wants("fi_mr_reg", reg(&w->there, one.bytes, PAGE, REMOTE, 0x77, 0, &one.mr), 0);
    wants("fi_mr_reg with the same key", reg(&w->there, two.bytes, PAGE, REMOTE, 0x77, 0, &two.mr), 0);
    make_usable(w, &w->there, &one);
    make_usable(w, &w->there, &two);
    wants_that(fi_mr_key(one.mr) != fi_mr_key(two.mr), "two regions have two keys");
}

CHECK(key_of_the_provider_works, "FI-058 FI-059 FI-214", "a peer reaches the region by the key that fi_mr_key returns", .needs = FI_MR_PROV_KEY,
      .without = FI_MR_RAW) {
    struct area area = share(w, REMOTE);
    wants_that(area.key != FI_KEY_NOTAVAIL, "fi_mr_key returns a key");
    wants("a write with the key", access_area(w, WRITE, &area, 0, 64), 0);
    wants_pattern(w, area.bytes, 64, "the bytes are written");
}

CHECK(size_of_keys, "FI-035 FI-051", "keys have at most 8 bytes, unless FI_MR_RAW is set") {
    size_t size = w->there.info->domain_attr->mr_key_size;
    wants_that(size > 0, "mr_key_size is not 0");
    if (!(mode(w) & FI_MR_RAW)) wants_that(size <= 8, "mr_key_size is at most 8");
}

CHECK(reserved_key, "FI-I33", "FI_KEY_NOTAVAIL as the requested key is refused with -FI_EKEYREJECTED", .without = FI_MR_PROV_KEY) {
    unsigned char *at = pages(1);
    struct fid_mr *mr;
    wants("fi_mr_reg", reg(&w->there, at, PAGE, REMOTE, FI_KEY_NOTAVAIL, 0, &mr), -FI_EKEYREJECTED);
}

CHECK(key_of_a_local_region, "FI-106 FI-I32", "a region without remote rights has a descriptor but no key, so another region can have the key that it requested",
      .without = FI_MR_PROV_KEY) {
    unsigned char *at = pages(2);
    struct fid_mr *one, *two;
    wants("fi_mr_reg", reg(&w->there, at, PAGE, FI_SEND | FI_RECV, 0x77, 0, &one), 0);
    wants("fi_mr_reg with the same key", reg(&w->there, at + PAGE, PAGE, FI_SEND | FI_RECV, 0x77, 0, &two), 0);
    wants_that(fi_mr_key(one) == FI_KEY_NOTAVAIL, "fi_mr_key returns FI_KEY_NOTAVAIL");
}

CHECK(raw_attributes, "FI-008 FI-168 FI-171 FI-216", "fi_mr_raw_attr works for every region and returns mr_key_size bytes") {
    struct area area = {.bytes = pages(1), .length = PAGE};
    wants("fi_mr_reg", reg(&w->there, area.bytes, PAGE, REMOTE, next_key(), 0, &area.mr), 0);
    make_usable(w, &w->there, &area);
    uint8_t raw[256];
    size_t size = sizeof raw;
    uint64_t base = 99;
    wants("fi_mr_raw_attr", fi_mr_raw_attr(area.mr, &base, raw, &size, 0), 0);
    wants_that(size == w->there.info->domain_attr->mr_key_size, "the size is mr_key_size");
    wants_that(base == (mode(w) & FI_MR_VIRT_ADDR ? (uintptr_t)area.bytes : 0), "the base is the address of the region's first byte for peers");
}

CHECK(raw_key_too_long, "FI-169 FI-170 FI-230", "if a raw key does not fit, fi_mr_raw_attr returns -FI_ETOOSMALL and the size") {
    struct area area = {.bytes = pages(1), .length = PAGE};
    wants("fi_mr_reg", reg(&w->there, area.bytes, PAGE, REMOTE, next_key(), 0, &area.mr), 0);
    make_usable(w, &w->there, &area);
    uint8_t raw[256];
    memset(raw, 0xEE, sizeof raw);
    size_t size = 0;
    uint64_t base;
    wants("fi_mr_raw_attr without room", fi_mr_raw_attr(area.mr, &base, NULL, &size, 0), -FI_ETOOSMALL);
    wants_that(size > 0 && size < sizeof raw, "the size is returned");
    size_t needed = size--;
    wants("fi_mr_raw_attr with one byte too few", fi_mr_raw_attr(area.mr, &base, raw, &size, 0), -FI_ETOOSMALL);
    wants_that(size == needed && raw[needed - 1] == 0xEE, "the size is returned, and nothing is written past the buffer");
    wants("fi_mr_raw_attr with room", fi_mr_raw_attr(area.mr, &base, raw, &size, 0), 0);
    wants_that(raw[needed] == 0xEE, "nothing is written past the key");
}

CHECK(mapped_key, "FI-009 FI-173 FI-216", "a raw key can be mapped in every mode, and the mapped key is valid until it is unmapped") {
    struct area area = {.bytes = pages(1), .length = PAGE};
    wants("fi_mr_reg", reg(&w->there, area.bytes, PAGE, REMOTE, next_key(), 0, &area.mr), 0);
    make_usable(w, &w->there, &area);
    uint8_t raw[256];
    size_t size = sizeof raw;
    wants("fi_mr_raw_attr", fi_mr_raw_attr(area.mr, &area.base, raw, &size, 0), 0);
    wants("fi_mr_map_raw", fi_mr_map_raw(w->here.domain, area.base, raw, size, &area.key, 0), 0);
    wants("a write with the mapped key", access_area(w, WRITE, &area, 0, 64), 0);
    wants_pattern(w, area.bytes, 64, "the bytes are written");
    wants("fi_mr_unmap_key", fi_mr_unmap_key(w->here.domain, area.key), 0);
}

CHECK(raw_keys, "FI-052 FI-164 FI-165 FI-172 FI-215", "a raw key must be mapped: fi_mr_key returns no key, and the bytes of the raw key are not a key",
      .needs = FI_MR_RAW) {
    struct area area = {.bytes = pages(1), .length = PAGE};
    wants("fi_mr_reg", reg(&w->there, area.bytes, PAGE, REMOTE, next_key(), 0, &area.mr), 0);
    make_usable(w, &w->there, &area);
    wants_that(fi_mr_key(area.mr) == FI_KEY_NOTAVAIL, "fi_mr_key returns FI_KEY_NOTAVAIL");
    uint8_t raw[256] = {0};
    size_t size = sizeof raw;
    uint64_t bytes;
    wants("fi_mr_raw_attr", fi_mr_raw_attr(area.mr, &area.base, raw, &size, 0), 0);
    memcpy(&bytes, raw, sizeof bytes);
    wants_failure("a write with the bytes of the raw key", remote(w, WRITE, area.base, 8, bytes));
    wants_that(area.bytes[0] == 0xEE, "nothing is written");
    wants("fi_mr_map_raw", fi_mr_map_raw(w->here.domain, area.base, raw, size, &area.key, 0), 0);
    wants("a write with the mapped key", access_area(w, WRITE, &area, 0, 8), 0);
}

CHECK(unmapped_key, "FI-010 FI-174", "an unmapped key is no longer valid, and cannot be unmapped again", .needs = FI_MR_RAW) {
    struct area area = share(w, REMOTE);
    wants("a write with the mapped key", access_area(w, WRITE, &area, 0, 8), 0);
    memset(area.bytes, 0xEE, PAGE);
    wants("fi_mr_unmap_key", fi_mr_unmap_key(w->here.domain, area.key), 0);
    wants_failure("a write with the unmapped key", access_area(w, WRITE, &area, 0, 8));
    wants_that(area.bytes[0] == 0xEE, "nothing is written");
    wants_refusal("a second fi_mr_unmap_key", fi_mr_unmap_key(w->here.domain, area.key));
}

CHECK(mapped_key_of_a_domain, "FI-176", "a domain with mapped keys is busy: -FI_EBUSY", .needs = FI_MR_RAW, .strict = true) {
    struct area area = share(w, REMOTE);
    close_endpoint(&w->here);
    wants("fi_close of the domain", fi_close(&w->here.domain->fid), -FI_EBUSY);
    wants("fi_mr_unmap_key", fi_mr_unmap_key(w->here.domain, area.key), 0);
    wants("fi_close of the domain without mapped keys", fi_close(&w->here.domain->fid), 0);
}

CHECK(mapped_key_of_a_closed_domain, "FI-176", "a domain with mapped keys can be closed, and releases them", .needs = FI_MR_RAW, .lenient = true) {
    share(w, REMOTE);
    close_endpoint(&w->here);
    wants("fi_close of the domain", fi_close(&w->here.domain->fid), 0);
}
