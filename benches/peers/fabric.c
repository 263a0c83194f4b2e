/* The same operations as `rkey bench`, on a libfabric provider (shm, tcp): the peer to compare with.
 *
 * Build: cc -O2 -o fabric fabric.c -lfabric        Run: ./fabric --provider shm --ops write,read
 * Two pinned processes, FI_EP_RDM, FI_RMA with virtual addresses. The target polls its completion
 * queue all the time, as the provider's manual progress wants it.
 */
#include "common.h"

#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

static const char usage[] =
	"usage: fabric [--provider shm|tcp|net] [--ops write,read,send,atomic,register] [--modes stream,oneway,single]\n"
	"              [--sizes 8,4096] [--completion default|delivery] [--ordered] [--reps 5] [--seconds 0.1]\n"
	"              [--cores 0,1] [--timeout 300]\n";

struct peer { uint64_t buffer, key, name_len; unsigned char name[512]; };

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_av *av;
static struct fid_cq *cq;
static struct fid_ep *ep;
static struct fid_mr *region;
static fi_addr_t remote_address;
static struct peer remote;
static unsigned char *buffer;
static size_t buffer_length;
static void *descriptor;
static int side;
static uint64_t tx_flags;
static struct fi_context *contexts;
static uint64_t completed, received;

#define CHECK(call) do { int rc_ = (int)(call); if (rc_) die("%s: %s", #call, fi_strerror(-rc_)); } while (0)

static inline void progress(void)
{
	struct fi_cq_tagged_entry entries[32];
	ssize_t n = fi_cq_read(cq, entries, 32);
	if (n > 0) {
		for (ssize_t i = 0; i < n; i++) {
			if (entries[i].flags & FI_RECV) received++;
			else completed++;
		}
	} else if (n != -FI_EAGAIN && n != 0) {
		struct fi_cq_err_entry error = {0};
		fi_cq_readerr(cq, &error, 0);
		die("completion with error: %s (%d)", fi_strerror(error.err), error.prov_errno);
	}
}

static void open_fabric(int which)
{
	static const char *names[] = {"tcp", "tcp;ofi_rxm"};
	struct fi_info *hints = fi_allocinfo();
	side = which;
	hints->caps = FI_RMA | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE | FI_TAGGED | FI_SEND | FI_RECV;
	if (listed(options.ops, "atomic"))
		hints->caps |= FI_ATOMIC;
	hints->mode = FI_CONTEXT;
	hints->ep_attr->type = FI_EP_RDM;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	hints->domain_attr->threading = FI_THREAD_DOMAIN;
	hints->domain_attr->control_progress = FI_PROGRESS_MANUAL;
	hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
	if (options.ordered)
		hints->tx_attr->msg_order = hints->rx_attr->msg_order = FI_ORDER_RAW | FI_ORDER_WAW | FI_ORDER_RAR | FI_ORDER_WAR;
	if (!strcmp(options.completion, "delivery"))
		tx_flags = FI_DELIVERY_COMPLETE;
	hints->tx_attr->op_flags = tx_flags;
	const char *provider = options.provider;
	if (!strcmp(provider, names[0]))
		provider = names[1];
	hints->fabric_attr->prov_name = strdup(provider);
	const char *node = strcmp(options.provider, "shm") ? "127.0.0.1" : NULL;
	int rc = fi_getinfo(FI_VERSION(1, 14), node, NULL, node ? FI_SOURCE : 0, hints, &info);
	if (rc)
		die("libfabric has no provider '%s' with these capabilities: %s", options.provider, fi_strerror(-rc));
	fi_freeinfo(hints);

	struct fi_av_attr av_attr = {.type = FI_AV_TABLE};
	struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_TAGGED, .size = 1024};
	CHECK(fi_fabric(info->fabric_attr, &fabric, NULL));
	CHECK(fi_domain(fabric, info, &domain, NULL));
	CHECK(fi_av_open(domain, &av_attr, &av, NULL));
	CHECK(fi_cq_open(domain, &cq_attr, &cq, NULL));
	CHECK(fi_endpoint(domain, info, &ep, NULL));
	CHECK(fi_ep_bind(ep, &av->fid, 0));
	CHECK(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	CHECK(fi_enable(ep));

	const char *sizes = options.sizes;
	for (uint64_t size; (size = next_size(&sizes));)
		if (size * slots_of(size) > buffer_length)
			buffer_length = size * slots_of(size);
	buffer_length = (buffer_length + 2 * PAGE) & ~(PAGE - 1);
	buffer = pages(buffer_length);
	CHECK(fi_mr_reg(domain, buffer, buffer_length,
			FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 1, 0, &region, NULL));
	descriptor = fi_mr_desc(region);
	contexts = calloc(1024, sizeof(*contexts));

	struct peer mine = {.key = fi_mr_key(region), .name_len = sizeof(mine.name)};
	mine.buffer = info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uint64_t)buffer : 0;
	CHECK(fi_getname(&ep->fid, mine.name, &mine.name_len));
	exchange(side, &mine, sizeof(mine));
	memcpy(&remote, control->blob[!side], sizeof(remote));
	if (fi_av_insert(av, remote.name, 1, &remote_address, 0, NULL) != 1)
		die("fi_av_insert failed");
	barrier(side);
}

enum kind { WRITE, READ, ATOMIC };

/* Posts one operation; polls while the provider has no room. */
static inline void post(enum kind kind, uint64_t offset, uint64_t size, uint64_t index)
{
	void *context = &contexts[index & 1023];
	for (;;) {
		ssize_t rc;
		if (kind == WRITE)
			rc = fi_write(ep, buffer + offset, size, descriptor, remote_address, remote.buffer + offset, remote.key, context);
		else if (kind == READ)
			rc = fi_read(ep, buffer + offset, size, descriptor, remote_address, remote.buffer + offset, remote.key, context);
		else {
			static uint64_t one = 1;
			rc = fi_fetch_atomic(ep, &one, 1, descriptor, buffer + PAGE, descriptor, remote_address,
					     remote.buffer, remote.key, FI_UINT64, FI_SUM, context);
		}
		if (rc == 0)
			return;
		if (rc != -FI_EAGAIN)
			die("post: %s", fi_strerror((int)-rc));
		progress();
	}
}

static void drain(uint64_t until)
{
	while (completed < until)
		progress();
}

static double stream(enum kind kind, uint64_t size, uint64_t count, unsigned slots)
{
	unsigned window = window_of(size);
	uint64_t base = completed, start = now_ns();
	for (uint64_t i = 0; i < count; i++) {
		while (base + i >= completed + window)
			progress();
		post(kind, (i % slots) * size, size, i);
	}
	drain(base + count);
	return (double)(now_ns() - start) / (double)count;
}

/* One operation at a time. Touched: we rewrite the source and the other side reads the destination
 * before each one, outside the time that counts. */
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
		uint64_t base = completed, start = now_ns();
		post(kind, 0, size, i);
		drain(base + 1);
		samples[i] = (double)(now_ns() - start);
	}
	return median(samples, (unsigned)count);
}

static double one_way(uint64_t size, uint64_t count)
{
	volatile uint64_t *last = (volatile uint64_t *)(buffer + size - 8);
	*last = 0;
	unsigned seq = command(CMD_PINGPONG, size, count);
	while (atomic_load_explicit(&control->ready[1], memory_order_acquire) < (int)seq + 1000000)
		progress();
	uint64_t base = completed, start = now_ns();
	for (uint64_t i = 1; i <= count; i++) {
		/* Ping: the value goes out from a buffer of its own, the answer comes into `last`. */
		volatile uint64_t *out = (volatile uint64_t *)(buffer + buffer_length - 8);
		if (size > 8) {
			*last = 2 * i;
			post(WRITE, 0, size, i);
		} else {
			*out = 2 * i;
			ssize_t rc;
			while ((rc = fi_write(ep, (void *)out, 8, descriptor, remote_address, remote.buffer, remote.key,
					      &contexts[i & 1023])) == -FI_EAGAIN)
				progress();
			if (rc)
				die("post: %s", fi_strerror((int)-rc));
		}
		while (*last != 2 * i + 1)
			progress();
	}
	double result = (double)(now_ns() - start) / (double)count / 2;
	while (atomic_load_explicit(&control->done, memory_order_acquire) != seq)
		progress();
	drain(base + count);
	return result;
}

static void answer_ping(unsigned seq)
{
	uint64_t size = control->size, count = control->count, base = completed;
	volatile uint64_t *last = (volatile uint64_t *)(buffer + size - 8);
	volatile uint64_t *out = (volatile uint64_t *)(buffer + buffer_length - 8);
	*last = 0;
	atomic_store_explicit(&control->ready[1], (int)seq + 1000000, memory_order_release);
	for (uint64_t i = 1; i <= count; i++) {
		while (*last != 2 * i)
			progress();
		if (size > 8) {
			*last = 2 * i + 1;
			post(WRITE, 0, size, i);
		} else {
			*out = 2 * i + 1;
			while (fi_write(ep, (void *)out, 8, descriptor, remote_address, remote.buffer, remote.key,
					&contexts[i & 1023]) == -FI_EAGAIN)
				progress();
		}
	}
	drain(base + count);
}

static void send_one(uint64_t size, uint64_t i)
{
	ssize_t rc;
	while ((rc = fi_tsend(ep, buffer, size, descriptor, remote_address, 7, &contexts[i & 511])) == -FI_EAGAIN)
		progress();
	if (rc)
		die("fi_tsend: %s", fi_strerror((int)-rc));
}

static void receive_one(uint64_t size, uint64_t i)
{
	ssize_t rc;
	while ((rc = fi_trecv(ep, buffer + size, size, descriptor, remote_address, 7, 0, &contexts[512 + (i & 511)])) == -FI_EAGAIN)
		progress();
	if (rc)
		die("fi_trecv: %s", fi_strerror((int)-rc));
}

/* Tagged messages there and back; `first` sends first. */
static double tagged(uint64_t size, uint64_t count, bool first)
{
	uint64_t base = received, sent = completed;
	receive_one(size, 0);
	uint64_t start = now_ns();
	for (uint64_t i = 0; i < count; i++) {
		if (first)
			send_one(size, i);
		while (received < base + i + 1)
			progress();
		if (i + 1 < count)
			receive_one(size, i + 1);
		if (!first)
			send_one(size, i);
	}
	double result = (double)(now_ns() - start) / (double)count / 2;
	drain(sent + count);
	return result;
}

static double registration(struct fid_mr **live, uint64_t live_count, uint64_t count)
{
	static unsigned char *arena;
	static uint64_t have;
	if (!arena)
		arena = mmap(NULL, 100001 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	uint64_t access = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
	for (; have < live_count; have++)
		CHECK(fi_mr_reg(domain, arena + have * PAGE, PAGE, access, 0, 100 + have, 0, &live[have], NULL));
	uint64_t start = now_ns();
	for (uint64_t i = 0; i < count; i++) {
		struct fid_mr *mr;
		CHECK(fi_mr_reg(domain, arena + 100000 * PAGE, PAGE, access, 0, 1000000 + i, 0, &mr, NULL));
		CHECK(fi_close(&mr->fid));
	}
	return (double)(now_ns() - start) / (double)count;
}

/* How many operations make about options.seconds. */
static uint64_t enough(double ns, uint64_t least) { double n = options.seconds * 1e9 / (ns > 1 ? ns : 1); return n < (double)least ? least : (uint64_t)n; }

static void measure(void)
{
	char version[32];
	double values[MAX_REPS];
	snprintf(version, sizeof(version), "%u.%u", FI_MAJOR(fi_version()), FI_MINOR(fi_version()));
	open_fabric(0);
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
				report("libfabric", version, kinds[kind], "stream", size, rotating ? "rotating" : "static", values,
				       (unsigned)options.reps, 0);
			}
			if (listed(options.modes, "oneway") && kind == WRITE) {
				uint64_t count = enough(2 * one_way(size, 200), 100);
				for (int r = 0; r < options.reps; r++)
					values[r] = one_way(size, count);
				report("libfabric", version, kinds[kind], "oneway", size, "static", values, (unsigned)options.reps, 0);
			}
			if (listed(options.modes, "single"))
				for (int touched = 0; touched <= (kind != ATOMIC && size > 64); touched++) {
					uint64_t count = enough(single(kind, size, 100, touched) * (touched ? 3 : 1), 100);
					for (int r = 0; r < options.reps; r++)
						values[r] = single(kind, size, count, touched);
					report("libfabric", version, kinds[kind], "single", size, touched ? "touched" : "static", values,
					       (unsigned)options.reps, 0);
				}
		}
	}
	if (listed(options.ops, "send")) {
		const char *sizes = options.sizes;
		for (uint64_t size; (size = next_size(&sizes));) {
			uint64_t count = 200;
			for (int r = -1; r < options.reps; r++) {
				command(CMD_TAGGED, size, count);
				double ns = tagged(size, count, true);
				unsigned seq = atomic_load(&control->seq);
				while (atomic_load_explicit(&control->done, memory_order_acquire) != seq)
					progress();
				if (r < 0)
					count = enough(2 * ns, 100);
				else
					values[r] = ns;
			}
			report("libfabric", version, "send", "oneway", size, "static", values, (unsigned)options.reps, 0);
		}
	}
	if (listed(options.ops, "register")) {
		struct fid_mr **live = calloc(100000, sizeof(*live));
		for (uint64_t count = 0; count <= 100000; count += 100000) {
			uint64_t n = enough(registration(live, count, 1000), 1000);
			for (int r = 0; r < options.reps; r++)
				values[r] = registration(live, count, n);
			report("libfabric", version, "register", "pair", 4096, "static", values, (unsigned)options.reps, count);
		}
	}
}

static void serve(void)
{
	open_fabric(1);
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
	parse_options(argc, argv, usage);
	return run_pair(measure, serve);
}
