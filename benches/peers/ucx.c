/* The same operations as `rkey bench`, on UCX (UCP put, get, tag, fetch-and-add): the other peer.
 *
 * Build: cc -O2 -o ucx ucx.c -lucp -lucs     Run: echo run write stream 8 static 0 100000 | ./ucx --memory ordinary
 * `ucx_perftest` has UCX's own figures; this program adds what that one cannot measure: ordinary memory
 * against UCX's own shared memory, buffers that both sides touch, and a put that is known to have arrived.
 */
#include "common.h"

#include <ucp/api/ucp.h>

static const char usage[] =
	"usage: ucx [--memory ordinary|own] [--sizes 8,4096] [--cores 0,1] [--timeout 300]\n"
	"Commands on standard input: run write stream 8 static 0 100000\n";

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

#define PEER "ucx"

static void version(char *text, size_t room)
{
	unsigned major, minor, patch;
	ucp_get_version(&major, &minor, &patch);
	snprintf(text, room, "%u.%u.%u", major, minor, patch);
}

static void open_side(int which)
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

	buffer_length = needed();
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

static inline void account(ucs_status_ptr_t request)
{
	started++;
	if (request == NULL)
		completed++;
	else if (UCS_PTR_IS_ERR(request))
		check(UCS_PTR_STATUS(request), "post");
}

static inline void post(enum kind kind, uint64_t from, uint64_t to, uint64_t size, uint64_t index)
{
	static uint64_t one = 1;
	ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK, .cb.send = on_done};
	if (kind == WRITE)
		account(ucp_put_nbx(ep, buffer + from, size, remote_buffer + to, rkey, &param));
	else if (kind == READ)
		account(ucp_get_nbx(ep, buffer + to, size, remote_buffer + from, rkey, &param));
	else {
		param.op_attr_mask |= UCP_OP_ATTR_FIELD_DATATYPE | UCP_OP_ATTR_FIELD_REPLY_BUFFER;
		param.datatype = ucp_dt_make_contig(8);
		param.reply_buffer = buffer + PAGE;
		account(ucp_atomic_op_nbx(ep, UCP_ATOMIC_OP_ADD, &one, 1, remote_buffer, rkey, &param));
	}
	if (index % 32 == 31)
		progress();
}

static inline uint64_t in_flight(void) { return started - completed; }

static void drain(void)
{
	while (completed < started)
		progress();
}

/* A put ends with the flush that confirms its arrival. */
static void finish(enum kind kind)
{
	if (kind == WRITE) {
		ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK, .cb.send = on_done};
		account(ucp_ep_flush_nbx(ep, &param));
	}
	drain();
}

/* Tagged messages travel there and back; `first` sends first. */
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
	static ucp_mem_h live[LIVE_MAX];
	static uint64_t have;
	ucp_mem_map_params_t map = {.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_ADDRESS,
				    .length = PAGE};
	ucp_mem_h memory;
	for (; have > live_count; have--)
		check(ucp_mem_unmap(context, live[have - 1]), "ucp_mem_unmap");
	for (; have < live_count; have++) {
		map.address = untouched_page(have);
		check(ucp_mem_map(context, &map, &live[have]), "ucp_mem_map");
	}
	map.address = untouched_page(LIVE_MAX);
	uint64_t start = now_ns();
	for (uint64_t i = 0; i < count; i++) {
		check(ucp_mem_map(context, &map, &memory), "ucp_mem_map");
		check(ucp_mem_unmap(context, memory), "ucp_mem_unmap");
	}
	return (double)(now_ns() - start) / (double)count;
}

#include "loops.h"

int main(int argc, char **argv)
{
	setenv("UCX_TLS", "posix,cma,self", 0);
	options.provider = getenv("UCX_TLS");
	parse_options(argc, argv, usage);
	return run_pair(measure, serve);
}
