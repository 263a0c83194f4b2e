/*
 * Two processes and libfabric: one registers memory and sends its key, the other writes into the memory and learns why
 * a write past the end of the region is refused. Nothing here depends on rkey: any provider with remote memory access
 * works.
 *
 *     cc -o fi-write write.c -lfabric
 *     rkey run -- ./fi-write
 */
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define LEN 4096

/* The data that the owner sends to the peer, over a socket between them. */
struct grant {
    char name[128];  /* where its endpoint is */
    size_t name_len;
    uint64_t key;
    uint64_t addr;
};

struct side {
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *av;
    struct fid_cq *cq;
    struct fid_ep *ep;
};

static void must(ssize_t status, const char *what)
{
    if (status < 0) {
        fprintf(stderr, "%s: %s\n", what, fi_strerror((int)-status));
        exit(1);
    }
}

/* An endpoint for reliable datagrams, with an address vector and a completion queue. */
static struct side open_side(void)
{
    struct side it = {0};
    struct fi_info *hints = fi_allocinfo();
    struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_CONTEXT, .wait_obj = FI_WAIT_UNSPEC};
    struct fi_av_attr av_attr = {.type = FI_AV_TABLE};

    hints->caps = FI_RMA;
    hints->mode = FI_CONTEXT;
    /* A write is complete when it is in the owner's memory, and not before. */
    hints->tx_attr->op_flags = FI_DELIVERY_COMPLETE;
    hints->ep_attr->type = FI_EP_RDM;
    /* The mode bits that this program supports if a provider requires them: see fi_mr(3). */
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    must(fi_getinfo(FI_VERSION(1, 15), NULL, NULL, 0, hints, &it.info), "no provider (start it with: rkey run --)");
    fi_freeinfo(hints);
    must(fi_fabric(it.info->fabric_attr, &it.fabric, NULL), "fi_fabric");
    must(fi_domain(it.fabric, it.info, &it.domain, NULL), "fi_domain");
    must(fi_cq_open(it.domain, &cq_attr, &it.cq, NULL), "fi_cq_open");
    must(fi_av_open(it.domain, &av_attr, &it.av, NULL), "fi_av_open");
    must(fi_endpoint(it.domain, it.info, &it.ep, NULL), "fi_endpoint");
    must(fi_ep_bind(it.ep, &it.cq->fid, FI_TRANSMIT | FI_RECV), "binding the completion queue");
    must(fi_ep_bind(it.ep, &it.av->fid, 0), "binding the address vector");
    must(fi_enable(it.ep), "fi_enable");
    return it;
}

static struct fid_mr *register_memory(struct side *it, void *at, uint64_t access, uint64_t key)
{
    struct fid_mr *mr;
    must(fi_mr_reg(it->domain, at, LEN, access, 0, key, 0, &mr, NULL), "fi_mr_reg");
    return mr;
}

/* The owner registers memory, informs its peer, waits until the peer is done, and checks the memory. */
static int own(int socket)
{
    static char memory[LEN];
    struct side it = open_side();
    struct fid_mr *mr = register_memory(&it, memory, FI_REMOTE_WRITE, 42);
    struct grant grant = {.name_len = sizeof grant.name, .key = fi_mr_key(mr)};
    char done;
    ssize_t got;

    must(fi_getname(&it.ep->fid, grant.name, &grant.name_len), "fi_getname");
    /* With FI_MR_VIRT_ADDR peers count from the address of the memory, otherwise from 0. */
    grant.addr = it.info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)memory : 0;
    must(write(socket, &grant, sizeof grant), "write");
    /* Some providers need the owner to poll its queue while peers write; for others it makes no difference. */
    while ((got = recv(socket, &done, 1, MSG_DONTWAIT)) < 0 && errno == EAGAIN)
        fi_cq_read(it.cq, NULL, 0);
    must(got == 1 ? 0 : -FI_ESHUTDOWN, "waiting for the peer");
    printf("the owner has: %s\n", memory);

    /* After this, no peer can touch the memory. */
    must(fi_close(&mr->fid), "closing the region");
    must(fi_close(&it.ep->fid), "closing the endpoint");
    return strcmp(memory, "written by the peer") != 0;
}

/* Writes and waits for the completion; returns 0 or the error, and prints the provider's explanation. */
static int put(struct side *it, const void *from, void *desc, size_t len, fi_addr_t to, uint64_t addr, uint64_t key)
{
    struct fi_context context;
    struct fi_cq_entry entry;
    struct fi_cq_err_entry error = {0};
    char words[512];
    ssize_t status;

    /* -FI_EAGAIN: retry, and poll the queue meanwhile, because that makes progress. */
    while ((status = fi_write(it->ep, from, len, desc, to, addr, key, &context)) == -FI_EAGAIN)
        fi_cq_read(it->cq, NULL, 0);
    must(status, "fi_write");
    status = fi_cq_sread(it->cq, &entry, 1, NULL, 10000);
    if (status != -FI_EAVAIL) {
        must(status, "waiting for the write");
        return 0;
    }
    must(fi_cq_readerr(it->cq, &error, 0), "fi_cq_readerr");
    printf("refused (%s): %s\n", fi_strerror(error.err),
           fi_cq_strerror(it->cq, error.prov_errno, error.err_data, words, sizeof words));
    return error.err;
}

static int use(int socket)
{
    static char message[LEN] = "written by the peer";
    struct side it = open_side();
    struct fid_mr *mr = register_memory(&it, message, FI_WRITE, 43);
    struct grant grant;
    fi_addr_t owner;
    int failed;

    must(read(socket, &grant, sizeof grant) == sizeof grant ? 0 : -FI_ESHUTDOWN, "waiting for the owner");
    printf("over the provider %s\n", it.info->fabric_attr->prov_name);
    if (fi_av_insert(it.av, grant.name, 1, &owner, 0, NULL) != 1)
        return 1;
    failed = put(&it, message, fi_mr_desc(mr), 64, owner, grant.addr, grant.key) != 0;
    /* One byte past the end. */
    failed |= put(&it, message, fi_mr_desc(mr), 2, owner, grant.addr + LEN - 1, grant.key) == 0;
    must(write(socket, "", 1), "write");
    must(fi_close(&mr->fid), "closing the region");
    must(fi_close(&it.ep->fid), "closing the endpoint");
    return failed;
}

int main(void)
{
    int sockets[2], status = 1, failed;

    setvbuf(stdout, NULL, _IOLBF, 0);
    must(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets), "socketpair");
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
