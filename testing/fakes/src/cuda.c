/* A CUDA driver with two devices, each with a primary context. A copy needs the context of the memory, and a stream of that
 * context. */
static int contexts[2];
static __thread void *stack[8];
static __thread int depth;

struct stream {
    void *context;
};

static void went(uint64_t at) { (void)at; }

enum { INVALID_VALUE = 1, NOT_INITIALIZED = 3, INVALID_CONTEXT = 201, INVALID_HANDLE = 400, ILLEGAL_ADDRESS = 700 };

int cuPointerGetAttributes(unsigned n, const int *names, void **places, uint64_t at) {
    if (!started) return NOT_INITIALIZED;
    pthread_mutex_lock(&lock);
    struct allocation none = {0}, *it = find(at);
    if (!it) it = &none;
    for (unsigned i = 0; i < n; i++) {
        switch (names[i]) {
        case 1: *(void **)places[i] = it->len ? &contexts[it->device] : NULL; break;
        case 2: *(unsigned *)places[i] = it->len ? (it->place == HOST ? 1 : 2) : 0; break;
        case 7: *(uint64_t *)places[i] = it->id; break;
        case 8: *(unsigned char *)places[i] = it->place == MANAGED; break;
        case 9: *(int *)places[i] = it->len ? it->device : -2; break;
        case 11: *(uint64_t *)places[i] = it->start; break;
        case 12: *(size_t *)places[i] = it->len; break;
        default: pthread_mutex_unlock(&lock); return INVALID_VALUE;
        }
    }
    pthread_mutex_unlock(&lock);
    return 0;
}

int cuCtxPushCurrent_v2(void *context) {
    if (depth == 8) return INVALID_CONTEXT;
    stack[depth++] = context;
    return 0;
}

int cuCtxPopCurrent_v2(void **context) {
    if (!depth) return INVALID_CONTEXT;
    *context = stack[--depth];
    return 0;
}

/* How many contexts the calling thread has pushed; each call of rkey must leave that unchanged. */
int fake_depth(void) { return depth; }

int cuDevicePrimaryCtxRetain(void **context, int number) {
    if (number < 0 || number > 1) return INVALID_VALUE;
    *context = &contexts[number];
    return 0;
}

int cuCtxGetId(void *context, unsigned long long *id) {
    *id = 1 + ((int *)context - contexts);
    return 0;
}

int cuStreamCreate(void **stream, unsigned flags) {
    if (!depth) return INVALID_CONTEXT;
    if (flags != 1) return INVALID_VALUE;
    struct stream *it = malloc(sizeof *it);
    it->context = stack[depth - 1];
    *stream = it;
    return 0;
}

int cuStreamDestroy_v2(void *stream) {
    free(stream);
    return 0;
}

int cuStreamSynchronize(void *stream) { return stream ? 0 : INVALID_HANDLE; }

int cuMemcpyAsync(uint64_t dst, uint64_t src, size_t len, struct stream *stream) {
    if (!depth) return INVALID_CONTEXT;
    if (!stream || stream->context != stack[depth - 1]) return INVALID_HANDLE;
    return copy(dst, src, len) ? ILLEGAL_ADDRESS : 0;
}

int cuGetErrorName(int code, const char **name) {
    if (code != ILLEGAL_ADDRESS) return INVALID_VALUE;
    *name = "CUDA_ERROR_ILLEGAL_ADDRESS";
    return 0;
}
