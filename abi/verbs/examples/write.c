/*
 * Two processes and verbs: one registers memory and sends its key, the other writes into the memory and is refused when
 * it writes past the end of the region. Nothing here depends on rkey: it also runs on a NIC.
 *
 *     cc -o ibv-write write.c -libverbs
 *     rkey run -- ./ibv-write
 */
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define LEN 4096
#define GID_INDEX 0

/* The data that the two exchange over a socket between them. */
struct hello {
    union ibv_gid gid;
    uint16_t lid;
    uint32_t qpn;
    uint64_t addr; /* of the memory that the other may write */
    uint32_t rkey;
};

struct side {
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
};

static void must(int right, const char *what)
{
    if (!right) {
        perror(what);
        exit(1);
    }
}

/* A reliable connection, not connected yet, and memory with these rights. */
static struct side open_side(void *memory, int access)
{
    struct side it;
    int count = 0;
    struct ibv_device **devices = ibv_get_device_list(&count);
    struct ibv_context *context;
    struct ibv_qp_init_attr init = {
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = 16, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
    };

    must(devices && count > 0, "no device (start it with: rkey run --)");
    context = ibv_open_device(devices[0]);
    must(context != NULL, "ibv_open_device");
    ibv_free_device_list(devices);
    it.pd = ibv_alloc_pd(context);
    must(it.pd != NULL, "ibv_alloc_pd");
    it.mr = ibv_reg_mr(it.pd, memory, LEN, access);
    must(it.mr != NULL, "ibv_reg_mr");
    it.cq = ibv_create_cq(context, 16, NULL, NULL, 0);
    must(it.cq != NULL, "ibv_create_cq");
    init.send_cq = init.recv_cq = it.cq;
    it.qp = ibv_create_qp(it.pd, &init);
    must(it.qp != NULL, "ibv_create_qp");
    return it;
}

/* Exchanges identities with the peer, and moves the queue pair to RTS, in which it can send. */
static struct hello meet(struct side *it, int socket)
{
    struct ibv_context *context = it->pd->context;
    struct hello ours = {.qpn = it->qp->qp_num, .addr = (uintptr_t)it->mr->addr, .rkey = it->mr->rkey}, theirs;
    struct ibv_port_attr port;
    struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
    struct ibv_qp_attr rtr = {.qp_state = IBV_QPS_RTR, .max_dest_rd_atomic = 1, .min_rnr_timer = 12};
    struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS, .timeout = 18, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};

    must(ibv_query_port(context, 1, &port) == 0, "ibv_query_port");
    must(ibv_query_gid(context, 1, GID_INDEX, &ours.gid) == 0, "ibv_query_gid");
    ours.lid = port.lid;
    must(ibv_modify_qp(it->qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0, "to INIT");
    must(write(socket, &ours, sizeof ours) == sizeof ours, "write");
    must(read(socket, &theirs, sizeof theirs) == sizeof theirs, "read");

    rtr.path_mtu = port.active_mtu;
    rtr.dest_qp_num = theirs.qpn;
    rtr.ah_attr.dlid = theirs.lid;
    rtr.ah_attr.port_num = 1;
    rtr.ah_attr.is_global = 1;
    rtr.ah_attr.grh.dgid = theirs.gid;
    rtr.ah_attr.grh.sgid_index = GID_INDEX;
    rtr.ah_attr.grh.hop_limit = 1;
    must(ibv_modify_qp(it->qp, &rtr,
                       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                           IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0, "to RTR");
    must(ibv_modify_qp(it->qp, &rts,
                       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                           IBV_QP_MAX_QP_RD_ATOMIC) == 0, "to RTS");
    /* Neither side sends before the other can receive. */
    must(write(socket, "", 1) == 1, "write");
    must(read(socket, &(char){0}, 1) == 1, "waiting for the peer");
    return theirs;
}

/* The owner. Its program does nothing while the peer writes. */
static int own(int socket)
{
    static char memory[LEN];
    struct side it = open_side(memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);

    meet(&it, socket);
    must(read(socket, &(char){0}, 1) == 1, "read");
    printf("the owner has: %s\n", memory);
    /* After this, no peer can touch the memory. */
    must(ibv_dereg_mr(it.mr) == 0, "ibv_dereg_mr");
    return strcmp(memory, "written by the peer") != 0;
}

static enum ibv_wc_status put(struct side *it, uint32_t len, uint64_t addr, uint32_t rkey)
{
    struct ibv_sge from = {.addr = (uintptr_t)it->mr->addr, .length = len, .lkey = it->mr->lkey};
    struct ibv_send_wr request = {
        .opcode = IBV_WR_RDMA_WRITE,
        .send_flags = IBV_SEND_SIGNALED,
        .sg_list = &from,
        .num_sge = 1,
        .wr.rdma = {.remote_addr = addr, .rkey = rkey},
    }, *bad;
    struct ibv_wc done;
    int count;

    must(ibv_post_send(it->qp, &request, &bad) == 0, "ibv_post_send");
    while ((count = ibv_poll_cq(it->cq, 1, &done)) == 0)
        ;
    must(count == 1, "ibv_poll_cq");
    return done.status;
}

static int use(int socket)
{
    static char message[LEN] = "written by the peer";
    struct side it = open_side(message, 0);
    struct hello owner = meet(&it, socket);
    enum ibv_wc_status good = put(&it, 64, owner.addr, owner.rkey);
    /* One byte past the end: the refusal ends the connection. */
    enum ibv_wc_status bad = put(&it, 2, owner.addr + LEN - 1, owner.rkey);

    printf("the first write: %s, the second: %s\n", ibv_wc_status_str(good), ibv_wc_status_str(bad));
    must(write(socket, "", 1) == 1, "write");
    return good != IBV_WC_SUCCESS || bad != IBV_WC_REM_ACCESS_ERR;
}

int main(void)
{
    int sockets[2], status = 1, failed;

    setvbuf(stdout, NULL, _IOLBF, 0);
    must(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets) == 0, "socketpair");
    if (fork() == 0) {
        close(sockets[0]);
        return use(sockets[1]);
    }
    /* Each process keeps only its own end, so that it notices when the other one exits. */
    close(sockets[1]);
    failed = own(sockets[0]);
    close(sockets[0]);
    wait(&status);
    return failed || status;
}
