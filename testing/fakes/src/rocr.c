/* ROCr with one processor (agent 1) and two accelerators (agents 2 and 3). */
struct pointer_info {
    uint32_t size;
    int type;
    void *agent_base, *host_base;
    size_t bytes;
    void *user_data;
    uint64_t owner;
};

typedef void (*callback)(void *, void *);
static struct {
    uint64_t start;
    callback call;
    void *data;
} callbacks[ALLOCATIONS];

enum { NOT_INITIALIZED = 0x100b, INVALID_ARGUMENT = 0x1001, ERROR = 0x1000 };

/* The runtime calls each callback of an allocation that is freed. */
static void went(uint64_t at) {
    for (int i = 0; i < ALLOCATIONS; i++) {
        if (callbacks[i].start != at) continue;
        callbacks[i].start = 0;
        callbacks[i].call((void *)at, callbacks[i].data);
    }
}

int hsa_amd_pointer_info(const void *at, struct pointer_info *info, void *alloc, uint32_t *n, void *agents) {
    (void)alloc, (void)agents;
    if (!started) return NOT_INITIALIZED;
    if (info->size < sizeof *info || n) return INVALID_ARGUMENT;
    pthread_mutex_lock(&lock);
    struct allocation *it = find((uint64_t)at);
    info->type = it ? 1 : 0;
    if (it) {
        info->agent_base = info->host_base = (void *)it->start;
        info->bytes = it->len;
        info->owner = it->place == HOST ? 1 : 2 + it->device;
    }
    pthread_mutex_unlock(&lock);
    return 0;
}

int hsa_agent_get_info(uint64_t agent, int what, void *value) {
    if (what != 17 || agent < 1 || agent > 3) return INVALID_ARGUMENT;
    *(int *)value = agent > 1;
    return 0;
}

int hsa_amd_register_deallocation_callback(void *at, callback call, void *data) {
    struct allocation *it = find((uint64_t)at);
    if (!it || it->start != (uint64_t)at) return INVALID_ARGUMENT;
    for (int i = 0; i < ALLOCATIONS; i++) {
        if (callbacks[i].start) continue;
        callbacks[i].start = (uint64_t)at;
        callbacks[i].call = call;
        callbacks[i].data = data;
        return 0;
    }
    return ERROR;
}

int hsa_memory_copy(void *dst, const void *src, size_t len) {
    return copy((uint64_t)dst, (uint64_t)src, len) ? ERROR : 0;
}
