/* Both sides of a connection in one libfabric program that checks everything it gets: the contents of a connection
 * request, and the names of endpoints. The connecting side reserves its address before it knows that it will connect
 * (fi_endpoint(3)). */
#include <netinet/in.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PATIENCE_S = 60 };
#define API FI_VERSION(1, 17)

#define CHECK(what) do { \
	long code_ = (what); \
	if (code_ < 0) { \
		fprintf(stderr, "line %d: %s: %s\n", __LINE__, #what, fi_strerror((int)-code_)); \
		exit(1); \
	} \
} while (0)

#define ASSERT(what) do { \
	if (!(what)) { \
		fprintf(stderr, "line %d: check failed: %s\n", __LINE__, #what); \
		exit(1); \
	} \
} while (0)

static struct fid_fabric *fabric;

/* An endpoint and its objects. */
struct side {
	struct fid_domain *domain;
	struct fid_eq *eq;
	struct fid_cq *cq;
	struct fid_ep *ep;
	struct fid_mr *mr;
	unsigned char bytes[64];
};

static struct fid_eq *event_queue(void)
{
	struct fi_eq_attr attr = { .wait_obj = FI_WAIT_UNSPEC };
	struct fid_eq *eq;
	CHECK(fi_eq_open(fabric, &attr, &eq, NULL));
	return eq;
}

/* The next event, which must be this one. */
static struct fi_info *event(struct fid_eq *eq, uint32_t wanted, fid_t fid)
{
	struct fi_eq_cm_entry entry;
	uint32_t event = 0;
	long got = fi_eq_sread(eq, &event, &entry, sizeof entry, PATIENCE_S * 1000, 0);
	if (got == -FI_EAVAIL) {
		struct fi_eq_err_entry error = { 0 };
		CHECK(fi_eq_readerr(eq, &error, 0));
		CHECK(-error.err);
	}
	CHECK(got);
	ASSERT(event == wanted && entry.fid == fid);
	return entry.info;
}

static struct sockaddr_in name_of(fid_t fid)
{
	struct sockaddr_in name;
	size_t length = sizeof name;
	CHECK(fi_getname(fid, &name, &length));
	ASSERT(length == sizeof name && name.sin_family == AF_INET);
	return name;
}

static int same(struct sockaddr_in a, struct sockaddr_in b)
{
	return a.sin_port == b.sin_port && a.sin_addr.s_addr == b.sin_addr.s_addr;
}

static void open_side(struct side *side, struct fi_info *info, struct fid_eq *eq)
{
	struct fi_cq_attr attr = { .format = FI_CQ_FORMAT_CONTEXT };
	side->eq = eq;
	CHECK(fi_domain(fabric, info, &side->domain, NULL));
	CHECK(fi_cq_open(side->domain, &attr, &side->cq, NULL));
	CHECK(fi_endpoint(side->domain, info, &side->ep, NULL));
	CHECK(fi_ep_bind(side->ep, &eq->fid, 0));
	CHECK(fi_ep_bind(side->ep, &side->cq->fid, FI_SEND | FI_RECV));
	CHECK(fi_enable(side->ep));
	CHECK(fi_mr_reg(side->domain, side->bytes, sizeof side->bytes, FI_SEND | FI_RECV, 0, 1, 0, &side->mr, NULL));
	if (info->domain_attr->mr_mode & FI_MR_ENDPOINT) {
		CHECK(fi_mr_bind(side->mr, &side->ep->fid, 0));
		CHECK(fi_mr_enable(side->mr));
	}
}

static void close_side(struct side *side)
{
	CHECK(fi_close(&side->ep->fid));
	CHECK(fi_close(&side->mr->fid));
	CHECK(fi_close(&side->cq->fid));
	CHECK(fi_close(&side->domain->fid));
}

static void completes(struct side *side, struct side *other)
{
	struct fi_cq_entry entry;
	time_t until = time(NULL) + PATIENCE_S;
	long got;
	while ((got = fi_cq_read(side->cq, &entry, 1)) == -FI_EAGAIN) {
		ASSERT(time(NULL) < until);
		fi_cq_read(other->cq, NULL, 0);
	}
	CHECK(got);
}

static struct fi_info *hints(void)
{
	struct fi_info *hints = fi_allocinfo();
	ASSERT(hints);
	hints->caps = FI_MSG | FI_RMA;
	hints->addr_format = FI_SOCKADDR_IN;
	hints->ep_attr->type = FI_EP_MSG;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_RAW | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY |
				      FI_MR_MMU_NOTIFY | FI_MR_RMA_EVENT | FI_MR_ENDPOINT | FI_MR_HMEM;
	hints->fabric_attr->prov_name = strdup("rkey");
	return hints;
}

/* Compares the fields of two fi_info structures that a program compares or passes on. */
static int alike(const struct fi_info *a, const struct fi_info *b)
{
	return a->caps == b->caps && a->mode == b->mode && a->addr_format == b->addr_format &&
	       !memcmp(a->tx_attr, b->tx_attr, offsetof(struct fi_tx_attr, tclass)) &&
	       !memcmp(a->rx_attr, b->rx_attr, sizeof *a->rx_attr) &&
	       !memcmp(a->ep_attr, b->ep_attr, offsetof(struct fi_ep_attr, auth_key_size)) &&
	       a->domain_attr->mr_mode == b->domain_attr->mr_mode &&
	       a->domain_attr->mr_key_size == b->domain_attr->mr_key_size &&
	       a->domain_attr->caps == b->domain_attr->caps &&
	       !strcmp(a->domain_attr->name, b->domain_attr->name) &&
	       !strcmp(a->fabric_attr->name, b->fabric_attr->name) &&
	       b->fabric_attr->prov_name && !strcmp(a->fabric_attr->prov_name, b->fabric_attr->prov_name) &&
	       a->fabric_attr->prov_version == b->fabric_attr->prov_version &&
	       a->fabric_attr->api_version == b->fabric_attr->api_version;
}

int main(void)
{
	struct fi_info *wanted = hints(), *info, *route, *request, *copy, *again;
	struct side here = { 0 }, there = { 0 };
	struct sockaddr_in any = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct fid_pep *listener, *reserved;
	char port[8];

	CHECK(fi_getinfo(API, "127.0.0.1", NULL, FI_SOURCE, wanted, &info));
	CHECK(fi_fabric(info->fabric_attr, &fabric, NULL));
	struct fid_eq *eq = event_queue(), *theirs = event_queue();
	CHECK(fi_passive_ep(fabric, info, &listener, NULL));
	CHECK(fi_pep_bind(listener, &eq->fid, 0));
	CHECK(fi_listen(listener));
	struct sockaddr_in at = name_of(&listener->fid);

	/* An address of our own, before its use is known. */
	free(info->src_addr);
	info->src_addr = NULL;
	info->src_addrlen = 0;
	CHECK(fi_passive_ep(fabric, info, &reserved, NULL));
	CHECK(fi_setname(&reserved->fid, &any, sizeof any));
	struct sockaddr_in own = name_of(&reserved->fid);
	ASSERT(own.sin_port && !same(own, at));

	wanted->handle = &reserved->fid;
	snprintf(port, sizeof port, "%d", ntohs(at.sin_port));
	CHECK(fi_getinfo(API, "127.0.0.1", port, 0, wanted, &route));
	ASSERT(route->handle == &reserved->fid);
	open_side(&here, route, theirs);
	CHECK(fi_close(&reserved->fid));
	ASSERT(same(name_of(&here.ep->fid), own));
	CHECK(fi_connect(here.ep, route->dest_addr, NULL, 0));
	ASSERT(same(name_of(&here.ep->fid), own));

	request = event(eq, FI_CONNREQ, &listener->fid);
	ASSERT(alike(info, request) && request->handle);
	ASSERT(request->src_addrlen == sizeof at && same(*(struct sockaddr_in *)request->src_addr, at));
	ASSERT(request->dest_addrlen == sizeof own && same(*(struct sockaddr_in *)request->dest_addr, own));
	copy = fi_dupinfo(request);
	ASSERT(copy && alike(request, copy));
	CHECK(fi_getinfo(API, NULL, NULL, 0, request, &again));
	ASSERT(alike(request, again) && again->handle == request->handle);
	fi_freeinfo(copy);
	fi_freeinfo(request);

	open_side(&there, again, eq);
	CHECK(fi_accept(there.ep, NULL, 0));
	event(theirs, FI_CONNECTED, &here.ep->fid);
	event(eq, FI_CONNECTED, &there.ep->fid);
	struct sockaddr_in peer;
	size_t length = sizeof peer;
	CHECK(fi_getpeer(there.ep, &peer, &length));
	ASSERT(same(peer, own) && same(name_of(&here.ep->fid), own) && same(name_of(&there.ep->fid), at));

	memset(here.bytes, 7, sizeof here.bytes);
	CHECK(fi_recv(there.ep, there.bytes, sizeof there.bytes, fi_mr_desc(there.mr), 0, NULL));
	CHECK(fi_send(here.ep, here.bytes, sizeof here.bytes, fi_mr_desc(here.mr), 0, NULL));
	completes(&there, &here);
	completes(&here, &there);
	ASSERT(!memcmp(here.bytes, there.bytes, sizeof here.bytes));

	close_side(&here);
	event(eq, FI_SHUTDOWN, &there.ep->fid);
	close_side(&there);
	CHECK(fi_close(&listener->fid));
	CHECK(fi_close(&eq->fid));
	CHECK(fi_close(&theirs->fid));
	CHECK(fi_close(&fabric->fid));
	fi_freeinfo(again);
	fi_freeinfo(route);
	fi_freeinfo(info);
	fi_freeinfo(wanted);
	return 0;
}
