/* Short paths through libfabric, for `rkey bench --count`: both sides in turns in one thread, each with a separate device.
 *
 * Build: cc -O2 -o count count.c -lfabric   Run: rkey run ./count tagged 300 1024
 * Valgrind counts inside of `count_initiator` and `count_target`. In a counted round each side polls once, the target first,
 * and finds what it waits for; a round in which a poll finds nothing ends the program with an error.
 */
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define TAG 7
#define BYTES 4096
#define PATIENCE 60 /* seconds for one operation */
/* Microseconds for the devices' threads to handle what the connection has woken them for. On a busy machine they might do
 * so only in a counted round, and take the engine from the poll. */
#define SETTLE 300000

struct side {
	struct side *other;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_av *av;
	struct fid_cq *cq;
	struct fid_ep *ep;
	struct fid_mr *region;
	void *descriptor;
	fi_addr_t peer;
	unsigned char *buffer;
	uint64_t remote; /* the address of the buffer for the other side */
};

static struct side us, them;

static struct side us = {.other = &them}, them = {.other = &us};
static bool tagged;

#define CHECK(call) do { int rc_ = (int)(call); if (rc_) die(#call, rc_); } while (0)

static void die(const char *what, int code)
{
	fprintf(stderr, "error: %s: %s\n", what, fi_strerror(-code));
	exit(1);
}

typedef int step_function(void);

/* What callgrind counts on each side. */
__attribute__((noinline)) int count_initiator(step_function *step)
{
	int done = step();
	__asm__ volatile("" ::: "memory");
	return done;
}

__attribute__((noinline)) int count_target(step_function *step)
{
	int done = step();
	__asm__ volatile("# target" ::: "memory");
	return done;
}

static int uncounted(step_function *step) { return step(); }

static struct fi_info *find(void)
{
	struct fi_info *hints = fi_allocinfo(), *info;
	hints->caps = FI_RMA | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE | FI_TAGGED | FI_SEND | FI_RECV;
	hints->mode = FI_CONTEXT;
	hints->ep_attr->type = FI_EP_RDM;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	hints->domain_attr->threading = FI_THREAD_DOMAIN;
	hints->domain_attr->control_progress = FI_PROGRESS_MANUAL;
	hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
	hints->fabric_attr->prov_name = strdup("rkey");
	CHECK(fi_getinfo(FI_VERSION(1, 14), "127.0.0.1", NULL, FI_SOURCE, hints, &info));
	fi_freeinfo(hints);
	return info;
}

static void open_side(struct side *it)
{
	struct fi_info *info = find();
	struct fi_av_attr av = {.type = FI_AV_TABLE};
	struct fi_cq_attr cq = {.format = FI_CQ_FORMAT_TAGGED, .size = 1024};
	CHECK(fi_fabric(info->fabric_attr, &it->fabric, NULL));
	CHECK(fi_domain(it->fabric, info, &it->domain, NULL));
	CHECK(fi_av_open(it->domain, &av, &it->av, NULL));
	CHECK(fi_cq_open(it->domain, &cq, &it->cq, NULL));
	CHECK(fi_endpoint(it->domain, info, &it->ep, NULL));
	CHECK(fi_ep_bind(it->ep, &it->av->fid, 0));
	CHECK(fi_ep_bind(it->ep, &it->cq->fid, FI_TRANSMIT | FI_RECV));
	CHECK(fi_enable(it->ep));
	it->buffer = calloc(1, BYTES);
	CHECK(fi_mr_reg(it->domain, it->buffer, BYTES,
			FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 1, 0, &it->region, NULL));
	it->descriptor = fi_mr_desc(it->region);
	it->remote = info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uint64_t)it->buffer : 0;
	fi_freeinfo(info);
}

static void introduce(struct side *it, struct side *other)
{
	unsigned char name[512];
	size_t length = sizeof(name);
	CHECK(fi_getname(&other->ep->fid, name, &length));
	if (fi_av_insert(it->av, name, 1, &it->peer, 0, NULL) != 1)
		die("fi_av_insert", -FI_EINVAL);
}

/* Takes a completion; returns how many there were. */
static int poll_side(struct side *it)
{
	struct fi_cq_tagged_entry entries[8];
	ssize_t n = fi_cq_read(it->cq, entries, 8);
	if (n < 0 && n != -FI_EAGAIN)
		die("fi_cq_read", (int)n);
	return n > 0 ? (int)n : 0;
}

static int poll_initiator(void) { return poll_side(&us); }

/* The target of a write sees no completion, but has to serve it. */
static int poll_target(void) { return poll_side(&them) || !tagged; }

static int receive_at(struct side *it)
{
	CHECK(fi_trecv(it->ep, it->buffer, 8, it->descriptor, FI_ADDR_UNSPEC, TAG, 0, NULL));
	return 1;
}

static int post_at(struct side *it)
{
	ssize_t rc = tagged ? fi_tsend(it->ep, it->buffer, 8, it->descriptor, it->peer, TAG, NULL)
			    : fi_write(it->ep, it->buffer, 8, it->descriptor, it->peer, it->other->remote,
				       fi_mr_key(it->other->region), NULL);
	if (rc && rc != -FI_EAGAIN)
		die("a post", (int)rc);
	return rc == 0;
}

static int receive(void) { return receive_at(&them); }
static int begin(void) { return post_at(&us); }

/* An operation in the other direction, so that its connection exists before anything is counted. */
static void back(void)
{
	if (tagged)
		receive_at(&us);
	time_t start = time(NULL);
	bool posted = false;
	for (bool received = false, sent = false; !received || !sent;) {
		posted = posted || post_at(&them);
		received |= poll_side(&us) || !tagged;
		sent |= poll_side(&them) > 0;
		if (time(NULL) - start > PATIENCE)
			die("an operation of the target", -FI_ETIMEDOUT);
	}
}

static void operation(bool counted)
{
	int (*initiator)(step_function *) = counted ? count_initiator : uncounted;
	int (*target)(step_function *) = counted ? count_target : uncounted;
	time_t start = time(NULL);
	if (tagged)
		target(receive);
	while (!initiator(begin)) {
		/* The first attempt waits for a connection. */
		if (counted || time(NULL) - start > PATIENCE)
			die("a post", -FI_EAGAIN);
		poll_target();
		poll_initiator();
	}
	for (bool received = false, sent = false; !received || !sent;) {
		received |= target(poll_target);
		sent |= initiator(poll_initiator);
		if ((!received || !sent) && (counted || time(NULL) - start > PATIENCE))
			die("a poll found nothing", -FI_EAGAIN);
	}
}

int main(int argc, char **argv)
{
	if (argc != 4) {
		fprintf(stderr, "usage: count tagged|write WARM_UP ROUNDS\n");
		return 2;
	}
	tagged = !strcmp(argv[1], "tagged");
	open_side(&us);
	open_side(&them);
	introduce(&us, &them);
	introduce(&them, &us);
	back();
	long warm_up = atol(argv[2]);
	for (long done = 0; done < warm_up; done++) {
		if (done == warm_up / 2)
			usleep(SETTLE);
		operation(false);
	}
	for (long left = atol(argv[3]); left > 0; left--)
		operation(true);
	return 0;
}
