/* The same operations as `rkey bench`, on UCX (UCP put, get, tag, fetch-and-add): the other peer.
 *
 * Build: cc -O2 -o ucx ucx.c -lucp -lucs     Run: UCX_TLS=posix,cma,self ./ucx --memory ordinary --ops write,read
 * `ucx_perftest` gives the peer's own figures; this program adds what it cannot do: ordinary memory
 * against UCX's own shared memory, buffers that both sides touch, and a put that is known to have arrived.
 */
#include "common.h"

#include <ucp/api/ucp.h>

static const char usage[] =
	"usage: ucx [--memory ordinary|own] [--ops write,read,send,atomic,register] [--modes stream,oneway,single]\n"
	"           [--sizes 8,4096] [--reps 5] [--seconds 0.1] [--cores 0,1] [--timeout 300]\n";

struct peer { uint64_t buffer, rkey_len, address_len; };

static ucp_context_h context;
static ucp_worker_h worker;
static ucp_ep_h ep;
static ucp_mem_h region;
static ucp_rkey_h rkey;
static unsigned char *buffer;
static size_t buffer_length;
static uint64_t remote_buffer;
static int side;
static uint64_t started, completed;

static void check(ucs_status_t status, const char *what)
{
	if (status != UCS_OK)
		die("%s: %s", what, ucs_status_string(status));
}

static inline void progress(void) { ucp_worker_progress(worker); }

static void on_done(void *request, ucs_status_t status, void *data)
{
	(void)data;
	check(status, "completion");
	completed++;
	ucp_request_free(request);
}

static void on_received(void *request, ucs_status_t status, const ucp_tag_recv_info_t *received, void *data)
{
	(void)received;
	on_done(request, status, data);
}

static void open_ucx(int which)
{
	side = which;
	ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES,
			       .features = UCP_FEATURE_RMA | UCP_FEATURE_TAG | UCP_FEATURE_AMO64};
	ucp_worker_params_t worker_params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
					     .thread_mode = UCS_THREAD_MODE_SINGLE};
	ucp_config_t *config;
	check(ucp_config_read(NULL, NULL, &config), "ucp_config_read");
	check(ucp_init(&params, config, &context), "ucp_init");
	ucp_config_release(config);
	check(ucp_worker_create(context, &worker_params, &worker), "ucp_worker_create");

	const char *sizes = options.sizes;
	for (uint64_t size; (size = next_size(&sizes));)
		if (size * slots_of(size) > buffer_length)
			buffer_length = size * slots_of(size);
	buffer_length = (buffer_length + 2 * PAGE) & ~(PAGE - 1);
	ucp_mem_map_params_t map = {.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_ADDRESS |
						  UCP_MEM_MAP_PARAM_FIELD_FLAGS,
				    .length = buffer_length};
	if (!strcmp(options.memory, "own"))
		map.flags = UCP_MEM_MAP_ALLOCATE;
	else
		map.address = pages(buffer_length);
	check(ucp_mem_map(context, &map, &region), "ucp_mem_map");
	ucp_mem_attr_t attr = {.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS};
	check(ucp_mem_query(region, &attr), "ucp_mem_query");
	buffer = attr.address;
	memset(buffer, 1, buffer_length);

	void *key;
	size_t key_len, address_len;
	ucp_address_t *address;
	check(ucp_rkey_pack(context, region, &key, &key_len), "ucp_rkey_pack");
	check(ucp_worker_get_address(worker, &address, &address_len), "ucp_worker_get_address");
	unsigned char blob[BLOB];
	struct peer mine = {(uint64_t)buffer, key_len, address_len};
	if (sizeof(mine) + key_len + address_len > sizeof(blob))
		die("UCX address of %zu bytes is too long", address_len);
	memcpy(blob, &mine, sizeof(mine));
	memcpy(blob + sizeof(mine), key, key_len);
	memcpy(blob + sizeof(mine) + key_len, address, address_len);
	ucp_rkey_buffer_release(key);
	ucp_worker_release_address(worker, address);
	exchange(side, blob, sizeof(mine) + key_len + address_len);

	const unsigned char *theirs = control->blob[!side];
	struct peer remote;
	memcpy(&remote, theirs, sizeof(remote));
	remote_buffer = remote.buffer;
	ucp_ep_params_t ep_params = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS,
				     .address = (const ucp_address_t *)(theirs + sizeof(remote) + remote.rkey_len)};
	check(ucp_ep_create(worker, &ep_params, &ep), "ucp_ep_create");
	check(ucp_ep_rkey_unpack(ep, theirs + sizeof(remote), &rkey), "ucp_ep_rkey_unpack");
	barrier(side);
}

enum kind { WRITE, READ, ATOMIC };

static inline void account(ucs_status_ptr_t request)
{
	started++;
	if (request == NULL)
		completed++;
	else if (UCS_PTR_IS_ERR(request))
		check(UCS_PTR_STATUS(request), "post");
}

static inline void post(enum kind kind, uint64_t offset, uint64_t size)
{
	static uint64_t one = 1;
	ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK, .cb.send = on_done};
	if (kind == WRITE)
		account(ucp_put_nbx(ep, buffer + offset, size, remote_buffer + offset, rkey, &param));
	else if (kind == READ)
		account(ucp_get_nbx(ep, buffer + offset, size, remote_buffer + offset, rkey, &param));
	else {
		param.op_attr_mask |= UCP_OP_ATTR_FIELD_DATATYPE | UCP_OP_ATTR_FIELD_REPLY_BUFFER;
		param.datatype = ucp_dt_make_contig(8);
		param.reply_buffer = buffer + PAGE;
		account(ucp_atomic_op_nbx(ep, UCP_ATOMIC_OP_ADD, &one, 1, remote_buffer, rkey, &param));
	}
}

static void drain(void)
{
	while (completed < started)
		progress();
}

/* Waits until everything posted has reached the other side's memory. */
static void flush(void)
{
	ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK, .cb.send = on_done};
	account(ucp_ep_flush_nbx(ep, &param));
	drain();
}

static double stream(enum kind kind, uint64_t size, uint64_t count, unsigned slots)
{
	unsigned window = window_of(size);
	uint64_t start = now_ns();
	for (uint64_t i = 0; i < count; i++) {
		while (started >= completed + window)
			progress();
		post(kind, (i % slots) * size, size);
		if (i % 32 == 31)
			progress();
	}
	flush();
	return (double)(now_ns() - start) / (double)count;
}

/* One operation at a time. Touched: we rewrite the source and the other side reads the destination
 * before each one, outside the time that counts. A put ends with the flush that says it arrived. */
static double single(enum kind kind, uint64_t size, uint64_t count, bool touched)
{
	static double samples[20001];
	if (count > 20001)
		count = 20001;
	for (uint64_t i = 0; i < count; i++) {
		if (touched) {
			if (kind == WRITE)
				touch_write(buffer, size, i);
			else
				touch_read(buffer, size);
			unsigned seq = command(CMD_TOUCH, size, kind == READ ? i + 1 : 0);
			while (atomic_load_explicit(&control->done, memory_order_acquire) != seq)
				progress();
		}
		uint64_t start = now_ns();
		post(kind, 0, size);
		if (kind == WRITE)
			flush();
		else
			drain();
		samples[i] = (double)(now_ns() - start);
	}
	return median(samples, (unsigned)count);
}

/* Values go out of `out` when they are 8 bytes, so that the answer cannot overtake the question in one word. */
static void ping(uint64_t size, uint64_t value)
{
	volatile uint64_t *last = (volatile uint64_t *)(buffer + size - 8);
	volatile uint64_t *out = (volatile uint64_t *)(buffer + buffer_length - 8);
	ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK, .cb.send = on_done};
	if (size > 8) {
		*last = value;
		post(WRITE, 0, size);
	} else {
		*out = value;
		account(ucp_put_nbx(ep, (void *)out, 8, remote_buffer, rkey, &param));
	}
}

static void await(uint64_t size, uint64_t value)
{
	volatile uint64_t *last = (volatile uint64_t *)(buffer + size - 8);
	while (*last != value)
		progress();
}

static double one_way(uint64_t size, uint64_t count)
{
	*(volatile uint64_t *)(buffer + size - 8) = 0;
	unsigned seq = command(CMD_PINGPONG, size, count);
	while (atomic_load_explicit(&control->ready[1], memory_order_acquire) < (int)seq + 1000000)
		progress();
	uint64_t start = now_ns();
	for (uint64_t i = 1; i <= count; i++) {
		ping(size, 2 * i);
		await(size, 2 * i + 1);
	}
	double result = (double)(now_ns() - start) / (double)count / 2;
	while (atomic_load_explicit(&control->done, memory_order_acquire) != seq)
		progress();
	flush();
	return result;
}

static void answer_ping(unsigned seq)
{
	uint64_t size = control->size, count = control->count;
	*(volatile uint64_t *)(buffer + size - 8) = 0;
	atomic_store_explicit(&control->ready[1], (int)seq + 1000000, memory_order_release);
	for (uint64_t i = 1; i <= count; i++) {
		await(size, 2 * i);
		ping(size, 2 * i + 1);
	}
	flush();
}

/* Tagged messages there and back; `first` sends first. */
static double tagged(uint64_t size, uint64_t count, bool first)
{
	ucp_request_param_t send = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK, .cb.send = on_done};
	ucp_request_param_t receive = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FLAG_NO_IMM_CMPL,
				       .cb.recv = on_received};
	uint64_t start = now_ns();
	for (uint64_t i = 0; i < count; i++) {
		if (first)
			account(ucp_tag_send_nbx(ep, buffer, size, 7, &send));
		account(ucp_tag_recv_nbx(worker, buffer + size, size, 7, ~0ull, &receive));
		drain();
		if (!first)
			account(ucp_tag_send_nbx(ep, buffer, size, 7, &send));
	}
	drain();
	return (double)(now_ns() - start) / (double)count / 2;
}

static double registration(uint64_t live_count, uint64_t count)
{
	static unsigned char *arena;
	static uint64_t have;
	ucp_mem_map_params_t map = {.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_ADDRESS,
				    .length = PAGE};
	if (!arena)
		arena = mmap(NULL, 100001 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	ucp_mem_h memory;
	for (; have < live_count; have++) { /* left mapped until the process ends */
		map.address = arena + have * PAGE;
		check(ucp_mem_map(context, &map, &memory), "ucp_mem_map");
	}
	map.address = arena + 100000 * PAGE;
	uint64_t start = now_ns();
	for (uint64_t i = 0; i < count; i++) {
		check(ucp_mem_map(context, &map, &memory), "ucp_mem_map");
		check(ucp_mem_unmap(context, memory), "ucp_mem_unmap");
	}
	return (double)(now_ns() - start) / (double)count;
}

/* How many operations make about options.seconds. */
static uint64_t enough(double ns, uint64_t least) { double n = options.seconds * 1e9 / (ns > 1 ? ns : 1); return n < (double)least ? least : (uint64_t)n; }

static void measure(void)
{
	char version[32];
	double values[MAX_REPS];
	unsigned major, minor, patch;
	ucp_get_version(&major, &minor, &patch);
	snprintf(version, sizeof(version), "%u.%u.%u", major, minor, patch);
	open_ucx(0);
	static const char *kinds[] = {"write", "read", "atomic"};
	for (enum kind kind = WRITE; kind <= ATOMIC; kind++) {
		if (!listed(options.ops, kinds[kind]))
			continue;
		const char *sizes = kind == ATOMIC ? "8" : options.sizes;
		for (uint64_t size; (size = next_size(&sizes));) {
			for (unsigned rotating = 0; listed(options.modes, "stream") && rotating <= (size > 64); rotating++) {
				unsigned slots = rotating ? slots_of(size) : 1;
				uint64_t count = enough(stream(kind, size, 200, slots), 100);
				stream(kind, size, count / 4 + 1, slots);
				for (int r = 0; r < options.reps; r++)
					values[r] = stream(kind, size, count, slots);
				report("ucx", version, kinds[kind], "stream", size, rotating ? "rotating" : "static", values,
				       (unsigned)options.reps, 0);
			}
			if (listed(options.modes, "oneway") && kind == WRITE) {
				uint64_t count = enough(2 * one_way(size, 200), 100);
				for (int r = 0; r < options.reps; r++)
					values[r] = one_way(size, count);
				report("ucx", version, kinds[kind], "oneway", size, "static", values, (unsigned)options.reps, 0);
			}
			if (listed(options.modes, "single"))
				for (int touched = 0; touched <= (kind != ATOMIC && size > 64); touched++) {
					uint64_t count = enough(single(kind, size, 100, touched) * (touched ? 3 : 1), 100);
					for (int r = 0; r < options.reps; r++)
						values[r] = single(kind, size, count, touched);
					report("ucx", version, kinds[kind], "single", size, touched ? "touched" : "static", values,
					       (unsigned)options.reps, 0);
				}
		}
	}
	if (listed(options.ops, "send")) {
		const char *sizes = options.sizes;
		for (uint64_t size; (size = next_size(&sizes));) {
			uint64_t count = 200;
			for (int r = -1; r < options.reps; r++) {
				unsigned seq = command(CMD_TAGGED, size, count);
				double ns = tagged(size, count, true);
				while (atomic_load_explicit(&control->done, memory_order_acquire) != seq)
					progress();
				if (r < 0)
					count = enough(2 * ns, 100);
				else
					values[r] = ns;
			}
			report("ucx", version, "send", "oneway", size, "static", values, (unsigned)options.reps, 0);
		}
	}
	if (listed(options.ops, "register")) {
		for (uint64_t count = 0; count <= 100000; count += 100000) {
			uint64_t n = enough(registration(count, 1000), 1000);
			for (int r = 0; r < options.reps; r++)
				values[r] = registration(count, n);
			report("ucx", version, "register", "pair", 4096, "static", values, (unsigned)options.reps, count);
		}
	}
}

static void serve(void)
{
	open_ucx(1);
	for (unsigned seen = 0;;) {
		unsigned seq = atomic_load_explicit(&control->seq, memory_order_acquire);
		if (seq == seen) {
			progress();
			continue;
		}
		seen = seq;
		switch (control->command) {
		case CMD_EXIT: return;
		case CMD_TOUCH:
			if (control->count)
				touch_write(buffer, control->size, control->count);
			else
				touch_read(buffer, control->size);
			break;
		case CMD_PINGPONG: answer_ping(seq); break;
		case CMD_TAGGED: tagged(control->size, control->count, false); break;
		default: break;
		}
		atomic_store_explicit(&control->done, seq, memory_order_release);
	}
}

int main(int argc, char **argv)
{
	setenv("UCX_TLS", "posix,cma,self", 0);
	options.provider = getenv("UCX_TLS");
	parse_options(argc, argv, usage);
	return run_pair(measure, serve);
}
