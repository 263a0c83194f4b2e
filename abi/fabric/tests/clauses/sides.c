/* The two sides of a transfer: all objects that a program opens before it registers memory. */

#include "suite.h"

static void must(const char *call, int code) {
    if (code) differs("%s returns %s", call, code_name(code));
}

struct fi_info *hints(struct world *w, int mr_mode) {
    struct fi_info *hints = fi_allocinfo();
    if (!hints) abort();
    hints->fabric_attr->prov_name = strdup(w->provider);
    hints->ep_attr->type = FI_EP_RDM;
    hints->caps = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | w->check->caps;
    /* Completion means delivery at the target, so that a refusal there is seen; with shm such transfers do not
     * complete at all when they are refused, nor do some others. */
    if (strcmp(w->provider, "shm")) hints->tx_attr->op_flags = FI_DELIVERY_COMPLETE;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->domain_attr->mr_mode = mr_mode;
    hints->domain_attr->threading = FI_THREAD_SAFE;
    return hints;
}

int ask(struct world *w, uint32_t api, struct fi_info *hints, struct fi_info **info) {
    /* Every machine has the loopback interface. */
    const char *node = strcmp(w->provider, "shm") ? "127.0.0.1" : NULL;
    *info = NULL;
    int code = fi_getinfo(api, node, NULL, node ? FI_SOURCE : 0, hints, info);
    fi_freeinfo(hints);
    return code;
}

bool strict_mode(void) {
    const char *asked = getenv("FI_RKEY_STRICT");
    return asked && !strcmp(asked, "1");
}

static int bits_of(const struct fi_info *info) {
    int bits = info->domain_attr->mr_mode;
    if (bits & FI_MR_BASIC) bits |= BASIC_BITS;
    if (info->mode & FI_LOCAL_MR && bits & (FI_MR_BASIC | FI_MR_SCALABLE)) bits |= FI_MR_LOCAL;
    return bits & ~(FI_MR_BASIC | FI_MR_SCALABLE);
}

int mode(const struct world *w) { return bits_of(w->there.info); }

/* The bits that a program of this version offers: all of them, or one of the two modes before 1.5. */
static int offered(const struct world *w) {
    const char *asked = getenv("FI_RKEY_MR_MODE");
    if (asked && !strcmp(asked, "BASIC")) return FI_MR_BASIC;
    if (asked && !strcmp(asked, "SCALABLE")) return FI_MR_SCALABLE;
    return w->api < FI_VERSION(1, 5) ? FI_MR_UNSPEC : ALL_BITS;
}

void open_side(struct world *w, struct side *side) {
    int code = ask(w, w->api, hints(w, offered(w)), &side->info);
    if (code == -FI_ENODATA && w->check->caps) does_not_apply("the provider has no such capability");
    must("fi_getinfo", code);
    must("fi_fabric", fi_fabric(side->info->fabric_attr, &side->fabric, NULL));
    must("fi_domain", fi_domain(side->fabric, side->info, &side->domain, NULL));
    open_endpoint(side);
}

void open_endpoint(struct side *side) {
    struct fi_cq_attr queue = {.format = FI_CQ_FORMAT_DATA};
    struct fi_av_attr addresses = {.type = FI_AV_MAP};
    if (side->info->domain_attr->av_type == FI_AV_TABLE) addresses.type = FI_AV_TABLE;
    must("fi_cq_open", fi_cq_open(side->domain, &queue, &side->cq, NULL));
    must("fi_av_open", fi_av_open(side->domain, &addresses, &side->av, NULL));
    must("fi_endpoint", fi_endpoint(side->domain, side->info, &side->ep, NULL));
    must("fi_ep_bind", fi_ep_bind(side->ep, &side->cq->fid, FI_TRANSMIT | FI_RECV));
    must("fi_ep_bind", fi_ep_bind(side->ep, &side->av->fid, 0));
    must("fi_enable", fi_enable(side->ep));
}

fi_addr_t name_of(struct side *side, struct fid_ep *other) {
    char name[256];
    size_t length = sizeof name;
    fi_addr_t number = FI_ADDR_NOTAVAIL;
    must("fi_getname", fi_getname(&other->fid, name, &length));
    if (fi_av_insert(side->av, name, 1, &number, 0, NULL) != 1) differs("fi_av_insert takes no name");
    return number;
}

void open_world(struct world *w) {
    open_side(w, &w->here);
    open_side(w, &w->there);
    w->here.peer = name_of(&w->here, w->there.ep);
    w->there.peer = name_of(&w->there, w->here.ep);
    int needs = w->check->needs;
    if ((mode(w) & needs) != needs || mode(w) & w->check->without) does_not_apply("it concerns other mode bits");
}

void close_endpoint(struct side *side) {
    wants("fi_close of the endpoint", fi_close(&side->ep->fid), 0);
    wants("fi_close of the completion queue", fi_close(&side->cq->fid), 0);
    wants("fi_close of the address vector", fi_close(&side->av->fid), 0);
}

void close_side(struct side *side) {
    close_endpoint(side);
    wants("fi_close of the domain", fi_close(&side->domain->fid), 0);
    wants("fi_close of the fabric", fi_close(&side->fabric->fid), 0);
}
