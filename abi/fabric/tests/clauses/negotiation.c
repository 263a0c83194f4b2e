/* How fi_getinfo handles the mode bits that a program offers. */

#include "suite.h"

/* The bits that fi_getinfo returns for these hints; ends the check if it fails. */
static int granted(struct world *w, int offered) {
    struct fi_info *info;
    int code = ask(w, w->api, hints(w, offered), &info);
    if (code) differs("fi_getinfo returns %s", code_name(code));
    int bits = info->domain_attr->mr_mode;
    fi_freeinfo(info);
    return bits;
}

static int refused(struct world *w, int offered) {
    struct fi_info *info;
    int code = ask(w, w->api, hints(w, offered), &info);
    if (!code) fi_freeinfo(info);
    return code;
}

/* The bits that the provider needs: those that it returns when all are offered. */
static int needed(struct world *w) {
    if (getenv("FI_RKEY_MR_MODE") && !strcmp(getenv("FI_RKEY_MR_MODE"), "BASIC")) return BASIC_BITS;
    return granted(w, ALL_BITS);
}

CHECK(required_bits, "FI-025 FI-037 FI-038 FI-039 FI-I16", "of all offered bits, fi_getinfo returns those that are required: together they suffice, and if one is missing, nothing matches",
      .bare = true) {
    int bits = needed(w);
    wants_that(!(bits & ~ALL_BITS), "the returned bits were offered");
    wants_that(granted(w, bits) == bits, "the returned bits suffice");
    for (int bit = 1; bit <= FI_MR_COLLECTIVE; bit <<= 1) {
        /* rkey registers the buffers of programs that do not offer FI_MR_LOCAL. */
        bool hidden = bit == FI_MR_LOCAL && !strcmp(w->provider, "rkey") && !strict_mode();
        if (bits & bit) wants("fi_getinfo without one of the required bits", refused(w, bits & ~bit), hidden ? 0 : -FI_ENODATA);
    }
}

CHECK(bits_of_capabilities, "FI-079 FI-086", "FI_MR_HMEM and FI_MR_COLLECTIVE are only for programs that ask for FI_HMEM and FI_COLLECTIVE",
      .bare = true) {
    wants_that(!(granted(w, ALL_BITS) & (FI_MR_HMEM | FI_MR_COLLECTIVE)), "neither bit is returned");
}

CHECK(bit_of_collectives, "FI-086", "a program that asks for FI_COLLECTIVE gets the bit FI_MR_COLLECTIVE if and only if it is required", .bare = true) {
    const char *required = getenv("FI_RKEY_MR_MODE");
    struct fi_info *with = hints(w, ALL_BITS), *info;
    with->caps |= FI_COLLECTIVE;
    with->ep_attr->type = FI_EP_RDM;
    if (ask(w, w->api, with, &info)) does_not_apply("the provider has no collective operations");
    int bits = info->domain_attr->mr_mode;
    fi_freeinfo(info);
    wants_that(!(bits & FI_MR_HMEM), "FI_MR_HMEM is not returned for FI_COLLECTIVE");
    bool wanted = required && strstr(required, "COLLECTIVE");
    wants_that(!(bits & FI_MR_COLLECTIVE) == !wanted, "FI_MR_COLLECTIVE is returned if and only if it is required");
}

CHECK(basic_by_name, "FI-249 FI-251", "a request for FI_MR_BASIC is granted, without other bits", .bare = true) {
    if (needed(w) & ~BASIC_BITS) does_not_apply("the provider needs bits that FI_MR_BASIC lacks");
    wants_that(granted(w, FI_MR_BASIC) == FI_MR_BASIC, "FI_MR_BASIC is returned");
}

CHECK(scalable_by_name, "FI-029 FI-255", "FI_MR_SCALABLE is granted if no bit is needed", .bare = true) {
    if (needed(w)) does_not_apply("the provider needs mode bits");
    wants_that(granted(w, FI_MR_SCALABLE) == FI_MR_SCALABLE, "FI_MR_SCALABLE is returned");
}

CHECK(basic_and_local, "FI-253 FI-261 FI-I18", "from 1.5 on, FI_MR_BASIC and FI_MR_LOCAL together match nothing", .bare = true,
      .from = FI_VERSION(1, 5)) {
    wants("fi_getinfo for FI_MR_BASIC and FI_MR_LOCAL", refused(w, FI_MR_BASIC | FI_MR_LOCAL), -FI_ENODATA);
}

CHECK(basic_and_local_before_1_5, "FI-252 FI-261", "before 1.5, FI_MR_BASIC may be combined with FI_MR_LOCAL", .bare = true,
      .from = FI_VERSION(1, 0), .below = FI_VERSION(1, 5)) {
    if (refused(w, FI_MR_BASIC)) does_not_apply("the provider has no basic registration");
    int bits = granted(w, FI_MR_BASIC | FI_MR_LOCAL);
    wants_that((bits & ~FI_MR_LOCAL) == FI_MR_BASIC, "FI_MR_BASIC is returned");
}

CHECK(basic_with_others, "FI-253 FI-I18", "FI_MR_BASIC and FI_MR_SCALABLE with other bits match nothing", .bare = true) {
    wants("fi_getinfo for FI_MR_BASIC and FI_MR_PROV_KEY", refused(w, FI_MR_BASIC | FI_MR_PROV_KEY), -FI_ENODATA);
    wants("fi_getinfo for FI_MR_SCALABLE and FI_MR_LOCAL", refused(w, FI_MR_SCALABLE | FI_MR_LOCAL), -FI_ENODATA);
}

CHECK(old_mode_bit, "FI-050 FI-I19", "from 1.5 on, the mode bit FI_LOCAL_MR has no effect", .bare = true) {
    for (int i = 0; i < 2; i++) {
        int offered = i ? ALL_BITS : ALL_BITS & ~FI_MR_LOCAL;
        struct fi_info *with = hints(w, offered), *info;
        with->mode |= FI_LOCAL_MR;
        int code = ask(w, w->api, with, &info), plain = refused(w, offered);
        wants("fi_getinfo with FI_LOCAL_MR", code, plain);
        if (!code) wants_that(info->domain_attr->mr_mode == granted(w, offered), "the bits are the same");
    }
}

CHECK(modes_before_1_5, "FI-028 FI-I17", "before 1.5, hints without bits mean basic or scalable registration, and FI_MR_SCALABLE selects scalable", .bare = true,
      .from = FI_VERSION(1, 0), .below = FI_VERSION(1, 5)) {
    int bits = granted(w, FI_MR_UNSPEC);
    wants_that(bits == FI_MR_BASIC || bits == FI_MR_SCALABLE, "one of the two is returned");
    if (refused(w, FI_MR_SCALABLE) == 0) wants_that(granted(w, FI_MR_SCALABLE) == FI_MR_SCALABLE, "FI_MR_SCALABLE is returned");
    else wants_that(bits == FI_MR_BASIC, "a provider without scalable registration returns FI_MR_BASIC");
}

CHECK(program_before_1_5, "FI-I17", "before 1.5, a program without mode bits can use every transfer", .from = FI_VERSION(1, 0), .below = FI_VERSION(1, 5)) {
    struct area area = share(w, REMOTE);
    wants("a write", access_area(w, WRITE, &area, 0, 64), 0);
    wants_pattern(w, area.bytes, 64, "the bytes are written");
    wants("a read", access_area(w, READ, &area, 0, 64), 0);
}

CHECK(events_without_targets, "FI-I25", "FI_RMA_EVENT is not granted to a program that requests no remote access by peers", .bare = true) {
    struct fi_info *initiator = hints(w, ALL_BITS), *info;
    initiator->caps = FI_RMA | FI_READ | FI_WRITE | FI_RMA_EVENT;
    wants("fi_getinfo", ask(w, w->api, initiator, &info), -FI_ENODATA);
}
