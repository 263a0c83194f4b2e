/* Level Zero with two drivers of two devices each. The number of a device is that of fi_hmem_ze_device. Each device has one
 * sub-device: memory with SUB in its device's number belongs to that. */
struct device {
    int number;
};
enum { SUB = 0x100 };
static struct device devices[2][2] = {{{0}, {1}}, {{1 << 16}, {1 << 16 | 1}}}, sub_devices[2][2];
static int drivers[2], contexts[2];

struct properties {
    uint32_t stype;
    void *next;
    uint32_t type;
    uint64_t id, page_size;
};

struct desc {
    uint32_t stype;
    const void *next;
    uint32_t ordinal, index, flags, mode, priority;
};

struct list {
    int driver;
    struct device *device;
};

enum { UNINITIALIZED = 0x78000001, INVALID = 0x78000004, LOST = 0x70000001 };

static void went(uint64_t at) { (void)at; }

static int index_of(const void *it, const int *in) { return (int)((const int *)it - in); }

unsigned zeDriverGet(uint32_t *count, void **into) {
    if (!started) return UNINITIALIZED;
    if (into)
        for (uint32_t i = 0; i < *count; i++) into[i] = &drivers[i];
    *count = 2;
    return 0;
}

unsigned zeDeviceGet(void *driver, uint32_t *count, void **into) {
    if (into)
        for (uint32_t i = 0; i < *count; i++) into[i] = &devices[index_of(driver, drivers)][i];
    *count = 2;
    return 0;
}

unsigned zeDeviceGetSubDevices(struct device *device, uint32_t *count, void **into) {
    if (into && *count) into[0] = &sub_devices[device->number >> 16][device->number & 0xff];
    *count = 1;
    return 0;
}

unsigned zeContextCreate(void *driver, const struct desc *desc, void **context) {
    if (desc->stype != 0xd) return INVALID;
    *context = &contexts[index_of(driver, drivers)];
    return 0;
}

unsigned zeMemGetAllocProperties(void *context, const void *at, struct properties *it, void **device) {
    if (it->stype != 0x17) return INVALID;
    pthread_mutex_lock(&lock);
    struct allocation *found = find((uint64_t)at);
    int driver = index_of(context, contexts);
    it->type = 0;
    *device = NULL;
    if (found && found->device >> 16 == driver) {
        it->type = found->place == DEVICE ? 2 : found->place == HOST ? 1 : 3;
        it->id = found->id;
        if (found->place == DEVICE) *device = &(found->device & SUB ? sub_devices : devices)[driver][found->device & 0xff];
    }
    pthread_mutex_unlock(&lock);
    return 0;
}

unsigned zeMemGetAddressRange(void *context, const void *at, void **start, size_t *len) {
    (void)context;
    struct allocation *found = find((uint64_t)at);
    if (!found) return INVALID;
    *start = (void *)found->start;
    *len = found->len;
    return 0;
}

unsigned zeCommandListCreateImmediate(void *context, void *device, const struct desc *desc, void **list) {
    if (desc->stype != 0xe || desc->mode != 1) return INVALID;
    struct list *it = malloc(sizeof *it);
    it->driver = index_of(context, contexts);
    it->device = device;
    *list = it;
    return 0;
}

unsigned zeCommandListAppendMemoryCopy(struct list *list, void *dst, const void *src, size_t len, void *event,
                                       uint32_t n, void *events) {
    if (event || n || events) return INVALID;
    for (int side = 0; side < 2; side++) {
        struct allocation *it = find((uint64_t)(side ? src : dst));
        if (it && it->place == DEVICE && (it->device & ~SUB) != list->device->number) return INVALID;
    }
    return copy((uint64_t)dst, (uint64_t)src, len) ? LOST : 0;
}
