/* A program with a memory monitor of its own, which it imports into the registration cache. */
#include "check.h"
#include "pair.h"
#include <pthread.h>
#include <rdma/fi_ext.h>
#include <stdatomic.h>
#include <stdbool.h>

enum { LEN = 4096 };

/* How often the cache has called each function of the monitor, and the range of its last subscription. */
static struct {
	atomic_int start, stop, subscribe, unsubscribe, valid;
	const void *addr;
	size_t len;
	bool refuse_start, refuse, is_invalid;
} asked;

static int start(struct fid_mem_monitor *monitor)
{
	CHECK(monitor->fid.fclass == FI_CLASS_MEM_MONITOR);
	asked.start++;
	return asked.refuse_start ? -FI_ENOSYS : 0;
}

static void stop(struct fid_mem_monitor *monitor)
{
	(void)monitor;
	asked.stop++;
}

static int subscribe(struct fid_mem_monitor *monitor, const void *addr, size_t len)
{
	(void)monitor;
	asked.subscribe++;
	asked.addr = addr;
	asked.len = len;
	return asked.refuse ? -FI_EFAULT : 0;
}

static void unsubscribe(struct fid_mem_monitor *monitor, const void *addr, size_t len)
{
	(void)monitor;
	(void)addr;
	(void)len;
	asked.unsubscribe++;
}

static bool valid(struct fid_mem_monitor *monitor, const void *addr, size_t len)
{
	(void)monitor;
	(void)addr;
	(void)len;
	asked.valid++;
	return !asked.is_invalid;
}

static struct fi_ops_mem_monitor ops = {
	.size = sizeof ops,
	.start = start,
	.stop = stop,
	.subscribe = subscribe,
	.unsubscribe = unsubscribe,
	.valid = valid,
};
static struct fid_mem_monitor monitor = {.fid.fclass = FI_CLASS_MEM_MONITOR, .export_ops = &ops};

static char buffer[4 * LEN] __attribute__((aligned(LEN)));
static char other[4 * LEN] __attribute__((aligned(LEN)));

static void opening(void)
{
	struct fid *fid;
	int (*close)(struct fid *);
	const uint32_t version = FI_VERSION(1, 13);

	RETURNS(fi_open(FI_VERSION(1, 12), "mr_cache", NULL, 0, 0, &fid, NULL), -FI_EINVAL);
	RETURNS(fi_open(version, "mr_cache", &ops, 1, 0, &fid, NULL), -FI_EINVAL);
	RETURNS(fi_open(version, "mr_cache", NULL, 0, 1, &fid, NULL), -FI_EBADFLAGS);
	RETURNS(fi_open(version, "no_such_object", NULL, 0, 0, &fid, NULL), -FI_ENOSYS);
	RETURNS(fi_open(version, NULL, NULL, 0, 0, &fid, NULL), -FI_EINVAL);
	RETURNS(fi_open(version, "mr_cache", NULL, 0, 0, NULL, NULL), -FI_EINVAL);
	RETURNS(fi_open(FI_VERSION(1, 17), "mr_cache", NULL, 0, 0, &fid, &ops), 0);
	CHECK(fid->fclass == FI_CLASS_MR_CACHE && fid->context == &ops);
	close = fid->ops->close;
	RETURNS(close(fid), 0);
	RETURNS(close(fid), -FI_EINVAL);
}

static void importing(void)
{
	struct fid *cache;
	struct fi_ops_mem_monitor incomplete = ops;
	struct fid_mem_monitor second = {.fid.fclass = FI_CLASS_MEM_MONITOR, .export_ops = &ops};

	RETURNS(fi_open(FI_VERSION(1, 13), "mr_cache", NULL, 0, 0, &cache, NULL), 0);
	RETURNS(fi_import_fid(cache, NULL, 0), -FI_EINVAL);
	second.fid.fclass = FI_CLASS_EP;
	RETURNS(fi_import_fid(cache, &second.fid, 0), -FI_ENOSYS);
	second.fid.fclass = FI_CLASS_MEM_MONITOR;
	RETURNS(fi_import_fid(cache, &second.fid, 1), -FI_EINVAL);
	second.export_ops = NULL;
	RETURNS(fi_import_fid(cache, &second.fid, 0), -FI_EINVAL);
	second.export_ops = &incomplete;
	incomplete.size--;
	RETURNS(fi_import_fid(cache, &second.fid, 0), -FI_EINVAL);
	incomplete.size++;
	incomplete.valid = NULL;
	RETURNS(fi_import_fid(cache, &second.fid, 0), -FI_EINVAL);

	RETURNS(fi_import_fid(cache, &monitor.fid, 0), 0);
	CHECK(monitor.fid.ops && monitor.import_ops->size >= sizeof *monitor.import_ops);
	second.export_ops = &ops;
	RETURNS(fi_import_fid(cache, &second.fid, 0), -FI_EBUSY);
	/* The monitor can be closed and imported again. */
	RETURNS(fi_close(&monitor.fid), 0);
	RETURNS(monitor.fid.ops->close(&monitor.fid), -FI_EINVAL);
	RETURNS(fi_import_fid(cache, &monitor.fid, 0), 0);
	/* The object mr_cache is no longer needed. */
	RETURNS(fi_close(cache), 0);
	/* Nothing is cached yet. */
	monitor.import_ops->notify(&monitor, buffer, sizeof buffer);
	CHECK(asked.start == 0 && asked.subscribe == 0);
}

static struct fid_mr *reg(struct fid_domain *domain, void *from, size_t len, uint64_t access)
{
	struct fid_mr *mr;
	RETURNS(fi_mr_reg(domain, from, len, access, 0, 9, 0, &mr, NULL), 0);
	return mr;
}

/* Registers a buffer and closes the region; returns whether the cache made a new registration for it. */
static bool anew(struct fid_domain *domain, void *from, size_t len, uint64_t access)
{
	int before = asked.subscribe;
	RETURNS(fi_close(&reg(domain, from, len, access)->fid), 0);
	return asked.subscribe > before;
}

static void lookups(struct fid_domain *domain)
{
	const uint64_t local = FI_SEND | FI_RECV;
	int valid_before, unsubscribed;

	CHECK(anew(domain, buffer, LEN, local));
	CHECK(asked.addr == buffer && asked.len == LEN && asked.unsubscribe == 0);
	/* The registration has outlived its region, and serves the next one, if the monitor says that it is valid. */
	valid_before = asked.valid;
	CHECK(!anew(domain, buffer, LEN, local));
	CHECK(asked.valid > valid_before);
	CHECK(!anew(domain, buffer + 100, 200, local));
	/* Other rights, other memory. */
	CHECK(anew(domain, buffer, LEN, FI_SEND));
	CHECK(anew(domain, buffer + LEN, LEN, local));
	CHECK(anew(domain, buffer + LEN - 1, 2, local));

	/* A notification invalidates the registrations that share a page with its range, and no others. */
	unsubscribed = asked.unsubscribe;
	monitor.import_ops->notify(&monitor, buffer + LEN + 17, 1);
	CHECK(!anew(domain, buffer, LEN, local));
	CHECK(anew(domain, buffer + LEN, LEN, local));
	CHECK(asked.unsubscribe > unsubscribed);
	monitor.import_ops->notify(&monitor, buffer, sizeof buffer);
	CHECK(anew(domain, buffer, LEN, local));
	monitor.import_ops->notify(&monitor, buffer + 2 * LEN, (size_t)-1);
	CHECK(!anew(domain, buffer, LEN, local));

	/* The monitor may report that memory has changed when the cache asks, or refuse to watch memory. */
	asked.is_invalid = true;
	CHECK(anew(domain, buffer, LEN, local));
	asked.is_invalid = false;
	asked.refuse = true;
	CHECK(anew(domain, other, LEN, local) && anew(domain, other, LEN, local));
	asked.refuse = false;

	/* Regions that peers can reach are not cached. */
	CHECK(!anew(domain, other, LEN, FI_SEND | FI_REMOTE_READ));
}

/* Messages from and into cached regions, which allow access only to the range that the program registered. */
static void messages(struct fid_domain *domain, struct fi_info *info)
{
	struct side a, b;
	struct fid_mr *from, *into, *part;
	int (*close)(struct fid *);

	open_side(domain, info, &a);
	open_side(domain, info, &b);
	introduce(&a, &b);
	for (int round = 0; round < 3; round++) {
		int before = asked.subscribe;
		memset(buffer, 'a' + round, sizeof buffer);
		from = reg(domain, buffer, sizeof buffer, FI_SEND);
		into = reg(domain, other, sizeof other, FI_RECV);
		CHECK(asked.subscribe == before + (round == 0 ? 2 : 0));
		pass(&a, buffer + 10, fi_mr_desc(from), &b, other, fi_mr_desc(into), 100);
		pass(&a, buffer, fi_mr_desc(from), &b, other, fi_mr_desc(into), sizeof other);
		/* A region inside the registration. */
		part = reg(domain, buffer + 1000, 100, FI_SEND);
		pass(&a, buffer + 1010, fi_mr_desc(part), &b, other, fi_mr_desc(into), 50);
		CHECK(fi_tsend(a.ep, buffer + 1050, 51, fi_mr_desc(part), a.peer, 7, NULL) < 0);
		CHECK(fi_tsend(a.ep, buffer + 999, 2, fi_mr_desc(part), a.peer, 7, NULL) < 0);
		CHECK(fi_trecv(a.ep, buffer + 1000, 2, fi_mr_desc(part), FI_ADDR_UNSPEC, 7, 0, NULL) < 0);
		RETURNS(fi_close(&part->fid), 0);
		RETURNS(fi_close(&into->fid), 0);
		CHECK(fi_mr_desc(from) == from);
		/* A binding that this mode does not need. */
		RETURNS(fi_mr_bind(from, &a.ep->fid, 0), 0);
		close = from->fid.ops->close;
		RETURNS(close(&from->fid), 0);
		RETURNS(close(&from->fid), -FI_EINVAL);
		/* The registration is still there, and the region is not: its descriptor was its address. */
		RETURNS(fi_tsend(a.ep, buffer, 10, from, a.peer, 7, NULL), -FI_EINVAL);
	}
	close_side(&a);
	close_side(&b);
	from = reg(domain, buffer, LEN, FI_SEND);
	RETURNS(fi_close(&domain->fid), -FI_EBUSY);
	RETURNS(fi_close(&from->fid), 0);
}

enum { THREADS = 3, ROUNDS = 20000 };

/* Registers parts of the buffer in turn. */
static void *register_parts(void *domain)
{
	for (unsigned round = 0; round < ROUNDS; round++) {
		struct fid_mr *mr = reg(domain, buffer + round * 37 % (2 * LEN), 100 + round % LEN, FI_SEND);
		RETURNS(fi_close(&mr->fid), 0);
	}
	return NULL;
}

/* Notifications arrive while other threads register. Every subscription is ended. */
static void threads(struct fid_fabric *fabric, struct fi_info *info)
{
	struct fid_domain *domain;
	pthread_t running[THREADS];
	int subscribed = asked.subscribe, unsubscribed = asked.unsubscribe;

	RETURNS(fi_domain(fabric, info, &domain, NULL), 0);
	for (int at = 0; at < THREADS; at++)
		RETURNS(pthread_create(&running[at], NULL, register_parts, domain), 0);
	for (int round = 0; round < ROUNDS; round++)
		monitor.import_ops->notify(&monitor, buffer + round * 61 % sizeof buffer, 1);
	for (int at = 0; at < THREADS; at++)
		RETURNS(pthread_join(running[at], NULL), 0);
	RETURNS(fi_close(&domain->fid), 0);
	CHECK(asked.subscribe > subscribed);
	RETURNS(asked.unsubscribe - unsubscribed, asked.subscribe - subscribed);
}

/* A domain that is opened now. */
static struct fid_domain *opened(struct fid_fabric *fabric, struct fi_info *info)
{
	struct fid_domain *domain;
	RETURNS(fi_domain(fabric, info, &domain, NULL), 0);
	return domain;
}

/* Without an imported monitor, or with the cache turned off, there is no cache. */
static void without(struct fid_fabric *fabric, struct fi_info *info)
{
	struct fid_domain *domain = opened(fabric, info);
	CHECK(!anew(domain, buffer, LEN, FI_SEND));
	RETURNS(fi_close(&domain->fid), 0);
	CHECK(asked.start == 0 && asked.stop == 0);
}

int main(int count, char **words)
{
	struct fi_info *hints = fi_allocinfo(), *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain, *second;
	struct fid *cache;

	hints->ep_attr->type = FI_EP_RDM;
	/* Without capabilities, the program gets all of them. */
	hints->caps = count > 1 && !strcmp(words[1], "all") ? 0 : FI_TAGGED | FI_MSG | FI_RMA;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	RETURNS(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info), 0);
	CHECK(info->domain_attr->mr_mode & FI_MR_LOCAL);
	RETURNS(fi_fabric(info->fabric_attr, &fabric, NULL), 0);

	opening();
	without(fabric, info);
	importing();
	if (count > 1 && !strcmp(words[1], "off")) {
		without(fabric, info);
		puts("done");
		return 0;
	}

	asked.refuse_start = true;
	domain = opened(fabric, info);
	CHECK(!anew(domain, buffer, LEN, FI_SEND));
	RETURNS(fi_close(&domain->fid), 0);
	CHECK(asked.start == 1 && asked.stop == 0);
	asked.refuse_start = false;

	domain = opened(fabric, info);
	second = opened(fabric, info);
	CHECK(asked.start == 2);
	lookups(domain);
	/* Each domain has its own registrations. */
	CHECK(anew(second, buffer, LEN, FI_SEND | FI_RECV));
	messages(domain, info);

	/* Without its monitor, the cache keeps nothing; another monitor needs new domains. */
	RETURNS(fi_close(&monitor.fid), 0);
	asked.start = asked.stop = asked.subscribe = asked.unsubscribe = 0;
	CHECK(!anew(domain, buffer, LEN, FI_SEND));
	RETURNS(fi_open(FI_VERSION(1, 13), "mr_cache", NULL, 0, 0, &cache, NULL), 0);
	RETURNS(fi_import_fid(cache, &monitor.fid, 0), -FI_EBUSY);
	RETURNS(fi_close(&domain->fid), 0);
	RETURNS(fi_close(&second->fid), 0);
	RETURNS(fi_import_fid(cache, &monitor.fid, 0), 0);
	RETURNS(fi_close(cache), 0);
	domain = opened(fabric, info);
	CHECK(anew(domain, buffer, LEN, FI_SEND) && anew(domain, buffer, LEN, FI_RECV));
	CHECK(!anew(domain, buffer, LEN, FI_SEND) && asked.unsubscribe == 0);
	RETURNS(fi_close(&domain->fid), 0);
	CHECK(asked.start == 1 && asked.stop == 1 && asked.subscribe == 2 && asked.unsubscribe == 2);
	threads(fabric, info);
	RETURNS(fi_close(&monitor.fid), 0);

	RETURNS(fi_close(&fabric->fid), 0);
	fi_freeinfo(info);
	fi_freeinfo(hints);
	puts("done");
	return 0;
}
