/* Two processes, each with a scalable endpoint of four transmit and four receive contexts: messages and writes between all pairs
 * of contexts, as a libfabric program makes them.
 */
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SIDES = 2, CONTEXTS = 4, BITS = 2, ROUNDS = 6, NAME = 64, LONG = 20000, PATIENCE = 60, KEY = 7 };

/* The data that the processes share before libfabric connects them. */
struct table {
	char names[SIDES][NAME];
	_Atomic int there, received, written, done;
};

static struct table *table;
static int me;
static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_av *av;
static struct fid_ep *sep, *tx[CONTEXTS], *rx[CONTEXTS];
static struct fid_cq *tx_cq[CONTEXTS], *rx_cq[CONTEXTS];
static struct fid_cntr *wrote[CONTEXTS], *was_written[CONTEXTS];
static fi_addr_t peer;
static time_t started;
static char source[CONTEXTS][CONTEXTS][ROUNDS][LONG], result[CONTEXTS][CONTEXTS][ROUNDS][LONG];
static uint64_t window[CONTEXTS][CONTEXTS], numbers[CONTEXTS][CONTEXTS];
static struct fid_mr *regions[4];
static void *source_desc, *result_desc, *numbers_desc;
/* Completions of each context so far. */
static int sent[CONTEXTS], received[CONTEXTS], datas[CONTEXTS];

#define CHECK(what) do { \
	long code_ = (what); \
	if (code_ < 0) { \
		fprintf(stderr, "side %d, line %d: %s: %s\n", me, __LINE__, #what, fi_strerror((int)-code_)); \
		exit(1); \
	} \
} while (0)

#define ASSERT(what) do { \
	if (!(what)) { \
		fprintf(stderr, "side %d, line %d: check failed: %s\n", me, __LINE__, #what); \
		exit(1); \
	} \
} while (0)

/* Repeats a call that returns -FI_EAGAIN. */
#define AGAIN(what) do { \
	long code_; \
	while ((code_ = (what)) == -FI_EAGAIN) progress(); \
	CHECK(code_); \
} while (0)

/* Reads a queue; every completion must be a success. */
static int take(struct fid_cq *cq, struct fi_cq_tagged_entry *entry)
{
	ssize_t count = fi_cq_read(cq, entry, 1);
	if (count == -FI_EAVAIL) {
		struct fi_cq_err_entry error = {0};
		CHECK(fi_cq_readerr(cq, &error, 0));
		fprintf(stderr, "side %d: %s\n", me, fi_strerror(error.err));
		exit(1);
	}
	if (count == -FI_EAGAIN) return 0;
	CHECK(count);
	return 1;
}

static void progress(void)
{
	struct fi_cq_tagged_entry entry;
	for (int i = 0; i < CONTEXTS; i++) {
		while (take(tx_cq[i], &entry)) sent[i]++;
		while (take(rx_cq[i], &entry)) {
			if (entry.flags & FI_REMOTE_CQ_DATA) {
				/* The named context receives, from one transmit context after the other. */
				ASSERT(entry.data % CONTEXTS == (uint64_t)i);
				datas[i]++;
			} else {
				received[i]++;
			}
		}
	}
	ASSERT(time(NULL) - started < PATIENCE);
}

/* Waits until the other process has also arrived, and makes progress meanwhile. */
static void meet(_Atomic int *counter)
{
	atomic_fetch_add(counter, 1);
	while (atomic_load(counter) < SIDES) {
		progress();
		usleep(200);
	}
}

static void *reg(int number, void *at, size_t len, uint64_t access, uint64_t key)
{
	CHECK(fi_mr_reg(domain, at, len, access, 0, key, 0, &regions[number], NULL));
	if (info->domain_attr->mr_mode & FI_MR_ENDPOINT) {
		CHECK(fi_mr_bind(regions[number], &sep->fid, 0));
		CHECK(fi_mr_enable(regions[number]));
	}
	return fi_mr_desc(regions[number]);
}

static void open_contexts(void)
{
	struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_UNSPEC};
	for (int i = 0; i < CONTEXTS; i++) {
		CHECK(fi_cq_open(domain, &cq_attr, &tx_cq[i], NULL));
		CHECK(fi_cq_open(domain, &cq_attr, &rx_cq[i], NULL));
		CHECK(fi_cntr_open(domain, NULL, &wrote[i], NULL));
		CHECK(fi_cntr_open(domain, NULL, &was_written[i], NULL));
		CHECK(fi_tx_context(sep, i, info->tx_attr, &tx[i], NULL));
		CHECK(fi_ep_bind(tx[i], &tx_cq[i]->fid, FI_TRANSMIT));
		CHECK(fi_ep_bind(tx[i], &wrote[i]->fid, FI_WRITE));
		CHECK(fi_enable(tx[i]));
		CHECK(fi_rx_context(sep, i, info->rx_attr, &rx[i], NULL));
		CHECK(fi_ep_bind(rx[i], &rx_cq[i]->fid, FI_RECV));
		CHECK(fi_ep_bind(rx[i], &was_written[i]->fid, FI_REMOTE_WRITE));
		CHECK(fi_enable(rx[i]));
	}
	ASSERT(fi_tx_context(sep, CONTEXTS, NULL, &tx[0], NULL) == -FI_EINVAL);
	ASSERT(fi_rx_context(sep, 0, NULL, &rx[0], NULL) == -FI_EBUSY);
	CHECK(fi_enable(sep));
}

static void open_all(void)
{
	struct fi_info *hints = fi_allocinfo();
	hints->fabric_attr->prov_name = strdup("rkey");
	hints->caps = FI_MSG | FI_TAGGED | FI_RMA | FI_RMA_EVENT | FI_NAMED_RX_CTX;
	hints->ep_attr->type = FI_EP_RDM;
	hints->ep_attr->tx_ctx_cnt = hints->ep_attr->rx_ctx_cnt = CONTEXTS;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_ENDPOINT;
	hints->domain_attr->av_type = FI_AV_TABLE;
	CHECK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
	ASSERT(info->ep_attr->tx_ctx_cnt == CONTEXTS && info->ep_attr->rx_ctx_cnt == CONTEXTS);
	ASSERT(info->domain_attr->max_ep_tx_ctx >= CONTEXTS && info->domain_attr->max_ep_rx_ctx >= CONTEXTS);
	ASSERT(info->caps & FI_NAMED_RX_CTX);
	CHECK(fi_fabric(info->fabric_attr, &fabric, NULL));
	CHECK(fi_domain(fabric, info, &domain, NULL));
	struct fi_av_attr av_attr = {.type = FI_AV_TABLE, .rx_ctx_bits = BITS};
	CHECK(fi_av_open(domain, &av_attr, &av, NULL));
	CHECK(fi_scalable_ep(domain, info, &sep, NULL));
	CHECK(fi_scalable_ep_bind(sep, &av->fid, 0));
	open_contexts();
	source_desc = reg(0, source, sizeof source, FI_SEND, 1);
	result_desc = reg(1, result, sizeof result, FI_RECV, 2);
	numbers_desc = reg(2, numbers, sizeof numbers, FI_WRITE, 3);
	reg(3, window, sizeof window, FI_REMOTE_WRITE, KEY);
	size_t len = NAME;
	CHECK(fi_getname(&sep->fid, table->names[me], &len));
	meet(&table->there);
	ASSERT(fi_av_insert(av, table->names[!me], 1, &peer, 0, NULL) == 1);
	fi_freeinfo(hints);
}

static size_t length(int round)
{
	return round % 2 ? LONG : 16;
}

/* The byte of a message. */
static char content(int side, int from, int to, int round)
{
	return (char)(side * 101 + from * 37 + to * 11 + round);
}

/* Each transmit context sends to each receive context, in order. */
static void messages(void)
{
	for (int to = 0; to < CONTEXTS; to++)
		for (int from = 0; from < CONTEXTS; from++)
			for (int round = 0; round < ROUNDS; round++)
				CHECK(fi_trecv(rx[to], result[from][to][round], LONG, result_desc,
					FI_ADDR_UNSPEC, (uint64_t)from, 0, NULL));
	for (int round = 0; round < ROUNDS; round++)
		for (int from = 0; from < CONTEXTS; from++)
			for (int to = 0; to < CONTEXTS; to++) {
				char *at = source[from][to][round];
				memset(at, content(me, from, to, round), LONG);
				AGAIN(fi_tsend(tx[from], at, length(round), source_desc,
					fi_rx_addr(peer, to, BITS), (uint64_t)from, NULL));
			}
	for (int i = 0; i < CONTEXTS; i++)
		while (sent[i] < CONTEXTS * ROUNDS || received[i] < CONTEXTS * ROUNDS) progress();
	for (int to = 0; to < CONTEXTS; to++)
		for (int from = 0; from < CONTEXTS; from++)
			for (int round = 0; round < ROUNDS; round++)
				for (size_t at = 0; at < length(round); at++)
					ASSERT(result[from][to][round][at] == content(!me, from, to, round));
	meet(&table->received);
}

/* Each transmit context writes, with data, through each receive context. */
static void writes(void)
{
	for (int from = 0; from < CONTEXTS; from++)
		for (int to = 0; to < CONTEXTS; to++) {
			numbers[from][to] = (uint64_t)(1000 * me + from * CONTEXTS + to + 1);
			AGAIN(fi_writedata(tx[from], &numbers[from][to], sizeof numbers[0][0], numbers_desc,
				(uint64_t)(from * CONTEXTS + to), fi_rx_addr(peer, to, BITS),
				(uint64_t)(from * CONTEXTS + to) * sizeof window[0][0], KEY, NULL));
		}
	for (int i = 0; i < CONTEXTS; i++) {
		while (datas[i] < CONTEXTS || sent[i] < CONTEXTS * (ROUNDS + 1)) progress();
		while (fi_cntr_read(was_written[i]) < CONTEXTS || fi_cntr_read(wrote[i]) < CONTEXTS) progress();
	}
	meet(&table->written);
	for (int from = 0; from < CONTEXTS; from++)
		for (int to = 0; to < CONTEXTS; to++)
			ASSERT(window[from][to] == (uint64_t)(1000 * !me + from * CONTEXTS + to + 1));
	for (int i = 0; i < CONTEXTS; i++) {
		ASSERT(fi_cntr_read(was_written[i]) == CONTEXTS && fi_cntr_read(wrote[i]) == CONTEXTS);
		ASSERT(sent[i] == CONTEXTS * (ROUNDS + 1) && received[i] == CONTEXTS * ROUNDS && datas[i] == CONTEXTS);
	}
}

static void cancels(void)
{
	int context;
	CHECK(fi_trecv(rx[1], result[0][0][0], 8, result_desc, FI_ADDR_UNSPEC, 99, 0, &context));
	ASSERT(fi_cancel(&rx[0]->fid, &context) == -FI_ENOENT);
	CHECK(fi_cancel(&rx[1]->fid, &context));
	struct fi_cq_tagged_entry entry;
	ASSERT(fi_cq_read(rx_cq[1], &entry, 1) == -FI_EAVAIL);
	struct fi_cq_err_entry error = {0};
	CHECK(fi_cq_readerr(rx_cq[1], &error, 0));
	ASSERT(error.err == FI_ECANCELED && error.op_context == &context);
}

static void close_all(void)
{
	meet(&table->done);
	for (int i = 0; i < CONTEXTS; i++) {
		ASSERT(fi_close(&sep->fid) == -FI_EBUSY);
		CHECK(fi_close(&tx[i]->fid));
		CHECK(fi_close(&rx[i]->fid));
	}
	CHECK(fi_close(&sep->fid));
	for (int i = 0; i < 4; i++) CHECK(fi_close(&regions[i]->fid));
	for (int i = 0; i < CONTEXTS; i++) {
		CHECK(fi_close(&tx_cq[i]->fid));
		CHECK(fi_close(&rx_cq[i]->fid));
		CHECK(fi_close(&wrote[i]->fid));
		CHECK(fi_close(&was_written[i]->fid));
	}
	CHECK(fi_close(&av->fid));
	CHECK(fi_close(&domain->fid));
	CHECK(fi_close(&fabric->fid));
	fi_freeinfo(info);
}

int main(void)
{
	table = mmap(NULL, sizeof *table, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ASSERT(table != MAP_FAILED);
	started = time(NULL);
	pid_t child = fork();
	ASSERT(child >= 0);
	me = child == 0;
	open_all();
	messages();
	writes();
	cancels();
	close_all();
	if (me) return 0;
	int status;
	ASSERT(waitpid(child, &status, 0) == child);
	return status != 0;
}
