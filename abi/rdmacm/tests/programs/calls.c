/* Calls with invalid arguments and in wrong states; event channels, signals, child processes. */
#include "common.h"

/* The first unprivileged port. */
static int first_unprivileged(void)
{
	FILE *file = fopen("/proc/sys/net/ipv4/ip_unprivileged_port_start", "r");
	int first = 1024;
	if (file) {
		TRUE(fscanf(file, "%d", &first) == 1);
		fclose(file);
	}
	return first;
}

/* Null arguments, and handles that are not of the right type. */
static void wrong_arguments(void)
{
	struct rdma_event_channel *channel = new_channel();
	struct rdma_cm_id *id = NULL, *wild = (struct rdma_cm_id *)&id;
	struct sockaddr_storage other = { .ss_family = AF_UNIX };
	struct sockaddr_in elsewhere = loopback(0);
	struct rdma_addrinfo *info = NULL;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT };
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC };
	struct ibv_ece ece = { 0 };
	struct rdma_cm_id *ids[] = { NULL, wild, (struct rdma_cm_id *)channel };
	int mask;
	size_t i;

	for (i = 0; i < sizeof ids / sizeof *ids; i++) {
		struct rdma_cm_id *no = ids[i];
		FAILS(EINVAL, rdma_bind_addr(no, ADDRESS(elsewhere)));
		FAILS(EINVAL, rdma_resolve_addr(no, NULL, ADDRESS(elsewhere), 1));
		FAILS(EINVAL, rdma_resolve_route(no, 1));
		FAILS(EINVAL, rdma_create_qp(no, NULL, &init));
		FAILS(EINVAL, rdma_create_qp_ex(no, NULL));
		FAILS(EINVAL, rdma_create_srq(no, NULL, NULL));
		FAILS(EINVAL, rdma_create_srq_ex(no, NULL));
		FAILS(EINVAL, rdma_listen(no, 1));
		FAILS(EINVAL, rdma_connect(no, NULL));
		FAILS(EINVAL, rdma_accept(no, NULL));
		FAILS(EINVAL, rdma_reject(no, NULL, 0));
		FAILS(EINVAL, rdma_reject_ece(no, NULL, 0));
		FAILS(EINVAL, rdma_establish(no));
		FAILS(EINVAL, rdma_disconnect(no));
		FAILS(EINVAL, rdma_notify(no, IBV_EVENT_COMM_EST));
		FAILS(EINVAL, rdma_migrate_id(no, channel));
		FAILS(EINVAL, rdma_set_option(no, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &bad, 1));
		FAILS(EINVAL, rdma_init_qp_attr(no, &attr, &mask));
		FAILS(EINVAL, rdma_get_request(no, &id));
		FAILS(EINVAL, rdma_set_local_ece(no, &ece));
		FAILS(EINVAL, rdma_get_remote_ece(no, &ece));
		FAILS(EINVAL, rdma_destroy_id(no));
		TRUE(rdma_get_src_port(no) == 0 && rdma_get_dst_port(no) == 0);
		rdma_destroy_qp(no);
		rdma_destroy_srq(no);
		rdma_destroy_ep(no);
	}
	FAILS(EINVAL, rdma_create_id(channel, NULL, NULL, RDMA_PS_TCP));
	FAILS(EINVAL, rdma_create_id(channel, &id, NULL, 0));
	FAILS(EINVAL, rdma_create_id((void *)&id, &id, NULL, RDMA_PS_TCP));
	FAILS(EINVAL, rdma_get_cm_event(channel, NULL));
	FAILS(EINVAL, rdma_get_cm_event(NULL, (void *)&id));
	FAILS(EINVAL, rdma_ack_cm_event(NULL));
	FAILS(EINVAL, rdma_getaddrinfo(NULL, NULL, NULL, &info));
	FAILS(EINVAL, rdma_getaddrinfo("127.0.0.1", "1", NULL, NULL));
	FAILS(EINVAL, rdma_create_ep(&id, NULL, NULL, NULL));
	TRUE(rdma_getaddrinfo("no such name.invalid", NULL, NULL, &info) != 0);
	rdma_freeaddrinfo(NULL);
	rdma_freeaddrinfo((void *)&id);
	rdma_free_devices(NULL);
	rdma_destroy_event_channel(NULL);

	id = new_id(channel, RDMA_PS_TCP);
	FAILS(EINVAL, rdma_bind_addr(id, NULL));
	FAILS(EINVAL, rdma_bind_addr(id, ADDRESS(other)));
	elsewhere.sin_addr.s_addr = inet_addr("192.0.2.1");
	FAILS(EADDRNOTAVAIL, rdma_bind_addr(id, ADDRESS(elsewhere)));
	FAILS(EINVAL, rdma_resolve_addr(id, NULL, NULL, 1));
	FAILS(EINVAL, rdma_resolve_addr(id, NULL, ADDRESS(other), 1));
	FAILS(ENOSYS, rdma_set_option(id, 7, 0, &bad, 4));
	FAILS(ENOSYS, rdma_set_option(id, RDMA_OPTION_ID, 77, &bad, 4));
	FAILS(EINVAL, rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &bad, 4));
	FAILS(EINVAL, rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, NULL, 1));
	FAILS(EINVAL, rdma_join_multicast(id, ADDRESS(elsewhere), NULL));
	GOOD(rdma_destroy_id(id));
	FAILS(EINVAL, rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
}

/* Calls in states that do not allow them. */
static void wrong_states(void)
{
	struct rdma_event_channel *channel = new_channel();
	struct rdma_cm_id *id = new_id(channel, RDMA_PS_TCP), *listener = new_listener(channel, RDMA_PS_TCP), *other;
	struct sockaddr_in any = { .sin_family = AF_INET }, to = loopback(htons(1)), away = loopback(htons(1));
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR };
	char data[200] = { 0 };
	int mask, on = 1;
	struct pollfd fd = { .fd = channel->fd, .events = POLLIN };

	FAILS(EINVAL, rdma_resolve_route(id, 1));
	FAILS(EINVAL, rdma_connect(id, NULL));
	FAILS(EINVAL, rdma_connect(id, &param));
	FAILS(EINVAL, rdma_accept(id, &param));
	FAILS(EINVAL, rdma_reject(id, NULL, 0));
	FAILS(EINVAL, rdma_disconnect(id));
	FAILS(EINVAL, rdma_establish(id));
	FAILS(EINVAL, rdma_create_qp(id, NULL, &init));
	FAILS(EINVAL, rdma_init_qp_attr(id, &attr, &mask));
	FAILS(EINVAL, rdma_notify(id, IBV_EVENT_COMM_EST));
	GOOD(rdma_bind_addr(id, ADDRESS(any)));
	FAILS(EINVAL, rdma_bind_addr(id, ADDRESS(any)));
	FAILS(EINVAL, rdma_listen(listener, 1));
	FAILS(EINVAL, rdma_bind_addr(listener, ADDRESS(any)));
	FAILS(EINVAL, rdma_resolve_addr(listener, NULL, ADDRESS(to), 1));
	FAILS(EINVAL, rdma_set_option(listener, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, sizeof on));
	FAILS(EINVAL, rdma_get_request(listener, &other));

	/* An address of another host. */
	away.sin_addr.s_addr = inet_addr("192.0.2.1");
	GOOD(rdma_resolve_addr(id, NULL, ADDRESS(away), 1));
	ACK_NEXT(channel, ADDR_ERROR, -ETIMEDOUT);
	GOOD(rdma_resolve_addr(id, NULL, ADDRESS(to), 1));
	ACK_NEXT(channel, ADDR_RESOLVED, 0);
	FAILS(EINVAL, rdma_resolve_addr(id, NULL, ADDRESS(to), 1));
	FAILS(EINVAL, rdma_resolve_route(id, 0));
	FAILS(EINVAL, rdma_listen(id, 1));
	GOOD(rdma_resolve_route(id, 1));
	TRUE(poll(&fd, 1, 0) == 1 && fd.revents == POLLIN);
	ACK_NEXT(channel, ROUTE_RESOLVED, 0);
	TRUE(poll(&fd, 1, 0) == 0);
	FAILS(EINVAL, rdma_connect(id, NULL));
	param.initiator_depth = 200;
	FAILS(EINVAL, rdma_connect(id, &param));
	param.initiator_depth = 1;
	param.private_data = data;
	param.private_data_len = 57;
	FAILS(EINVAL, rdma_connect(id, &param));
	FAILS(EINVAL, rdma_init_qp_attr(id, &attr, &mask));

	/* Ports of other identifiers, and privileged ports. */
	other = new_id(channel, RDMA_PS_TCP);
	any.sin_port = rdma_get_src_port(listener);
	FAILS(EADDRNOTAVAIL, rdma_bind_addr(other, ADDRESS(any)));
	to.sin_port = any.sin_port;
	FAILS(EADDRNOTAVAIL, rdma_bind_addr(other, ADDRESS(to)));
	any.sin_port = htons(1);
	if (geteuid() != 0 && first_unprivileged() > 1)
		FAILS(EACCES, rdma_bind_addr(other, ADDRESS(any)));
	GOOD(rdma_listen(other, 0));
	TRUE(rdma_get_src_port(other) != 0);
	GOOD(rdma_destroy_id(other));

	/* Identifiers of IPv4 and IPv6 share a port only if the IPv6 one sets RDMA_OPTION_ID_AFONLY. */
	for (on = 0; on < 2; on++) {
		struct rdma_cm_id *six = new_id(channel, RDMA_PS_TCP);
		struct sockaddr_in6 all = { .sin6_family = AF_INET6 };
		other = new_id(channel, RDMA_PS_TCP);
		GOOD(rdma_set_option(six, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &on, sizeof on));
		GOOD(rdma_bind_addr(six, ADDRESS(all)));
		any.sin_port = rdma_get_src_port(six);
		if (on) {
			GOOD(rdma_bind_addr(other, ADDRESS(any)));
			GOOD(rdma_listen(other, 1));
			GOOD(rdma_listen(six, 1));
		} else {
			FAILS(EADDRNOTAVAIL, rdma_bind_addr(other, ADDRESS(any)));
		}
		GOOD(rdma_destroy_id(other));
		GOOD(rdma_destroy_id(six));
	}
	on = 1;

	/* Two identifiers share an address only if both set RDMA_OPTION_ID_REUSEADDR. */
	other = new_id(channel, RDMA_PS_TCP);
	GOOD(rdma_destroy_id(id));
	id = new_id(channel, RDMA_PS_TCP);
	to.sin_port = 0;
	GOOD(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, sizeof on));
	GOOD(rdma_bind_addr(id, ADDRESS(to)));
	to.sin_port = rdma_get_src_port(id);
	FAILS(EADDRINUSE, rdma_bind_addr(other, ADDRESS(to)));
	GOOD(rdma_set_option(other, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, sizeof on));
	GOOD(rdma_bind_addr(other, ADDRESS(to)));
	/* An identifier that shares its address cannot listen. */
	FAILS(EADDRINUSE, rdma_listen(id, 1));
	GOOD(rdma_destroy_id(other));
	GOOD(rdma_listen(id, 1));
	other = new_id(channel, RDMA_PS_TCP);

	TRUE(fcntl(channel->fd, F_SETFL, O_NONBLOCK) == 0);
	struct rdma_cm_event *event;
	FAILS(EAGAIN, rdma_get_cm_event(channel, &event));
	GOOD(rdma_destroy_id(id));
	GOOD(rdma_destroy_id(other));
	GOOD(rdma_destroy_id(listener));
	rdma_destroy_event_channel(channel);
}

/* Events migrate with their identifier. Migrating and destroying it wait until they are acknowledged. */
static struct rdma_cm_event *pending;
static volatile int acknowledges;

static void *ack_later(void *unused)
{
	(void)unused;
	usleep(20000);
	acknowledges = 1;
	GOOD(rdma_ack_cm_event(pending));
	return NULL;
}

static void migration(void)
{
	struct rdma_event_channel *one = new_channel(), *two = new_channel();
	struct rdma_cm_id *id = new_id(one, RDMA_PS_TCP);
	struct sockaddr_in to = loopback(htons(7));
	struct pollfd fds[2] = { { .fd = one->fd, .events = POLLIN }, { .fd = two->fd, .events = POLLIN } };
	pthread_t thread;

	GOOD(rdma_resolve_addr(id, NULL, ADDRESS(to), 1));
	GOOD(rdma_resolve_route(id, 1));
	TRUE(poll(fds, 2, 0) == 1 && fds[0].revents == POLLIN);
	GOOD(rdma_migrate_id(id, two));
	TRUE(id->channel == two && poll(fds, 2, 0) == 1 && fds[1].revents == POLLIN);
	rdma_destroy_event_channel(one);
	ACK_NEXT(two, ADDR_RESOLVED, 0);
	pending = NEXT(two, ROUTE_RESOLVED, 0);
	acknowledges = 0;
	GOOD(pthread_create(&thread, NULL, ack_later, NULL));
	GOOD(rdma_migrate_id(id, NULL));
	TRUE(acknowledges);
	GOOD(pthread_join(thread, NULL));
	FAILS(EINVAL, rdma_migrate_id(id, NULL));
	GOOD(rdma_migrate_id(id, two));
	GOOD(rdma_destroy_id(id));

	id = new_id(two, RDMA_PS_TCP);
	GOOD(rdma_resolve_addr(id, NULL, ADDRESS(to), 1));
	GOOD(rdma_resolve_route(id, 1));
	pending = NEXT(two, ADDR_RESOLVED, 0);
	acknowledges = 0;
	GOOD(pthread_create(&thread, NULL, ack_later, NULL));
	GOOD(rdma_destroy_id(id));
	TRUE(acknowledges);
	GOOD(pthread_join(thread, NULL));
	fds[1].revents = 0;
	TRUE(poll(fds + 1, 1, 0) == 0);
	rdma_destroy_event_channel(two);
}

static struct rdma_cm_id *disturbed;

static void nothing(int signal)
{
	(void)signal;
}

/* A signal interrupts a wait unless its handler has SA_RESTART. */
static volatile int stop;

static void *disturb_and_resolve(void *waiter)
{
	struct sockaddr_in to = loopback(htons(7));
	int times;
	for (times = 0; times < 10; times++) {
		usleep(2000);
		pthread_kill(*(pthread_t *)waiter, SIGUSR1);
	}
	GOOD(rdma_resolve_addr(disturbed, NULL, ADDRESS(to), 1));
	return NULL;
}

static void *disturb_until_stopped(void *waiter)
{
	while (!stop) {
		pthread_kill(*(pthread_t *)waiter, SIGUSR1);
		usleep(2000);
	}
	return NULL;
}

static void signals(void)
{
	struct rdma_event_channel *channel = new_channel();
	struct rdma_cm_event *event;
	struct sigaction action = { .sa_handler = nothing, .sa_flags = SA_RESTART };
	pthread_t self = pthread_self(), thread;

	disturbed = new_id(channel, RDMA_PS_TCP);
	sigaction(SIGUSR1, &action, NULL);
	GOOD(pthread_create(&thread, NULL, disturb_and_resolve, &self));
	ACK_NEXT(channel, ADDR_RESOLVED, 0);
	GOOD(pthread_join(thread, NULL));
	action.sa_flags = 0;
	sigaction(SIGUSR1, &action, NULL);
	GOOD(pthread_create(&thread, NULL, disturb_until_stopped, &self));
	FAILS(EINTR, rdma_get_cm_event(channel, &event));
	stop = 1;
	GOOD(pthread_join(thread, NULL));
	GOOD(rdma_destroy_id(disturbed));
	rdma_destroy_event_channel(channel);
}

static void *fetch_one(void *channel)
{
	ACK_NEXT(channel, ADDR_RESOLVED, 0);
	return NULL;
}

/* Each event wakes one thread that waits on the channel. */
static void two_readers(void)
{
	struct rdma_event_channel *channel = new_channel();
	struct rdma_cm_id *ids[2] = { new_id(channel, RDMA_PS_TCP), new_id(channel, RDMA_PS_TCP) };
	struct sockaddr_in to = loopback(htons(7));
	pthread_t threads[2];
	int i;

	for (i = 0; i < 2; i++)
		GOOD(pthread_create(&threads[i], NULL, fetch_one, channel));
	for (i = 0; i < 2; i++)
		GOOD(rdma_resolve_addr(ids[i], NULL, ADDRESS(to), 1));
	for (i = 0; i < 2; i++)
		GOOD(pthread_join(threads[i], NULL));
	for (i = 0; i < 2; i++)
		GOOD(rdma_destroy_id(ids[i]));
	rdma_destroy_event_channel(channel);
}

/* A child process cannot use its parent's connection manager. */
static void children(void)
{
	struct rdma_event_channel *channel = new_channel();
	struct rdma_cm_id *id = new_listener(channel, RDMA_PS_TCP);
	int status;
	pid_t child = fork();
	if (child == 0) {
		bad = 0;
		TRUE(rdma_create_event_channel() == NULL && errno == ENODEV);
		FAILS(ENODEV, rdma_listen(id, 1));
		_exit(bad);
	}
	TRUE(waitpid(child, &status, 0) == child && status == 0);
	GOOD(rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
}

static void devices(void)
{
	int count = 0;
	struct ibv_context **list = rdma_get_devices(&count);
	struct rdma_event_channel *channel = new_channel();
	struct rdma_cm_id *id = new_id(channel, RDMA_PS_TCP);
	struct sockaddr_in to = loopback(htons(7));
	MUST(list && count == 1 && list[0] && !list[1]);
	GOOD(rdma_resolve_addr(id, NULL, ADDRESS(to), 1));
	ACK_NEXT(channel, ADDR_RESOLVED, 0);
	TRUE(id->verbs == list[0]);
	rdma_free_devices(list);
	GOOD(rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
}

int main(void)
{
	begin();
	wrong_arguments();
	wrong_states();
	migration();
	signals();
	two_readers();
	children();
	devices();
	return finish();
}
