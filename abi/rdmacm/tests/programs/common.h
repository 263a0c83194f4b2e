/* Shared by the programs that test librdmacm. They print unexpected results, or "done" if there are none. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <arpa/inet.h>
#include <netdb.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

static int bad;

__attribute__((unused)) static void unexpected(int line, const char *what, long result, int error)
{
	printf("line %d: %s: %ld, errno %d (%s)\n", line, what, result, error, strerror(error));
	bad = 1;
}

/* The call must succeed. */
#define GOOD(call) do { errno = 0; long r_ = (long)(call); if (r_ != 0) unexpected(__LINE__, #call, r_, errno); } while (0)
/* The call must return -1 and set this error number. */
#define FAILS(error, call) do { errno = 0; long r_ = (long)(call); if (r_ != -1 || errno != (error)) unexpected(__LINE__, #call, r_, errno); } while (0)
#define TRUE(condition) do { if (!(condition)) unexpected(__LINE__, #condition, 0, 0); } while (0)
#define MUST(condition) do { if (!(condition)) { unexpected(__LINE__, #condition, 0, errno); exit(1); } } while (0)

__attribute__((unused)) static struct sockaddr_in loopback(uint16_t port_be)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = port_be };
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	return address;
}

#define ADDRESS(address) ((struct sockaddr *)&(address))

/* Fetches the next event of a channel, which must have this type and status. */
__attribute__((unused)) static struct rdma_cm_event *next_at(int line, struct rdma_event_channel *channel, int type, int status)
{
	struct rdma_cm_event *event = NULL;
	if (rdma_get_cm_event(channel, &event)) {
		unexpected(line, "rdma_get_cm_event", -1, errno);
		exit(1);
	}
	if ((int)event->event != type || event->status != status) {
		printf("line %d: %s with status %d instead of %s with %d\n", line, rdma_event_str(event->event), event->status,
		       rdma_event_str(type), status);
		exit(1);
	}
	return event;
}
#define NEXT(channel, type, status) next_at(__LINE__, channel, RDMA_CM_EVENT_##type, status)
#define ACK_NEXT(channel, type, status) GOOD(rdma_ack_cm_event(NEXT(channel, type, status)))

__attribute__((unused)) static struct rdma_event_channel *new_channel(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	MUST(channel);
	return channel;
}

__attribute__((unused)) static struct rdma_cm_id *new_id(struct rdma_event_channel *channel, enum rdma_port_space space)
{
	struct rdma_cm_id *id = NULL;
	GOOD(rdma_create_id(channel, &id, &bad, space));
	MUST(id);
	TRUE(id->context == &bad && id->channel == channel && id->ps == space && !id->verbs && !id->qp);
	return id;
}

__attribute__((unused)) static struct rdma_cm_id *new_listener(struct rdma_event_channel *channel, enum rdma_port_space space)
{
	struct rdma_cm_id *id = new_id(channel, space);
	struct sockaddr_in any = { .sin_family = AF_INET };
	GOOD(rdma_bind_addr(id, ADDRESS(any)));
	TRUE(rdma_get_src_port(id) != 0 && !id->verbs);
	GOOD(rdma_listen(id, 8));
	return id;
}

__attribute__((unused)) static void add_qp(struct rdma_cm_id *id, enum ibv_qp_type type)
{
	struct ibv_qp_init_attr attr = { .qp_type = type, .cap = { 4, 4, 1, 1, 0 }, .sq_sig_all = 1 };
	GOOD(rdma_create_qp(id, NULL, &attr));
	TRUE(id->qp && id->send_cq && id->recv_cq && id->pd && attr.send_cq == id->send_cq && attr.cap.max_send_wr >= 4);
	TRUE(id->send_cq->cq_context == id);
	FAILS(EINVAL, rdma_create_qp(id, NULL, &attr));
}

/* Creates an identifier that is ready to connect to a port. */
__attribute__((unused)) static struct rdma_cm_id *new_client(struct rdma_event_channel *channel, enum rdma_port_space space, uint16_t port_be)
{
	struct rdma_cm_id *id = new_id(channel, space);
	struct sockaddr_in to = loopback(port_be);
	GOOD(rdma_resolve_addr(id, NULL, ADDRESS(to), 2000));
	ACK_NEXT(channel, ADDR_RESOLVED, 0);
	TRUE(id->verbs && id->pd && id->port_num == 1 && rdma_get_dst_port(id) == port_be && rdma_get_src_port(id) != 0);
	TRUE(((struct sockaddr_in *)rdma_get_local_addr(id))->sin_addr.s_addr == to.sin_addr.s_addr);
	GOOD(rdma_resolve_route(id, 2000));
	ACK_NEXT(channel, ROUTE_RESOLVED, 0);
	TRUE(id->route.num_paths == 1 && id->route.path_rec && id->route.path_rec->hop_limit == 64);
	return id;
}

__attribute__((unused)) static int state_of(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	GOOD(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init));
	return attr.qp_state;
}

/* Waits until one of our children has ended, and takes over its failure. */
__attribute__((unused)) static void await_one(void)
{
	int status;
	MUST(wait(&status) > 0);
	TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

__attribute__((unused)) static int finish(void)
{
	printf(bad ? "failed\n" : "done\n");
	return bad;
}

__attribute__((unused)) static void begin(void)
{
	alarm(250);
	setvbuf(stdout, NULL, _IOLBF, 0);
}
