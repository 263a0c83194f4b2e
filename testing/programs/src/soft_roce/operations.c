/* Accesses to a peer's memory, allowed and refused, through its region and through memory windows, and sends that the peer cannot
 * receive. Each case has a queue pair of its own, so that its failure ends nothing else.
 *
 * Build: cc -O2 -o operations operations.c -libverbs   Run: operations [-d DEVICE] -g GID_INDEX [SERVER]
 * Prints a line for each case whose result is not the expected one, and exits with the status 1 if there is any.
 */
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define PORT 18515
#define BYTES 4096
/* The window, or the whole region, begins here. */
#define START 512
#define LENGTH 1024
#define PATIENCE 60 /* seconds for one completion */
#define IMMEDIATE 0x01020304
#define QKEY 0x11111111
/* What precedes a datagram in its receive. */
#define GRH 40

enum memory {
	REGION,	    /* the region's own key */
	WINDOW,	    /* a window with all rights */
	WRITE_ONLY, /* a window without the rights to read and for atomics */
	UNBOUND,    /* a window that its owner has invalidated */
	NO_KEY,	    /* a key that names nothing */
	WINDOW_1,   /* a window of type 1 with all rights */
	WRITE_ONLY_1, /* a window of type 1 without the rights to read and for atomics */
	UNBOUND_1,  /* a window of type 1 that its owner has bound to nothing */
};

enum receive {
	NO_RECEIVE,
	RECEIVE,       /* the server posts a receive, which completes */
	SHORT_RECEIVE, /* the server posts a receive of 16 B */
};

enum transport { RC, UC, UD };

/* What Soft-RoCE of Linux 6.1 does differently. */
enum soft_roce {
	SAME,
	TARGET_DIFFERS,	   /* it does not check a window's range, and gives a send that is too long another status */
	INITIATOR_REFUSES, /* it does not post the request */
};

/* What the client does, and what both sides get. */
static const struct test {
	const char *name;
	enum memory memory;
	enum ibv_wr_opcode opcode;
	uint32_t offset, length;
	enum receive receive;
	enum ibv_wc_status client, server;
	enum soft_roce soft_roce;
	enum transport transport;
} tests[] = {
	{"write to a region", REGION, IBV_WR_RDMA_WRITE, 0, 1024, NO_RECEIVE, IBV_WC_SUCCESS},
	{"read from a region", REGION, IBV_WR_RDMA_READ, 0, 1024, NO_RECEIVE, IBV_WC_SUCCESS},
	{"write to a window", WINDOW, IBV_WR_RDMA_WRITE, 0, 1024, NO_RECEIVE, IBV_WC_SUCCESS},
	{"write the last 8 B of a window", WINDOW, IBV_WR_RDMA_WRITE, 1016, 8, NO_RECEIVE, IBV_WC_SUCCESS},
	{"write nothing", WINDOW, IBV_WR_RDMA_WRITE, 0, 0, NO_RECEIVE, IBV_WC_SUCCESS},
	{"write to a window with immediate data", WINDOW, IBV_WR_RDMA_WRITE_WITH_IMM, 64, 128, RECEIVE, IBV_WC_SUCCESS},
	{"read from a window", WINDOW, IBV_WR_RDMA_READ, 8, 256, NO_RECEIVE, IBV_WC_SUCCESS},
	{"add in a window", WINDOW, IBV_WR_ATOMIC_FETCH_AND_ADD, 16, 8, NO_RECEIVE, IBV_WC_SUCCESS},
	{"compare and swap in a window", WINDOW, IBV_WR_ATOMIC_CMP_AND_SWP, 24, 8, NO_RECEIVE, IBV_WC_SUCCESS},
	{"write to a window without other rights", WRITE_ONLY, IBV_WR_RDMA_WRITE, 0, 64, NO_RECEIVE, IBV_WC_SUCCESS},
	{"send", REGION, IBV_WR_SEND, 0, 512, RECEIVE, IBV_WC_SUCCESS},
	{"send with immediate data", REGION, IBV_WR_SEND_WITH_IMM, 0, 8, RECEIVE, IBV_WC_SUCCESS},
	{"send and invalidate a window", WINDOW, IBV_WR_SEND_WITH_INV, 0, 8, RECEIVE, IBV_WC_SUCCESS},
	{"write past the end of a window", WINDOW, IBV_WR_RDMA_WRITE, 1020, 8, NO_RECEIVE, IBV_WC_REM_ACCESS_ERR, 0, TARGET_DIFFERS},
	{"write before a window", WINDOW, IBV_WR_RDMA_WRITE, -8, 8, NO_RECEIVE, IBV_WC_REM_ACCESS_ERR, 0, TARGET_DIFFERS},
	{"write to an invalidated window", UNBOUND, IBV_WR_RDMA_WRITE, 0, 8, NO_RECEIVE, IBV_WC_REM_ACCESS_ERR},
	{"read without the right", WRITE_ONLY, IBV_WR_RDMA_READ, 0, 8, NO_RECEIVE, IBV_WC_REM_ACCESS_ERR},
	{"add without the right", WRITE_ONLY, IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 8, NO_RECEIVE, IBV_WC_REM_ACCESS_ERR},
	{"write with an unknown key", NO_KEY, IBV_WR_RDMA_WRITE, 0, 8, NO_RECEIVE, IBV_WC_REM_ACCESS_ERR},
	{"read with an unknown key", NO_KEY, IBV_WR_RDMA_READ, 0, 8, NO_RECEIVE, IBV_WC_REM_ACCESS_ERR},
	{"write past the end of a region", REGION, IBV_WR_RDMA_WRITE, BYTES - START - 4, 8, NO_RECEIVE, IBV_WC_REM_ACCESS_ERR},
	{"add at an address that is not aligned", WINDOW, IBV_WR_ATOMIC_FETCH_AND_ADD, 4, 8, NO_RECEIVE, IBV_WC_REM_INV_REQ_ERR, 0, INITIATOR_REFUSES},
	{"send without a receive", REGION, IBV_WR_SEND, 0, 8, NO_RECEIVE, IBV_WC_RNR_RETRY_EXC_ERR},
	{"write to a window of type 1", WINDOW_1, IBV_WR_RDMA_WRITE, 0, 1024, NO_RECEIVE, IBV_WC_SUCCESS},
	{"write to a window of type 1 with immediate data", WINDOW_1, IBV_WR_RDMA_WRITE_WITH_IMM, 64, 128, RECEIVE, IBV_WC_SUCCESS},
	{"read from a window of type 1", WINDOW_1, IBV_WR_RDMA_READ, 8, 256, NO_RECEIVE, IBV_WC_SUCCESS},
	{"add in a window of type 1", WINDOW_1, IBV_WR_ATOMIC_FETCH_AND_ADD, 16, 8, NO_RECEIVE, IBV_WC_SUCCESS},
	{"write to a window of type 1 without other rights", WRITE_ONLY_1, IBV_WR_RDMA_WRITE, 0, 64, NO_RECEIVE, IBV_WC_SUCCESS},
	{"write past the end of a window of type 1", WINDOW_1, IBV_WR_RDMA_WRITE, 1020, 8, NO_RECEIVE, IBV_WC_REM_ACCESS_ERR, 0, TARGET_DIFFERS},
	{"read without the right of a window of type 1", WRITE_ONLY_1, IBV_WR_RDMA_READ, 0, 8, NO_RECEIVE, IBV_WC_REM_ACCESS_ERR},
	{"write to an unbound window of type 1", UNBOUND_1, IBV_WR_RDMA_WRITE, 0, 8, NO_RECEIVE, IBV_WC_REM_ACCESS_ERR},
	{"send several packets with immediate data", REGION, IBV_WR_SEND_WITH_IMM, 0, 3000, RECEIVE, IBV_WC_SUCCESS},
	{"UC: send", REGION, IBV_WR_SEND, 0, 3000, RECEIVE, IBV_WC_SUCCESS, 0, SAME, UC},
	{"UC: send with immediate data", REGION, IBV_WR_SEND_WITH_IMM, 0, 512, RECEIVE, IBV_WC_SUCCESS, 0, SAME, UC},
	{"UC: send several packets with immediate data", REGION, IBV_WR_SEND_WITH_IMM, 0, 3000, RECEIVE, IBV_WC_SUCCESS, 0, SAME, UC},
	{"UC: write with immediate data", REGION, IBV_WR_RDMA_WRITE_WITH_IMM, 0, 512, RECEIVE, IBV_WC_SUCCESS, 0, SAME, UC},
	{"UC: write several packets with immediate data", REGION, IBV_WR_RDMA_WRITE_WITH_IMM, 0, 3000, RECEIVE, IBV_WC_SUCCESS, 0, SAME, UC},
	{"UC: write nothing with immediate data", REGION, IBV_WR_RDMA_WRITE_WITH_IMM, 0, 0, RECEIVE, IBV_WC_SUCCESS, 0, SAME, UC},
	{"UC: write to a window with immediate data", WINDOW, IBV_WR_RDMA_WRITE_WITH_IMM, 64, 128, RECEIVE, IBV_WC_SUCCESS, 0, SAME, UC},
	{"UD: send", REGION, IBV_WR_SEND, 0, 512, RECEIVE, IBV_WC_SUCCESS, 0, SAME, UD},
	{"UD: send with immediate data", REGION, IBV_WR_SEND_WITH_IMM, 0, 1000, RECEIVE, IBV_WC_SUCCESS, 0, SAME, UD},
	{"UD: send nothing with immediate data", REGION, IBV_WR_SEND_WITH_IMM, 0, 0, RECEIVE, IBV_WC_SUCCESS, 0, SAME, UD},
	{"send more than the receive holds", REGION, IBV_WR_SEND, 0, 64, SHORT_RECEIVE, IBV_WC_REM_INV_REQ_ERR, IBV_WC_LOC_LEN_ERR, TARGET_DIFFERS},
};

/* What each side tells the other at the beginning of a case. */
struct hello {
	uint32_t qpn, rkey;
	uint64_t addr;
	union ibv_gid gid;
};

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *region;
static unsigned char *buffer;
static int gid_index, control;
static union ibv_gid gid;
static bool is_client, client_is_soft_roce, server_is_soft_roce;
static const char *doing = "setting up";

static void die(const char *what)
{
	fprintf(stderr, "%s: %s failed: %m\n", doing, what);
	exit(1);
}

#define CHECK(condition) do { if (!(condition)) die(#condition); } while (0)

static void open_device(const char *name)
{
	int count;
	struct ibv_device **list = ibv_get_device_list(&count);
	for (int i = 0; list && i < count && !context; i++)
		if (!name || !strcmp(name, ibv_get_device_name(list[i])))
			CHECK(context = ibv_open_device(list[i]));
	CHECK(context);
	CHECK(pd = ibv_alloc_pd(context));
	CHECK(cq = ibv_create_cq(context, 16, NULL, NULL, 0));
	CHECK(!posix_memalign((void **)&buffer, BYTES, BYTES));
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
		     IBV_ACCESS_MW_BIND;
	CHECK(region = ibv_reg_mr(pd, buffer, BYTES, access));
	CHECK(!ibv_query_gid(context, 1, gid_index, &gid));
}

static void open_control(const char *server)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(PORT), .sin_addr.s_addr = INADDR_ANY};
	int on = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
	if (server) {
		CHECK(inet_pton(AF_INET, server, &address.sin_addr) == 1);
		CHECK(!connect(control = listener, (struct sockaddr *)&address, sizeof(address)));
		return;
	}
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	CHECK(!bind(listener, (struct sockaddr *)&address, sizeof(address)) && !listen(listener, 1));
	CHECK((control = accept(listener, NULL, NULL)) >= 0);
	close(listener);
}

static void exchange(const void *mine, void *theirs, size_t length)
{
	CHECK(send(control, mine, length, 0) == (ssize_t)length);
	CHECK(recv(control, theirs, length, MSG_WAITALL) == (ssize_t)length);
}

/* Tells the peer which device this side has. */
static void introduce(void)
{
	bool mine = !strncmp(ibv_get_device_name(context->device), "rxe", 3), theirs;
	exchange(&mine, &theirs, sizeof(mine));
	client_is_soft_roce = is_client ? mine : theirs;
	server_is_soft_roce = is_client ? theirs : mine;
}

static void barrier(void)
{
	char mine = 0, theirs;
	exchange(&mine, &theirs, 1);
}

static struct ibv_qp *create(enum transport transport)
{
	static const enum ibv_qp_type types[] = {[RC] = IBV_QPT_RC, [UC] = IBV_QPT_UC, [UD] = IBV_QPT_UD};
	struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = types[transport],
					.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1}};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(qp);
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
	if (transport == RC)
		attr.qp_access_flags |= IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | (transport == UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS)));
	return qp;
}

static struct ibv_ah_attr path(const struct hello *peer)
{
	return (struct ibv_ah_attr){.is_global = 1, .port_num = 1, .grh = {.dgid = peer->gid, .sgid_index = gid_index, .hop_limit = 64}};
}

static void join(struct ibv_qp *qp, enum transport transport, const struct hello *peer)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qpn, .rq_psn = 7,
				   .max_dest_rd_atomic = 1, .min_rnr_timer = 12, .ah_attr = path(peer)};
	struct ibv_qp_attr ready = {.qp_state = IBV_QPS_RTS, .timeout = 18, .retry_cnt = 7, .rnr_retry = 1, .sq_psn = 7, .max_rd_atomic = 1};
	int to_receive = IBV_QP_STATE, to_send = IBV_QP_STATE | IBV_QP_SQ_PSN;
	if (transport != UD)
		to_receive |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	if (transport == RC) {
		to_receive |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
		to_send |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	}
	CHECK(!ibv_modify_qp(qp, &attr, to_receive));
	CHECK(!ibv_modify_qp(qp, &ready, to_send));
}

static struct ibv_wc completion(void)
{
	struct ibv_wc wc;
	time_t start = time(NULL);
	int count;
	while (!(count = ibv_poll_cq(cq, 1, &wc)))
		if (time(NULL) - start > PATIENCE)
			die("waiting for a completion");
	CHECK(count == 1);
	return wc;
}

/* Posts a request of the server's own queue pair, which must succeed. */
static void here(struct ibv_qp *qp, struct ibv_send_wr *request)
{
	struct ibv_send_wr *bad;
	request->send_flags = IBV_SEND_SIGNALED;
	CHECK(!ibv_post_send(qp, request, &bad));
	CHECK(completion().status == IBV_WC_SUCCESS);
}

/* Binds a window, and invalidates it if the case says so. */
static uint32_t bind_window(struct ibv_qp *qp, struct ibv_mw *mw, enum memory memory)
{
	unsigned int access = IBV_ACCESS_REMOTE_WRITE;
	if (memory != WRITE_ONLY && qp->qp_type == IBV_QPT_RC)
		access |= IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
	uint32_t rkey = ibv_inc_rkey(mw->rkey);
	struct ibv_send_wr bind = {.opcode = IBV_WR_BIND_MW, .bind_mw = {.mw = mw, .rkey = rkey,
			.bind_info = {.mr = region, .addr = (uintptr_t)buffer + START, .length = LENGTH, .mw_access_flags = access}}};
	here(qp, &bind);
	if (memory == UNBOUND) {
		struct ibv_send_wr invalidate = {.opcode = IBV_WR_LOCAL_INV, .invalidate_rkey = rkey};
		here(qp, &invalidate);
	}
	return rkey;
}

/* Binds a window of type 1, and then to nothing if the case says so. */
static uint32_t bind_window_1(struct ibv_qp *qp, struct ibv_mw *mw, enum memory memory)
{
	struct ibv_mw_bind bind = {.send_flags = IBV_SEND_SIGNALED, .bind_info = {.mr = region, .addr = (uintptr_t)buffer + START, .length = LENGTH,
				   .mw_access_flags = IBV_ACCESS_REMOTE_WRITE}};
	if (memory != WRITE_ONLY_1)
		bind.bind_info.mw_access_flags |= IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
	CHECK(!ibv_bind_mw(qp, mw, &bind));
	CHECK(completion().status == IBV_WC_SUCCESS);
	uint32_t rkey = mw->rkey;
	if (memory == UNBOUND_1) {
		bind.bind_info.length = 0;
		CHECK(!ibv_bind_mw(qp, mw, &bind));
		CHECK(completion().status == IBV_WC_SUCCESS);
	}
	return rkey;
}

static bool is_wrong(const char *what, uint64_t found, uint64_t expected)
{
	if (found != expected)
		printf("%s: %s is %#lx instead of %#lx\n", doing, what, found, expected);
	return found != expected;
}

static unsigned char at(size_t offset) { return (unsigned char)(offset * 7 + 1); }

static uint64_t word(const unsigned char *from)
{
	uint64_t value;
	memcpy(&value, from, 8);
	return value;
}

/* Begins the client's operation and checks how it ends. The local bytes are those at the beginning of the buffer. */
static bool operate(struct ibv_qp *qp, struct ibv_ah *ah, const struct test *test, const struct hello *peer)
{
	struct ibv_sge sge = {(uintptr_t)buffer, test->length, region->lkey};
	struct ibv_send_wr request = {.opcode = test->opcode, .send_flags = IBV_SEND_SIGNALED, .sg_list = &sge, .num_sge = test->length > 0}, *bad;
	uint64_t target = peer->addr + START + (int32_t)test->offset;
	bool atomic = test->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || test->opcode == IBV_WR_ATOMIC_CMP_AND_SWP;
	if (ah) {
		request.wr.ud.ah = ah;
		request.wr.ud.remote_qpn = peer->qpn;
		request.wr.ud.remote_qkey = QKEY;
	} else if (atomic) {
		request.wr.atomic.remote_addr = target;
		request.wr.atomic.rkey = peer->rkey;
		request.wr.atomic.compare_add = test->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD ? 5 : 0;
		request.wr.atomic.swap = 9;
	} else {
		request.wr.rdma.remote_addr = target;
		request.wr.rdma.rkey = peer->rkey;
	}
	if (test->opcode == IBV_WR_SEND_WITH_INV)
		request.invalidate_rkey = peer->rkey;
	else
		request.imm_data = htonl(IMMEDIATE);
	for (size_t i = 0; i < BYTES; i++)
		buffer[i] = at(i);
	CHECK(!ibv_post_send(qp, &request, &bad));
	bool wrong = is_wrong("the client's status", completion().status, test->client);
	if (test->client != IBV_WC_SUCCESS)
		return wrong;
	/* The server's memory is zero. */
	for (size_t i = 0; test->opcode == IBV_WR_RDMA_READ && i < test->length; i++)
		wrong |= is_wrong("a byte that was read", buffer[i], 0);
	if (atomic)
		wrong |= is_wrong("the old value", word(buffer), 0);
	if (test->opcode != IBV_WR_SEND_WITH_INV)
		return wrong;
	/* The window is unbound now. */
	request.opcode = IBV_WR_RDMA_WRITE;
	CHECK(!ibv_post_send(qp, &request, &bad));
	return is_wrong("the status after the invalidation", completion().status, IBV_WC_REM_ACCESS_ERR) || wrong;
}

/* Checks what has arrived at the server. */
static bool check_arrival(const struct test *test, const struct hello *mine, const struct hello *theirs)
{
	bool wrong = false;
	uint32_t before = test->transport == UD ? GRH : 0;
	if (test->receive != NO_RECEIVE) {
		struct ibv_wc wc = completion();
		wrong |= is_wrong("the server's status", wc.status, test->server);
		bool immediate = test->opcode == IBV_WR_RDMA_WRITE_WITH_IMM || test->opcode == IBV_WR_SEND_WITH_IMM;
		if (!wrong && wc.status == IBV_WC_SUCCESS)
			wrong |= is_wrong("the flag of immediate data", wc.wc_flags & IBV_WC_WITH_IMM, immediate ? IBV_WC_WITH_IMM : 0);
		if (!wrong && immediate)
			wrong |= is_wrong("the immediate data", ntohl(wc.imm_data), IMMEDIATE);
		if (!wrong && test->transport == UD)
			wrong |= is_wrong("the sender", wc.src_qp, theirs->qpn) || is_wrong("the flag of a GRH", wc.wc_flags & IBV_WC_GRH, IBV_WC_GRH);
		/* Soft-RoCE of Linux 6.1 does not set the flag. */
		if (!wrong && test->opcode == IBV_WR_SEND_WITH_INV && !server_is_soft_roce)
			wrong |= is_wrong("the flag", wc.wc_flags & IBV_WC_WITH_INV, IBV_WC_WITH_INV) ||
				 is_wrong("the invalidated key", wc.invalidated_rkey, mine->rkey);
		if (!wrong && wc.status == IBV_WC_SUCCESS)
			wrong |= is_wrong("the length", wc.byte_len, before + test->length);
	}
	bool writes = test->opcode == IBV_WR_RDMA_WRITE || test->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
	size_t begin = writes ? START + (int32_t)test->offset : before, end = begin + test->length;
	bool changes = test->client == IBV_WC_SUCCESS && test->opcode != IBV_WR_RDMA_READ;
	if (test->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || test->opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
		unsigned char *target = buffer + START + (int32_t)test->offset;
		if (changes)
			wrong |= is_wrong("the new value", word(target), test->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD ? 5 : 9);
		return wrong;
	}
	for (size_t i = before; i < BYTES; i++)
		wrong |= is_wrong("a byte", buffer[i], changes && i >= begin && i < end ? at(i - begin) : 0);
	return wrong;
}

static bool run(const struct test *test)
{
	doing = test->name;
	memset(buffer, 0, BYTES);
	struct ibv_qp *qp = create(test->transport);
	struct ibv_mw *mw = NULL;
	struct ibv_ah *ah = NULL;
	struct hello mine = {.qpn = qp->qp_num, .gid = gid, .addr = (uintptr_t)buffer}, theirs;
	exchange(&mine, &theirs, sizeof(mine));
	join(qp, test->transport, &theirs);
	if (is_client && test->transport == UD) {
		struct ibv_ah_attr to = path(&theirs);
		CHECK(ah = ibv_create_ah(pd, &to));
	}
	if (!is_client) {
		if (test->memory == REGION)
			mine.rkey = region->rkey;
		else if (test->memory == NO_KEY)
			mine.rkey = region->rkey ^ 0x5a5a5a00;
		else if (test->memory >= WINDOW_1) {
			CHECK(mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1));
			mine.rkey = bind_window_1(qp, mw, test->memory);
		} else {
			CHECK(mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2));
			mine.rkey = bind_window(qp, mw, test->memory);
		}
		struct ibv_sge sge = {(uintptr_t)buffer, test->receive == SHORT_RECEIVE ? 16 : BYTES, region->lkey};
		struct ibv_recv_wr receive = {.sg_list = &sge, .num_sge = 1}, *bad;
		if (test->receive != NO_RECEIVE)
			CHECK(!ibv_post_recv(qp, &receive, &bad));
	}
	/* The server is ready. */
	exchange(&mine, &theirs, sizeof(mine));
	bool wrong = is_client ? operate(qp, ah, test, &theirs) : false;
	/* The client has its completion. */
	barrier();
	if (!is_client)
		wrong = check_arrival(test, &mine, &theirs);
	barrier();
	/* Soft-RoCE of Linux 6.1 waits for the queue pair's windows for 50 s. */
	if (mw)
		CHECK(!ibv_dealloc_mw(mw));
	CHECK(!ibv_destroy_qp(qp));
	if (ah)
		CHECK(!ibv_destroy_ah(ah));
	return wrong;
}

int main(int argc, char **argv)
{
	const char *device = NULL;
	int option;
	while ((option = getopt(argc, argv, "d:g:")) != -1) {
		if (option == 'd')
			device = optarg;
		else if (option == 'g')
			gid_index = atoi(optarg);
		else
			return 2;
	}
	is_client = optind < argc;
	open_device(device);
	open_control(is_client ? argv[optind] : NULL);
	introduce();
	int wrong = 0;
	for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++) {
		bool differs = (tests[i].soft_roce == TARGET_DIFFERS && server_is_soft_roce) ||
			       (tests[i].soft_roce == INITIATOR_REFUSES && client_is_soft_roce);
		if (!differs)
			wrong += run(&tests[i]);
	}
	return wrong > 0;
}
