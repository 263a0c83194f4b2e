/* One side of a connection is killed or stopped in each state. The other side learns of it, or goes on, and never waits for long. */
#include "common.h"

/* What has happened when the victim is hit. */
enum state { REQUESTED, FETCHED, ACCEPTED, ESTABLISHED, VICTIM_DISCONNECTS, SURVIVOR_DISCONNECTS, STATES };
static const char *const names[] = { "requested", "fetched", "accepted", "established", "the victim disconnects",
				     "the survivor disconnects" };

/* Queue pairs that the program creates, queue pairs of the identifiers, and datagrams, which have no connection. */
enum kind { EXTERNAL, CONNECTED, DATAGRAM, KINDS };
static const char *const kind_names[] = { "external queue pairs", "queue pairs", "datagrams" };

enum { WAIT_MS = 20000 };
#define NONE 99

static enum kind kind;
static struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };

static enum rdma_port_space space(void)
{
	return kind == DATAGRAM ? RDMA_PS_UDP : RDMA_PS_TCP;
}

static void add_any_qp(struct rdma_cm_id *id)
{
	if (kind != EXTERNAL)
		add_qp(id, kind == DATAGRAM ? IBV_QPT_UD : IBV_QPT_RC);
}

/* The type of the next event, or NONE if there is none in time. Stores the identifier if `id` is not null. */
static int next_type(struct rdma_event_channel *channel, int timeout, struct rdma_cm_id **id)
{
	struct pollfd entry = { .fd = channel->fd, .events = POLLIN };
	struct rdma_cm_event *event;
	int type;
	MUST(poll(&entry, 1, timeout) >= 0);
	if (!(entry.revents & POLLIN))
		return NONE;
	MUST(rdma_get_cm_event(channel, &event) == 0);
	type = event->event;
	if (id)
		*id = event->id;
	GOOD(rdma_ack_cm_event(event));
	return type;
}

static void expect(int line, const char *what, int type, int wanted)
{
	if (type == wanted)
		return;
	printf("line %d: %s: %s instead of %s\n", line, what, type == NONE ? "no event" : rdma_event_str(type),
	       wanted == NONE ? "no event" : rdma_event_str(wanted));
	bad = 1;
}
#define EXPECT(type, wanted) expect(__LINE__, what, type, wanted)

/* The side that connects learns that the other side has accepted. */
static void accepted(const char *what, struct rdma_event_channel *channel, struct rdma_cm_id *id)
{
	if (kind == EXTERNAL) {
		EXPECT(next_type(channel, WAIT_MS, NULL), RDMA_CM_EVENT_CONNECT_RESPONSE);
		GOOD(rdma_establish(id));
	} else {
		EXPECT(next_type(channel, WAIT_MS, NULL), RDMA_CM_EVENT_ESTABLISHED);
	}
}

static void remove_qp(struct rdma_cm_id *id)
{
	if (id->qp)
		rdma_destroy_qp(id);
}

/* The victim reports, and is killed or stopped. If it was stopped, it goes on later. */
static void report(int to, int stops)
{
	MUST(write(to, "r", 1) == 1);
	if (stops)
		raise(SIGSTOP);
	else
		for (;;)
			pause();
}

static void await_report(int from)
{
	char byte;
	MUST(read(from, &byte, 1) == 1 && byte == 'r');
}

/* Once both sides know of the connection, the victim learns that it has ended. */
static void continued(const char *what, struct rdma_event_channel *channel, enum state state)
{
	if (state >= ESTABLISHED)
		EXPECT(next_type(channel, WAIT_MS, NULL), RDMA_CM_EVENT_DISCONNECTED);
	else
		while (next_type(channel, 200, NULL) != NONE)
			;
	exit(bad);
}

static void hit(pid_t victim, int stops)
{
	int status;
	if (!stops)
		GOOD(kill(victim, SIGKILL));
	MUST(waitpid(victim, &status, WUNTRACED) == victim);
	TRUE(stops ? WIFSTOPPED(status) : WIFSIGNALED(status));
}

/* Lets a stopped victim go on. */
static void release(pid_t victim, int stops)
{
	int status;
	if (!stops)
		return;
	GOOD(kill(victim, SIGCONT));
	MUST(waitpid(victim, &status, 0) == victim);
	TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void server_is_hit(const char *what, enum state state, int stops)
{
	int pipes[2];
	uint16_t port;
	pid_t victim;
	GOOD(pipe(pipes));
	MUST((victim = fork()) >= 0);
	if (victim == 0) {
		struct rdma_event_channel *channel = new_channel();
		struct rdma_cm_id *listener = new_listener(channel, space()), *id = NULL;
		alarm(250);
		param.qp_num = 0x2000;
		port = rdma_get_src_port(listener);
		MUST(write(pipes[1], &port, sizeof port) == sizeof port);
		if (state >= FETCHED)
			EXPECT(next_type(channel, WAIT_MS, &id), RDMA_CM_EVENT_CONNECT_REQUEST);
		if (state >= ACCEPTED) {
			add_any_qp(id);
			GOOD(rdma_accept(id, &param));
		}
		if (state >= ESTABLISHED)
			EXPECT(next_type(channel, WAIT_MS, NULL), RDMA_CM_EVENT_ESTABLISHED);
		if (state == VICTIM_DISCONNECTS)
			GOOD(rdma_disconnect(id));
		report(pipes[1], stops);
		continued(what, channel, state);
	}
	MUST(read(pipes[0], &port, sizeof port) == sizeof port);
	struct rdma_event_channel *channel = new_channel();
	struct rdma_cm_id *id = new_client(channel, space(), port);
	param.qp_num = 0x1000;
	add_any_qp(id);
	GOOD(rdma_connect(id, &param));
	if (state >= ESTABLISHED)
		accepted(what, channel, id);
	await_report(pipes[0]);
	if (state == SURVIVOR_DISCONNECTS)
		GOOD(rdma_disconnect(id));
	hit(victim, stops);
	if (!stops && state < ACCEPTED) {
		EXPECT(next_type(channel, WAIT_MS, NULL), kind == DATAGRAM ? RDMA_CM_EVENT_UNREACHABLE : RDMA_CM_EVENT_REJECTED);
	} else if (state == ACCEPTED) {
		int ends = !stops && kind != DATAGRAM;
		/* The answer arrived before. */
		accepted(what, channel, id);
		EXPECT(next_type(channel, ends ? WAIT_MS : 100, NULL), ends ? RDMA_CM_EVENT_DISCONNECTED : NONE);
	} else if (state == VICTIM_DISCONNECTS || (!stops && state >= ESTABLISHED)) {
		EXPECT(next_type(channel, WAIT_MS, NULL), RDMA_CM_EVENT_DISCONNECTED);
	} else {
		EXPECT(next_type(channel, 100, NULL), NONE);
	}
	/* Does not wait for the victim. */
	remove_qp(id);
	GOOD(rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
	release(victim, stops);
	close(pipes[0]);
	close(pipes[1]);
}

static void client_is_hit(const char *what, enum state state, int stops)
{
	int ports[2], reports[2];
	uint16_t port;
	pid_t victim;
	GOOD(pipe(ports));
	GOOD(pipe(reports));
	/* The victim is started first: a process that uses the library cannot fork. */
	MUST((victim = fork()) >= 0);
	if (victim == 0) {
		struct rdma_event_channel *channel = new_channel();
		struct rdma_cm_id *id;
		alarm(250);
		param.qp_num = 0x1000;
		MUST(read(ports[0], &port, sizeof port) == sizeof port);
		id = new_client(channel, space(), port);
		add_any_qp(id);
		GOOD(rdma_connect(id, &param));
		if (state >= ESTABLISHED)
			accepted(what, channel, id);
		if (state == VICTIM_DISCONNECTS)
			GOOD(rdma_disconnect(id));
		if (state == ACCEPTED) {
			/* The answer has arrived, but the victim has not fetched it. */
			struct pollfd entry = { .fd = channel->fd, .events = POLLIN };
			MUST(poll(&entry, 1, WAIT_MS) == 1);
		}
		report(reports[1], stops);
		continued(what, channel, state);
	}
	struct rdma_event_channel *channel = new_channel();
	struct rdma_cm_id *listener = new_listener(channel, space()), *id = NULL;
	int type;
	port = rdma_get_src_port(listener);
	param.qp_num = 0x2000;
	MUST(write(ports[1], &port, sizeof port) == sizeof port);
	if (state >= FETCHED)
		EXPECT(next_type(channel, WAIT_MS, &id), RDMA_CM_EVENT_CONNECT_REQUEST);
	if (state >= ACCEPTED) {
		add_any_qp(id);
		GOOD(rdma_accept(id, &param));
	}
	if (state >= ESTABLISHED)
		EXPECT(next_type(channel, WAIT_MS, NULL), RDMA_CM_EVENT_ESTABLISHED);
	await_report(reports[0]);
	if (state == REQUESTED) {
		/* The request is here. */
		struct pollfd entry = { .fd = channel->fd, .events = POLLIN };
		MUST(poll(&entry, 1, WAIT_MS) == 1);
	}
	if (state == SURVIVOR_DISCONNECTS)
		GOOD(rdma_disconnect(id));
	hit(victim, stops);
	if (state == REQUESTED) {
		/* The request of a process that has exited may be gone. */
		type = next_type(channel, 1000, &id);
		if (stops || type != NONE)
			EXPECT(type, RDMA_CM_EVENT_CONNECT_REQUEST);
		if (type != NONE)
			GOOD(rdma_reject(id, NULL, 0));
	} else if (state == FETCHED) {
		/* The process may have exited unnoticed; then accepting fails later. */
		add_any_qp(id);
		if (rdma_accept(id, &param) == 0 && !stops && kind != DATAGRAM)
			TRUE(next_type(channel, WAIT_MS, NULL) != NONE);
	} else if (state == VICTIM_DISCONNECTS || (!stops && state >= ESTABLISHED)) {
		EXPECT(next_type(channel, WAIT_MS, NULL), RDMA_CM_EVENT_DISCONNECTED);
	} else if (!stops && kind != DATAGRAM) {
		type = next_type(channel, WAIT_MS, NULL);
		TRUE(type == RDMA_CM_EVENT_REJECTED || type == RDMA_CM_EVENT_CONNECT_ERROR || type == RDMA_CM_EVENT_UNREACHABLE);
	} else {
		EXPECT(next_type(channel, 100, NULL), NONE);
	}
	if (id) {
		remove_qp(id);
		GOOD(rdma_destroy_id(id));
	}
	GOOD(rdma_destroy_id(listener));
	rdma_destroy_event_channel(channel);
	release(victim, stops);
}

static void each_side(enum state state)
{
	int run, status;
	for (run = 0; run < 4; run++) {
		char what[100];
		pid_t survivor = fork();
		MUST(survivor >= 0);
		if (survivor == 0) {
			alarm(250);
			snprintf(what, sizeof what, "%s, %s is %s: %s", kind_names[kind], run / 2 ? "the server" : "the client",
				 run % 2 ? "stopped" : "killed", names[state]);
			(run / 2 ? server_is_hit : client_is_hit)(what, state, run % 2);
			if (bad)
				printf("^ %s\n", what);
			exit(bad);
		}
		MUST(waitpid(survivor, &status, 0) == survivor);
		TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	}
}

int main(void)
{
	begin();
	for (kind = 0; kind < KINDS; kind++) {
		int state, states = kind == DATAGRAM ? ACCEPTED + 1 : STATES;
		for (state = 0; state < states; state++)
			each_side(state);
	}
	return finish();
}
