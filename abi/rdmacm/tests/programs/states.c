/* One side of a connection is killed or stopped in each state. The other side learns of it, or goes on, and never waits for long. */
#include "common.h"

/* What has happened when the victim is hit. */
enum state { REQUESTED, FETCHED, ACCEPTED, ESTABLISHED, VICTIM_DISCONNECTS, SURVIVOR_DISCONNECTS, STATES };
static const char *const names[] = { "requested", "fetched", "accepted", "established", "the victim disconnects",
				     "the survivor disconnects" };

/* Queue pairs that the program creates, queue pairs of the identifiers, halves of extended reliable connections, and datagrams, which
 * have no connection. */
enum kind { EXTERNAL, CONNECTED, EXTENDED, DATAGRAM, KINDS };
static const char *const kind_names[] = { "external queue pairs", "queue pairs", "extended reliable connections", "datagrams" };

enum side { CLIENT, SERVER, SIDES };
static const char *const side_names[] = { "the client", "the server" };

enum { WAIT_MS = 20000, AT_ONCE = 8 };
#define NONE 99

/* What one process does. */
static const char *what;
static enum kind kind;
static enum state state;
static int stops;
/* The pipes are created before the victim is: the port of the server, and the victim's report. */
static int ports[2], reports[2];

/* What a side has. Only servers have a listener. A server has no other identifier before it fetches the request. */
static struct rdma_event_channel *channel;
static struct rdma_cm_id *listener, *id;
static struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };

static enum rdma_port_space space(void)
{
	return kind == DATAGRAM ? RDMA_PS_UDP : RDMA_PS_TCP;
}

/* Identifiers of extended reliable connections come from rdma_create_ep. They are bound, or have a path. */
static struct rdma_cm_id *new_half(enum side side, uint16_t port)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_IB, .ai_flags = side == SERVER ? RAI_PASSIVE : 0,
				       .ai_qp_type = side == SERVER ? IBV_QPT_XRC_RECV : IBV_QPT_XRC_SEND }, *info;
	struct rdma_cm_id *half;
	char service[8];
	snprintf(service, sizeof service, "%d", ntohs(port));
	GOOD(rdma_getaddrinfo("127.0.0.1", side == SERVER ? NULL : service, &hints, &info));
	MUST(rdma_create_ep(&half, info, NULL, NULL) == 0);
	rdma_freeaddrinfo(info);
	GOOD(rdma_migrate_id(half, channel));
	return half;
}

static void add_any_qp(enum side side)
{
	if (kind == EXTENDED) {
		struct ibv_qp_init_attr attr = { .qp_type = side == SERVER ? IBV_QPT_XRC_RECV : IBV_QPT_XRC_SEND, .cap = { 1, 1, 1, 1, 0 } };
		struct ibv_srq_init_attr_ex queue = { .attr = { .max_wr = 4, .max_sge = 1 }, .srq_type = IBV_SRQT_XRC,
						      .comp_mask = IBV_SRQ_INIT_ATTR_TYPE };
		GOOD(rdma_create_qp(id, NULL, &attr));
		if (side == SERVER)
			GOOD(rdma_create_srq_ex(id, &queue));
	} else if (kind != EXTERNAL) {
		add_qp(id, kind == DATAGRAM ? IBV_QPT_UD : IBV_QPT_RC);
	}
}

/* The type of the next event, or NONE if there is none in time. Stores the identifier if `to` is not null. */
static int next_type(int timeout, struct rdma_cm_id **to)
{
	struct pollfd entry = { .fd = channel->fd, .events = POLLIN };
	struct rdma_cm_event *event;
	int type;
	MUST(poll(&entry, 1, timeout) >= 0);
	if (!(entry.revents & POLLIN))
		return NONE;
	MUST(rdma_get_cm_event(channel, &event) == 0);
	type = event->event;
	if (to)
		*to = event->id;
	GOOD(rdma_ack_cm_event(event));
	return type;
}

/* An event is there, but is not fetched. */
static void await_event(void)
{
	struct pollfd entry = { .fd = channel->fd, .events = POLLIN };
	MUST(poll(&entry, 1, WAIT_MS) == 1);
}

static void expect(int line, int type, int wanted)
{
	if (type == wanted)
		return;
	printf("line %d: %s: %s instead of %s\n", line, what, type == NONE ? "no event" : rdma_event_str(type),
	       wanted == NONE ? "no event" : rdma_event_str(wanted));
	bad = 1;
}
#define EXPECT(type, wanted) expect(__LINE__, type, wanted)

/* The client learns that the server has accepted. */
static void accepted(void)
{
	if (kind == EXTERNAL) {
		EXPECT(next_type(WAIT_MS, NULL), RDMA_CM_EVENT_CONNECT_RESPONSE);
		GOOD(rdma_establish(id));
	} else {
		EXPECT(next_type(WAIT_MS, NULL), RDMA_CM_EVENT_ESTABLISHED);
	}
}

static void play_server(void)
{
	uint16_t port;
	channel = new_channel();
	if (kind == EXTENDED) {
		listener = new_half(SERVER, 0);
		GOOD(rdma_listen(listener, 8));
	} else {
		listener = new_listener(channel, space());
	}
	param.qp_num = 0x2000;
	port = rdma_get_src_port(listener);
	MUST(write(ports[1], &port, sizeof port) == sizeof port);
	if (state >= FETCHED)
		EXPECT(next_type(WAIT_MS, &id), RDMA_CM_EVENT_CONNECT_REQUEST);
	if (state >= ACCEPTED) {
		add_any_qp(SERVER);
		GOOD(rdma_accept(id, &param));
	}
	if (state >= ESTABLISHED)
		EXPECT(next_type(WAIT_MS, NULL), RDMA_CM_EVENT_ESTABLISHED);
}

static void play_client(void)
{
	uint16_t port;
	channel = new_channel();
	param.qp_num = 0x1000;
	MUST(read(ports[0], &port, sizeof port) == sizeof port);
	id = kind == EXTENDED ? new_half(CLIENT, port) : new_client(channel, space(), port);
	add_any_qp(CLIENT);
	GOOD(rdma_connect(id, &param));
	if (state >= ESTABLISHED)
		accepted();
}

static void play(enum side side)
{
	(side == SERVER ? play_server : play_client)();
}

/* Reports, and is killed or stopped. A side that was stopped goes on later. Once both know of the connection, it learns that it has ended. */
static void be_hit(enum side side)
{
	play(side);
	if (state == VICTIM_DISCONNECTS)
		GOOD(rdma_disconnect(id));
	if (side == CLIENT && state == ACCEPTED)
		await_event();
	MUST(write(reports[1], "r", 1) == 1);
	if (!stops)
		for (;;)
			pause();
	raise(SIGSTOP);
	if (state >= ESTABLISHED)
		EXPECT(next_type(WAIT_MS, NULL), RDMA_CM_EVENT_DISCONNECTED);
	else
		while (next_type(200, NULL) != NONE)
			;
	exit(bad);
}

static void hit(pid_t victim)
{
	int status;
	if (!stops)
		GOOD(kill(victim, SIGKILL));
	MUST(waitpid(victim, &status, WUNTRACED) == victim);
	TRUE(stops ? WIFSTOPPED(status) : WIFSIGNALED(status));
}

/* Lets a stopped victim go on. */
static void release(pid_t victim)
{
	int status;
	if (!stops)
		return;
	GOOD(kill(victim, SIGCONT));
	MUST(waitpid(victim, &status, 0) == victim);
	TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void client_survives(void)
{
	if (!stops && state < ACCEPTED) {
		EXPECT(next_type(WAIT_MS, NULL), kind == DATAGRAM ? RDMA_CM_EVENT_UNREACHABLE : RDMA_CM_EVENT_REJECTED);
	} else if (state == ACCEPTED) {
		int ends = !stops && kind != DATAGRAM;
		/* The answer arrived before. */
		accepted();
		EXPECT(next_type(ends ? WAIT_MS : 100, NULL), ends ? RDMA_CM_EVENT_DISCONNECTED : NONE);
	} else if (state == VICTIM_DISCONNECTS || (!stops && state >= ESTABLISHED)) {
		EXPECT(next_type(WAIT_MS, NULL), RDMA_CM_EVENT_DISCONNECTED);
	} else {
		EXPECT(next_type(100, NULL), NONE);
	}
}

static void server_survives(void)
{
	int type;
	if (state == REQUESTED) {
		/* The request of a process that has exited may be gone. */
		type = next_type(1000, &id);
		if (stops || type != NONE)
			EXPECT(type, RDMA_CM_EVENT_CONNECT_REQUEST);
		if (type != NONE)
			GOOD(rdma_reject(id, NULL, 0));
	} else if (state == FETCHED) {
		/* The process may have exited unnoticed; then accepting fails later. */
		add_any_qp(SERVER);
		if (rdma_accept(id, &param) == 0 && !stops && kind != DATAGRAM)
			TRUE(next_type(WAIT_MS, NULL) != NONE);
	} else if (state == VICTIM_DISCONNECTS || (!stops && state >= ESTABLISHED)) {
		EXPECT(next_type(WAIT_MS, NULL), RDMA_CM_EVENT_DISCONNECTED);
	} else if (!stops && kind != DATAGRAM) {
		type = next_type(WAIT_MS, NULL);
		TRUE(type == RDMA_CM_EVENT_REJECTED || type == RDMA_CM_EVENT_CONNECT_ERROR || type == RDMA_CM_EVENT_UNREACHABLE);
	} else {
		EXPECT(next_type(100, NULL), NONE);
	}
}

static void survive(enum side side, pid_t victim)
{
	char byte;
	play(side);
	MUST(read(reports[0], &byte, 1) == 1 && byte == 'r');
	if (side == SERVER && state == REQUESTED)
		await_event();
	if (state == SURVIVOR_DISCONNECTS)
		GOOD(rdma_disconnect(id));
	hit(victim);
	(side == SERVER ? server_survives : client_survives)();
	/* Does not wait for the victim. */
	if (id) {
		if (id->qp)
			rdma_destroy_qp(id);
		if (id->srq)
			rdma_destroy_srq(id);
		GOOD(rdma_destroy_id(id));
	}
	if (listener)
		GOOD(rdma_destroy_id(listener));
	rdma_destroy_event_channel(channel);
	release(victim);
}

/* Runs in a process of its own, which creates the victim before it uses the library: a process that uses the library cannot fork. */
static void run(enum side hit_side)
{
	char text[100];
	pid_t victim;
	snprintf(text, sizeof text, "%s, %s is %s: %s", kind_names[kind], side_names[hit_side], stops ? "stopped" : "killed", names[state]);
	what = text;
	alarm(250);
	GOOD(pipe(ports));
	GOOD(pipe(reports));
	MUST((victim = fork()) >= 0);
	if (victim == 0) {
		alarm(250);
		be_hit(hit_side);
	}
	survive(hit_side == SERVER ? CLIENT : SERVER, victim);
	if (bad)
		printf("^ %s\n", what);
	exit(bad);
}

int main(void)
{
	int running = 0, row;
	begin();
	for (row = 0; row < KINDS * STATES * SIDES * 2; row++) {
		pid_t child;
		kind = row / (STATES * SIDES * 2);
		state = row / (SIDES * 2) % STATES;
		stops = row % 2;
		if (kind == DATAGRAM && state > ACCEPTED)
			continue;
		if (running == AT_ONCE)
			await_one();
		else
			running++;
		MUST((child = fork()) >= 0);
		if (child == 0)
			run(row / 2 % SIDES);
	}
	while (running--)
		await_one();
	return finish();
}
