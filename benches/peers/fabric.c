/* The same operations as `rkey bench`, on a libfabric provider: a peer to compare with (shm, tcp), or rkey's own.
 *
 * Build: cc -O2 -o fabric fabric.c -lfabric   Run: echo run write stream 8 static 0 100000 | ./fabric --provider shm
 *                                           echo ... | rkey run ./fabric --provider rkey
 * Two pinned processes, FI_EP_RDM, FI_RMA with virtual addresses. The target polls its completion queue all the
 * time, because the provider's manual progress requires it.
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
	"usage: fabric [--provider shm|tcp|net|rkey] [--ops write,read,send,atomic,register] [--sizes 8,4096]\n"
	"              [--completion default|delivery] [--ordered] [--cores 0,1] [--timeout 300]\n"
	"Commands on standard input: run write stream 8 static 0 100000\n";

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
static uint64_t posted, completed, received;

#define PEER "libfabric"

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

static void version(char *text, size_t room) { snprintf(text, room, "%u.%u", FI_MAJOR(fi_version()), FI_MINOR(fi_version())); }

static void open_side(int which)
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

	buffer_length = needed();
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

/* Posts one operation; polls while the provider has no room. */
static inline void post(enum kind kind, uint64_t from, uint64_t to, uint64_t size, uint64_t index)
{
	void *context = &contexts[index & 1023];
	for (;;) {
		ssize_t rc;
		if (kind == WRITE)
			rc = fi_write(ep, buffer + from, size, descriptor, remote_address, remote.buffer + to, remote.key, context);
		else if (kind == READ)
			rc = fi_read(ep, buffer + to, size, descriptor, remote_address, remote.buffer + from, remote.key, context);
		else {
			static uint64_t one = 1;
			rc = fi_fetch_atomic(ep, &one, 1, descriptor, buffer + PAGE, descriptor, remote_address,
					     remote.buffer, remote.key, FI_UINT64, FI_SUM, context);
		}
		if (rc == 0) {
			posted++;
			return;
		}
		if (rc != -FI_EAGAIN)
			die("post: %s", fi_strerror((int)-rc));
		progress();
	}
}

static inline uint64_t in_flight(void) { return posted - completed; }

static void finish(enum kind kind)
{
	(void)kind;
	while (completed < posted)
		progress();
}

static void send_one(uint64_t size, uint64_t i)
{
	ssize_t rc;
	while ((rc = fi_tsend(ep, buffer, size, descriptor, remote_address, 7, &contexts[i & 511])) == -FI_EAGAIN)
		progress();
	if (rc)
		die("fi_tsend: %s", fi_strerror((int)-rc));
	posted++;
}

static void receive_one(uint64_t size, uint64_t i)
{
	ssize_t rc;
	while ((rc = fi_trecv(ep, buffer + size, size, descriptor, remote_address, 7, 0, &contexts[512 + (i & 511)])) == -FI_EAGAIN)
		progress();
	if (rc)
		die("fi_trecv: %s", fi_strerror((int)-rc));
}

/* Tagged messages travel there and back; `first` sends first. */
static double tagged(uint64_t size, uint64_t count, bool first)
{
	uint64_t base = received;
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
	finish(WRITE);
	return result;
}

static double registration(uint64_t live_count, uint64_t count)
{
	static struct fid_mr *live[LIVE_MAX];
	static uint64_t have;
	uint64_t access = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
	for (; have > live_count; have--)
		CHECK(fi_close(&live[have - 1]->fid));
	for (; have < live_count; have++)
		CHECK(fi_mr_reg(domain, untouched_page(have), PAGE, access, 0, 100 + have, 0, &live[have], NULL));
	void *page = untouched_page(LIVE_MAX);
	uint64_t start = now_ns();
	for (uint64_t i = 0; i < count; i++) {
		struct fid_mr *mr;
		CHECK(fi_mr_reg(domain, page, PAGE, access, 0, 1000000 + i, 0, &mr, NULL));
		CHECK(fi_close(&mr->fid));
	}
	return (double)(now_ns() - start) / (double)count;
}

#include "loops.h"

int main(int argc, char **argv)
{
	parse_options(argc, argv, usage);
	return run_pair(measure, serve);
}
