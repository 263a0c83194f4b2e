/* Collective operations of four processes, as a libfabric program calls them.
 *
 * group          every operation, checked, by every member
 * group killed   one member is killed; the others' operations end with an error
 */
#include <rdma/fi_collective.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 4, NAME = 64, MOST = 50000 };

/* The data that the members share before libfabric connects them. */
struct table {
	char names[RANKS][NAME];
	_Atomic int there, joined, done;
};

static struct table *table;
static int me;
static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_ep *ep;
static struct fid_av *av;
static struct fid_cq *cq;
static struct fid_eq *eq;
static fi_addr_t numbers[RANKS];
static uint64_t source[RANKS * MOST], result[RANKS * MOST];
static struct fid_mr *regions[2];
static void *descs[2];

#define CHECK(what) do { \
	long code_ = (what); \
	if (code_ < 0) { \
		fprintf(stderr, "rank %d, line %d: %s: %s\n", me, __LINE__, #what, fi_strerror((int)-code_)); \
		exit(1); \
	} \
} while (0)

#define ASSERT(what) do { \
	if (!(what)) { \
		fprintf(stderr, "rank %d, line %d: check failed: %s\n", me, __LINE__, #what); \
		exit(1); \
	} \
} while (0)

/* Waits until `members` processes have arrived, without libfabric but making progress. */
static void meet(_Atomic int *counter, int members)
{
	atomic_fetch_add(counter, 1);
	while (atomic_load(counter) < members) {
		fi_cq_read(cq, NULL, 0);
		usleep(1000);
	}
}

static void open_all(void)
{
	struct fi_info *hints = fi_allocinfo();
	hints->fabric_attr->prov_name = strdup("rkey");
	hints->caps = FI_MSG | FI_COLLECTIVE;
	hints->ep_attr->type = FI_EP_RDM;
	hints->domain_attr->mr_mode = FI_MR_COLLECTIVE | FI_MR_LOCAL;
	hints->domain_attr->av_type = FI_AV_TABLE;
	CHECK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
	ASSERT(info->caps & FI_COLLECTIVE);
	CHECK(fi_fabric(info->fabric_attr, &fabric, NULL));
	CHECK(fi_domain(fabric, info, &domain, NULL));
	struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_UNSPEC};
	CHECK(fi_cq_open(domain, &cq_attr, &cq, NULL));
	struct fi_eq_attr eq_attr = {.wait_obj = FI_WAIT_UNSPEC};
	CHECK(fi_eq_open(fabric, &eq_attr, &eq, NULL));
	struct fi_av_attr av_attr = {.type = FI_AV_TABLE};
	CHECK(fi_av_open(domain, &av_attr, &av, NULL));
	CHECK(fi_endpoint(domain, info, &ep, NULL));
	CHECK(fi_ep_bind(ep, &cq->fid, FI_SEND | FI_RECV));
	CHECK(fi_ep_bind(ep, &eq->fid, 0));
	CHECK(fi_ep_bind(ep, &av->fid, 0));
	CHECK(fi_enable(ep));
	size_t len = NAME;
	CHECK(fi_getname(&ep->fid, table->names[me], &len));
	meet(&table->there, RANKS);
	for (int rank = 0; rank < RANKS; rank++)
		ASSERT(fi_av_insert(av, table->names[rank], 1, &numbers[rank], 0, NULL) == 1);
	if (info->domain_attr->mr_mode & FI_MR_COLLECTIVE) {
		uint64_t access = FI_COLLECTIVE | FI_SEND | FI_RECV;
		CHECK(fi_mr_reg(domain, source, sizeof source, access, 0, 1, 0, &regions[0], NULL));
		CHECK(fi_mr_reg(domain, result, sizeof result, access, 0, 2, 0, &regions[1], NULL));
		descs[0] = fi_mr_desc(regions[0]);
		descs[1] = fi_mr_desc(regions[1]);
	}
}

static struct fid_mc *join(struct fi_av_set_attr *attr)
{
	struct fid_av_set *set;
	fi_addr_t address;
	struct fid_mc *mc;
	CHECK(fi_av_set(av, attr, &set, NULL));
	CHECK(fi_av_set_addr(set, &address));
	CHECK(fi_join_collective(ep, address, set, 0, &mc, &numbers));
	uint32_t event;
	struct fi_eq_entry entry;
	/* No thread reads the completion queue in the meantime. */
	long got;
	do
		got = fi_eq_sread(eq, &event, &entry, sizeof entry, -1, 0);
	while (got == -FI_EAGAIN || got == -FI_EINTR);
	CHECK(got);
	ASSERT(event == FI_JOIN_COMPLETE && entry.fid == &mc->fid && entry.context == &numbers);
	CHECK(fi_close(&set->fid));
	return mc;
}

/* Returns one completion: 0 or its error. */
static int wait_for(void *context, int blocking)
{
	struct fi_cq_tagged_entry entry;
	long got;
	do
		got = blocking ? fi_cq_sread(cq, &entry, 1, NULL, -1) : fi_cq_read(cq, &entry, 1);
	while (got == -FI_EAGAIN || got == -FI_EINTR);
	if (got == -FI_EAVAIL) {
		struct fi_cq_err_entry error = {0};
		CHECK(fi_cq_readerr(cq, &error, 0));
		ASSERT(error.op_context == context && error.flags & FI_COLLECTIVE);
		return error.err;
	}
	CHECK(got);
	ASSERT(entry.op_context == context && entry.flags & FI_COLLECTIVE);
	return 0;
}

/* The element that member `from` has for member `to`. */
static uint64_t element(int from, int to, size_t at)
{
	return from * 1000003ull + to * 10007ull + at * 13ull;
}

static void fill(size_t count)
{
	for (int to = 0; to < RANKS; to++)
		for (size_t at = 0; at < count; at++)
			source[to * count + at] = element(me, to, at);
	memset(result, 0xee, sizeof result);
}

static uint64_t sum(int to, size_t at)
{
	uint64_t all = 0;
	for (int from = 0; from < RANKS; from++)
		all += element(from, to, at);
	return all;
}

#define CALL(what) do { \
	long code_; \
	while ((code_ = (what)) == -FI_EAGAIN) \
		fi_cq_read(cq, NULL, 0); \
	CHECK(code_); \
	ASSERT(wait_for(&numbers, turn++ % 2) == 0); \
} while (0)

#define EVERY(blocks, wanted) do { \
	for (int block = 0; block < (blocks); block++) \
		for (size_t at = 0; at < count; at++) \
			ASSERT(result[block * count + at] == (wanted)); \
	ASSERT(result[(blocks) * count] == 0xeeeeeeeeeeeeeeeeull); \
} while (0)

static void all_operations(struct fid_mc *mc, size_t count)
{
	fi_addr_t group = fi_mc_addr(mc);
	void *context = &numbers, *from = descs[0], *to = descs[1];
	static int turn;
	const enum fi_datatype type = FI_UINT64;
	CALL(fi_barrier(ep, group, context));
	CALL(fi_barrier2(ep, group, FI_COMPLETION, context));
	for (int root = 0; root < RANKS; root++) {
		fill(count);
		memcpy(result, source, count * 8);
		CALL(fi_broadcast(ep, result, count, to, group, numbers[root], type, 0, context));
		EVERY(1, element(root, 0, at));
		fill(count);
		CALL(fi_reduce(ep, source, count, from, result, to, group, numbers[root], type, FI_SUM, 0, context));
		EVERY(me == root ? 1 : 0, sum(0, at));
		fill(count);
		CALL(fi_scatter(ep, source, count, from, result, to, group, numbers[root], type, 0, context));
		EVERY(1, element(root, me, at));
		fill(count);
		CALL(fi_gather(ep, source, count, from, result, to, group, numbers[root], type, 0, context));
		EVERY(me == root ? RANKS : 0, element(block, 0, at));
	}
	fill(count);
	CALL(fi_alltoall(ep, source, count, from, result, to, group, type, 0, context));
	EVERY(RANKS, element(block, me, at));
	fill(count);
	CALL(fi_allreduce(ep, source, count, from, result, to, group, type, FI_SUM, 0, context));
	EVERY(1, sum(0, at));
	fill(count);
	CALL(fi_allgather(ep, source, count, from, result, to, group, type, 0, context));
	EVERY(RANKS, element(block, 0, at));
	fill(count);
	CALL(fi_reduce_scatter(ep, source, count, from, result, to, group, type, FI_SUM, 0, context));
	EVERY(1, sum(me, at));
}

/* Where collectives need registered buffers, a call is refused without them, or without the right. */
static void refused(struct fid_mc *mc)
{
	struct fid_mr *plain;
	if (!regions[0])
		return;
	fi_addr_t group = fi_mc_addr(mc);
	ASSERT(fi_allreduce(ep, source, 1, NULL, result, descs[1], group, FI_UINT64, FI_SUM, 0, NULL) == -FI_EINVAL);
	CHECK(fi_mr_reg(domain, source, 8, FI_SEND | FI_RECV, 0, 3, 0, &plain, NULL));
	ASSERT(fi_allreduce(ep, source, 1, fi_mr_desc(plain), result, descs[1], group, FI_UINT64, FI_SUM, 0, NULL) ==
	       -FI_EACCES);
	CHECK(fi_close(&plain->fid));
}

static void query(void)
{
	struct fi_collective_attr attr = {.op = FI_SUM, .datatype = FI_DOUBLE};
	CHECK(fi_query_collective(domain, FI_ALLREDUCE, &attr, 0));
	ASSERT(attr.datatype_attr.size == sizeof(double) && attr.datatype_attr.count > 1000);
	ASSERT(attr.max_members >= RANKS && attr.mode == 0);
	attr = (struct fi_collective_attr){.op = FI_NOOP, .datatype = FI_VOID};
	CHECK(fi_query_collective(domain, FI_BARRIER, &attr, 0));
	attr = (struct fi_collective_attr){.op = FI_BOR, .datatype = FI_DOUBLE};
	ASSERT(fi_query_collective(domain, FI_REDUCE, &attr, 0) == -FI_EOPNOTSUPP);
}

static int member(int killed)
{
	/* A hang is a failure. */
	alarm(120);
	open_all();
	struct fi_av_set_attr all = {
		.count = RANKS, .start_addr = 0, .end_addr = RANKS - 1, .stride = 1,
	};
	struct fid_mc *mc = join(&all);
	if (killed) {
		/* The killed member may end another member's join. */
		meet(&table->joined, RANKS);
		if (me == RANKS - 1)
			raise(SIGKILL);
		fill(MOST);
		long code;
		while ((code = fi_allreduce(ep, source, MOST, descs[0], result, descs[1], fi_mc_addr(mc), FI_UINT64,
					    FI_SUM, 0, &numbers)) == -FI_EAGAIN)
			fi_cq_read(cq, NULL, 0);
		/* The group may already have failed. */
		if (code == 0)
			code = -wait_for(&numbers, me % 2);
		ASSERT(code < 0);
		ASSERT(fi_barrier(ep, fi_mc_addr(mc), NULL) < 0);
		/* Waits until all members have noticed; then this one may also exit. */
		meet(&table->done, RANKS - 1);
	} else {
		query();
		refused(mc);
		all_operations(mc, 1);
		all_operations(mc, 700);
		all_operations(mc, MOST - 1);
		if (me % 2 == 1) {
			struct fi_av_set_attr odd = {
				.count = RANKS / 2, .start_addr = 1, .end_addr = RANKS - 1, .stride = 2,
			};
			struct fid_mc *pair = join(&odd);
			uint64_t one = me;
			static int turn;
			memcpy(source, &one, 8);
			CALL(fi_allreduce(ep, source, 1, descs[0], result, descs[1], fi_mc_addr(pair), FI_UINT64,
					  FI_SUM, 0, &numbers));
			ASSERT(result[0] == 4);
			CHECK(fi_close(&pair->fid));
		}
		all_operations(mc, 3);
	}
	CHECK(fi_close(&mc->fid));
	CHECK(fi_close(&ep->fid));
	for (int region = 0; region < 2; region++)
		if (regions[region])
			CHECK(fi_close(&regions[region]->fid));
	CHECK(fi_close(&av->fid));
	CHECK(fi_close(&cq->fid));
	CHECK(fi_close(&eq->fid));
	CHECK(fi_close(&domain->fid));
	CHECK(fi_close(&fabric->fid));
	return 0;
}

int main(int argc, char **argv)
{
	int killed = argc > 1 && strcmp(argv[1], "killed") == 0;
	table = mmap(NULL, sizeof *table, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ASSERT(table != MAP_FAILED);
	pid_t children[RANKS];
	for (me = 0; me < RANKS; me++) {
		children[me] = fork();
		ASSERT(children[me] >= 0);
		if (children[me] == 0)
			return member(killed);
	}
	int failed = 0;
	for (int rank = 0; rank < RANKS; rank++) {
		int status;
		ASSERT(waitpid(children[rank], &status, 0) == children[rank]);
		int wanted = killed && rank == RANKS - 1
				     ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL
				     : WIFEXITED(status) && WEXITSTATUS(status) == 0;
		if (!wanted) {
			fprintf(stderr, "rank %d: status %#x\n", rank, status);
			failed = 1;
		}
	}
	if (!failed)
		puts("all members agree");
	return failed;
}
