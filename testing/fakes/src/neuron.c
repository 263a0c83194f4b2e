/* AWS Neuron, which copies to the device only. */
static void went(uint64_t at) { (void)at; }

int nrt_memcpy_to_device(void *dst, const void *src, size_t len) {
    return copy((uint64_t)dst, (uint64_t)src, len) ? 1 : 0;
}
