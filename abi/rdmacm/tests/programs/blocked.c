/* One side of a connection of synchronous identifiers, or a member of a multicast group, is killed or stopped. Calls of the other side
 * return: at once if the victim was killed, and otherwise when it goes on. */
#include "common.h"
#include "victims.h"

/* Where a connection is when the victim is hit. */
enum state { REQUESTED, FETCHED, ESTABLISHED, STATES };
static const char *const names[] = { "requested", "fetched", "established" };
enum side { CLIENT, SERVER, SIDES };
static const char *const side_names[] = { "the client", "the server" };
/* What a member of a group has done when it is hit. */
enum part { JOINING, JOINED, SENT, PARTS };
static const char *const part_names[] = { "a member that joins", "a member", "a sender" };

enum { WAIT_MS = 20000, AT_ONCE = 8 };

static struct rdma_cm_id *new_endpoint(int flags, uint16_t port)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP, .ai_flags = flags }, *info;
	struct ibv_qp_init_attr attr = { .cap = { 4, 4, 1, 1, 0 }, .sq_sig_all = 1 };
	struct rdma_cm_id *id;
	char service[8];
	snprintf(service, sizeof service, "%d", ntohs(port));
	GOOD(rdma_getaddrinfo("127.0.0.1", flags ? NULL : service, &hints, &info));
	MUST(rdma_create_ep(&id, info, NULL, &attr) == 0);
	rdma_freeaddrinfo(info);
	return id;
}

/* A listener, or a side that is ready to connect. */
static struct rdma_cm_id *begin_side(enum side side)
{
	struct rdma_cm_id *id;
	uint16_t port;
	if (side == CLIENT) {
		MUST(read(ports[0], &port, sizeof port) == sizeof port);
		return new_endpoint(0, port);
	}
	id = new_endpoint(RAI_PASSIVE, 0);
	port = rdma_get_src_port(id);
	GOOD(rdma_listen(id, 8));
	MUST(write(ports[1], &port, sizeof port) == sizeof port);
	return id;
}

static void be_client(enum state state)
{
	struct rdma_cm_id *id = begin_side(CLIENT);
	if (state < ESTABLISHED)
		tell(reports[1]);
	/* Hit while it waits, unless both sides are to know of the connection. */
	GOOD(rdma_connect(id, NULL));
	if (state == ESTABLISHED)
		tell(reports[1]);
	await_byte(orders[0]);
	GOOD(rdma_disconnect(id));
	exit(bad);
}

static void be_server(enum state state)
{
	struct rdma_cm_id *listener = begin_side(SERVER), *id = NULL;
	if (state >= FETCHED)
		GOOD(rdma_get_request(listener, &id));
	if (state == ESTABLISHED)
		GOOD(rdma_accept(id, NULL));
	tell(reports[1]);
	await_byte(orders[0]);
	if (state < FETCHED)
		GOOD(rdma_get_request(listener, &id));
	if (state < ESTABLISHED)
		GOOD(rdma_accept(id, NULL));
	GOOD(rdma_disconnect(id));
	exit(bad);
}

/* A call that waits for the peer, in a thread. */
struct call {
	int (*call)(struct rdma_cm_id *id, struct rdma_conn_param *param);
	struct rdma_cm_id *id;
	int result, error;
	pthread_t thread;
};

static int disconnect(struct rdma_cm_id *id, struct rdma_conn_param *param)
{
	(void)param;
	return rdma_disconnect(id);
}

static void *make(void *argument)
{
	struct call *call = argument;
	call->result = call->call(call->id, NULL);
	call->error = call->result ? errno : 0;
	return NULL;
}

static void start(struct call *call)
{
	GOOD(pthread_create(&call->thread, NULL, make, call));
}

/* The call of a survivor fails if the victim was killed. Otherwise it waits for the victim. */
static void finish_call(struct call *call, pid_t victim)
{
	if (stops)
		usleep(100000);
	release(victim);
	GOOD(pthread_join(call->thread, NULL));
	if (call->call == disconnect)
		/* It needs no answer from a peer that has exited. */
		TRUE(call->result == 0);
	else if (stops)
		TRUE(call->result == 0);
	else if (call->call == rdma_connect)
		TRUE(call->result == -1 && call->error == ECONNREFUSED);
	else
		/* The library may not have noticed yet that the process has exited. */
		TRUE(call->result == -1);
}

static void outlive_server(enum state state, pid_t victim)
{
	struct call connects = { .call = rdma_connect, .id = begin_side(CLIENT) }, ends = { .call = disconnect, .id = connects.id };
	start(&connects);
	await_byte(reports[0]);
	if (state < ESTABLISHED) {
		hit(victim);
		finish_call(&connects, victim);
	} else {
		GOOD(pthread_join(connects.thread, NULL));
		TRUE(connects.result == 0);
		hit(victim);
	}
	if (stops || state == ESTABLISHED) {
		start(&ends);
		if (state == ESTABLISHED)
			finish_call(&ends, victim);
		else
			GOOD(pthread_join(ends.thread, NULL));
	}
	await_end(victim);
	rdma_destroy_ep(connects.id);
}

static void outlive_client(enum state state, pid_t victim)
{
	struct rdma_cm_id *listener = begin_side(SERVER), *id = NULL;
	struct pollfd entry = { .fd = listener->channel->fd, .events = POLLIN };
	struct call accepts = { .call = rdma_accept }, ends = { .call = disconnect };
	if (state >= FETCHED)
		GOOD(rdma_get_request(listener, &id));
	if (state == ESTABLISHED)
		GOOD(rdma_accept(id, NULL));
	await_byte(reports[0]);
	if (state == REQUESTED)
		MUST(poll(&entry, 1, WAIT_MS) == 1);
	hit(victim);
	/* The request of a process that has exited may be gone. */
	if (state == REQUESTED && (stops || poll(&entry, 1, 500) == 1))
		GOOD(rdma_get_request(listener, &id));
	accepts.id = ends.id = id;
	if (id && state < ESTABLISHED) {
		start(&accepts);
		finish_call(&accepts, victim);
	}
	if (id && (stops || state == ESTABLISHED)) {
		start(&ends);
		if (state == ESTABLISHED)
			finish_call(&ends, victim);
		else
			GOOD(pthread_join(ends.thread, NULL));
	}
	await_end(victim);
	if (id)
		rdma_destroy_ep(id);
	rdma_destroy_ep(listener);
}

/* A member of the group of this row. */
struct member {
	struct rdma_event_channel *channel;
	struct rdma_cm_id *id;
	struct rdma_ud_param group;
	struct ibv_mr *mr;
	char room[64];
};

static struct sockaddr_in group;

static void join(struct member *member)
{
	struct sockaddr_in to = loopback(htons(7));
	member->channel = new_channel();
	member->id = new_id(member->channel, RDMA_PS_UDP);
	GOOD(rdma_resolve_addr(member->id, NULL, ADDRESS(to), 1));
	ACK_NEXT(member->channel, ADDR_RESOLVED, 0);
	add_qp(member->id, IBV_QPT_UD);
	MUST((member->mr = rdma_reg_msgs(member->id, member->room, sizeof member->room)));
	GOOD(rdma_post_recv(member->id, NULL, member->room, sizeof member->room, member->mr));
	GOOD(rdma_join_multicast(member->id, ADDRESS(group), NULL));
}

static void joined(struct member *member)
{
	struct rdma_cm_event *event = NEXT(member->channel, MULTICAST_JOIN, 0);
	member->group = event->param.ud;
	GOOD(rdma_ack_cm_event(event));
}

static void leave(struct member *member)
{
	GOOD(rdma_leave_multicast(member->id, ADDRESS(group)));
	GOOD(rdma_dereg_mr(member->mr));
	rdma_destroy_qp(member->id);
	GOOD(rdma_destroy_id(member->id));
	rdma_destroy_event_channel(member->channel);
}

/* Sends to the group until `to` receives, if it is not null. */
static void send_to_group(struct member *from, struct member *to)
{
	static char data[8] = "to all";
	struct ibv_mr *mr = rdma_reg_msgs(from->id, data, sizeof data);
	struct ibv_ah *ah = ibv_create_ah(from->id->pd, &from->group.ah_attr);
	struct ibv_wc wc;
	int tries = 0, got = 0;
	MUST(mr && ah);
	do {
		int waits = 50;
		GOOD(rdma_post_ud_send(from->id, NULL, data, 8, mr, IBV_SEND_SIGNALED, ah, from->group.qp_num));
		TRUE(rdma_get_send_comp(from->id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
		while (to && (got = ibv_poll_cq(to->id->recv_cq, 1, &wc)) == 0 && waits--)
			usleep(1000);
	} while (to && !got && ++tries < 1000);
	TRUE(!to || (got == 1 && wc.status == IBV_WC_SUCCESS && !strcmp(to->room + 40, "to all")));
	GOOD(ibv_destroy_ah(ah));
	GOOD(rdma_dereg_mr(mr));
}

static void be_member(enum part part)
{
	struct member own;
	struct pollfd entry = { .events = POLLIN };
	join(&own);
	entry.fd = own.channel->fd;
	if (part == JOINING)
		MUST(poll(&entry, 1, WAIT_MS) == 1);
	else
		joined(&own);
	if (part == SENT)
		send_to_group(&own, NULL);
	tell(reports[1]);
	await_byte(orders[0]);
	if (part == JOINING)
		joined(&own);
	leave(&own);
	exit(bad);
}

static void outlive_member(pid_t victim)
{
	struct member sender, member, newcomer;
	join(&sender);
	joined(&sender);
	await_byte(reports[0]);
	hit(victim);
	/* Sending, joining and leaving do not wait for the victim. */
	join(&member);
	joined(&member);
	send_to_group(&sender, &member);
	leave(&member);
	join(&newcomer);
	joined(&newcomer);
	send_to_group(&sender, &newcomer);
	leave(&newcomer);
	leave(&sender);
	release(victim);
	await_end(victim);
}

enum { CONNECTIONS = STATES * SIDES * 2, ROWS = CONNECTIONS + PARTS * 2 };

/* Runs in a process of its own, which creates the victim before it uses the library: a process that uses the library cannot fork. */
static void run(int row)
{
	enum side side = row / 2 % SIDES;
	enum state state = row / (2 * SIDES);
	enum part part = (row - CONNECTIONS) / 2;
	pid_t victim;
	alarm(250);
	stops = row % 2;
	GOOD(pipe(ports));
	GOOD(pipe(reports));
	GOOD(pipe(orders));
	/* A group that no other row and no other run of this program has. */
	group.sin_family = AF_INET;
	group.sin_addr.s_addr = htonl(0xef000000 | ((unsigned)getpid() & 0xffffff));
	MUST((victim = fork()) >= 0);
	if (victim == 0)
		alarm(250);
	if (row < CONNECTIONS && victim == 0)
		(side == SERVER ? be_server : be_client)(state);
	if (victim == 0)
		be_member(part);
	if (row < CONNECTIONS)
		(side == SERVER ? outlive_server : outlive_client)(state, victim);
	else
		outlive_member(victim);
	if (bad)
		printf("^ %s, %s is %s\n", row < CONNECTIONS ? names[state] : "multicast", row < CONNECTIONS ? side_names[side] : part_names[part],
		       stops ? "stopped" : "killed");
	exit(bad);
}

int main(void)
{
	int running = 0, row;
	begin();
	for (row = 0; row < ROWS; row++) {
		pid_t child;
		if (running == AT_ONCE)
			await_one();
		else
			running++;
		MUST((child = fork()) >= 0);
		if (child == 0)
			run(row);
	}
	while (running--)
		await_one();
	return finish();
}
