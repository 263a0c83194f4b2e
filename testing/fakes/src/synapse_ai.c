/* SynapseAI with two devices. Copies need host memory that SynapseAI allocated. */
static void went(uint64_t at) { (void)at; }

struct stream {
    uint32_t device;
};
static uint64_t streams;

/* How many streams were created. */
uint64_t fake_streams(void) { return streams; }

static struct {
    uint64_t start, len;
} buffers[8];

static int is_buffer(uint64_t at, uint64_t len) {
    for (int i = 0; i < 8; i++)
        if (at >= buffers[i].start && at + len <= buffers[i].start + buffers[i].len) return 1;
    return 0;
}

int synStreamCreateGeneric(struct stream **stream, uint32_t device, uint32_t flags) {
    if (device > 1 || flags) return 1;
    *stream = malloc(sizeof **stream);
    streams++;
    (*stream)->device = device;
    return 0;
}

int synStreamSynchronize(struct stream *stream) { return stream ? 0 : 1; }

int synHostMalloc(uint32_t device, uint64_t len, uint32_t flags, void **buffer) {
    if (device > 1 || flags) return 1;
    if (fail_in == 1) return 2;
    for (int i = 0; i < 8; i++) {
        if (buffers[i].len) continue;
        *buffer = malloc(len);
        buffers[i].start = (uint64_t)*buffer;
        buffers[i].len = len;
        return 0;
    }
    return 2;
}

int synMemCopyAsync(struct stream *stream, uint64_t src, uint64_t len, uint64_t dst, int way) {
    uint64_t host = way == 0 ? src : dst, there = way == 0 ? dst : src;
    struct allocation *it = find(there);
    if (way > 1 || !is_buffer(host, len) || (it && it->device != (int)stream->device)) return 1;
    return copy(dst, src, len) ? 26 : 0;
}
