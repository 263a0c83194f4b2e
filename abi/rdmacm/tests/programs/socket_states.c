/* The peer of an rsocket is killed or stopped while it connects, transfers or closes. Calls fail, or wait until the peer goes on. */
#include "sockets.h"
#include "victims.h"
#include <time.h>

enum { WAIT_MS = 60000 };
#define CHUNK 100000
/* More than the rings of both sides hold. */
#define TOTAL (40 * CHUNK)

/* The kernel assigns the port for TCP, and the process keeps it, so that no other test gets its number while this one waits. */
static int told_listener(void)
{
	int held = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), fd = rsocket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in address = loopback(0);
	socklen_t len = sizeof address;
	MUST(held >= 0 && fd >= 0);
	MUST(bind(held, ADDRESS(address), sizeof address) == 0);
	MUST(getsockname(held, ADDRESS(address), &len) == 0);
	MUST(rbind(fd, ADDRESS(address), sizeof address) == 0);
	GOOD(rlisten(fd, 4));
	MUST(write(ports[1], &address.sin_port, sizeof address.sin_port) == sizeof address.sin_port);
	return fd;
}

static uint16_t told_port(void)
{
	uint16_t port;
	MUST(read(ports[0], &port, sizeof port) == sizeof port);
	return port;
}

static char byte_at(size_t at)
{
	return (char)(at * 7 + at / 1000);
}

/* Whether the peer of a stream is gone: the end of the data, or an error of a connection that has ended. */
static int is_end(ssize_t result)
{
	return result == 0 || (result == -1 && (errno == ECONNRESET || errno == EPIPE || errno == ENOTCONN));
}

/* Sends bytes from this position. Returns how many were sent before an error, or before the call would block. */
static size_t send_from(int fd, size_t from, size_t len, int flags)
{
	static __thread char data[CHUNK];
	size_t sent = 0;
	while (sent < len) {
		size_t at, part = len - sent < sizeof data ? len - sent : sizeof data;
		ssize_t got;
		for (at = 0; at < part; at++)
			data[at] = byte_at(from + sent + at);
		got = rsend(fd, data, part, flags);
		if (got < 0)
			break;
		sent += (size_t)got;
	}
	return sent;
}

/* Receives bytes and compares them. Returns how many came before the end. */
static size_t receive_from(int fd, size_t from, size_t len)
{
	static __thread char data[CHUNK];
	size_t received = 0;
	while (received < len) {
		size_t at, part = len - received < sizeof data ? len - received : sizeof data;
		ssize_t got = rrecv(fd, data, part, 0);
		if (got <= 0) {
			TRUE(is_end(got));
			break;
		}
		for (at = 0; at < (size_t)got; at++)
			MUST(data[at] == byte_at(from + received + at));
		received += (size_t)got;
	}
	return received;
}

/* What a survivor does in a thread, because it may wait for the victim. */
struct work {
	void (*work)(struct work *own);
	int fd, result, error;
	uint16_t port;
	size_t count;
	pthread_t thread;
};

static void *do_work(void *work)
{
	((struct work *)work)->work(work);
	return NULL;
}

static void start(struct work *work)
{
	GOOD(pthread_create(&work->thread, NULL, do_work, work));
}

/* Time for a thread to come to where it waits. It may do so later, which tests less. */
static void give_time(void)
{
	usleep(200000);
}

static void connects(struct work *own)
{
	struct sockaddr_in to = loopback(own->port);
	own->fd = rsocket(AF_INET, SOCK_STREAM, 0);
	own->result = rconnect(own->fd, ADDRESS(to), sizeof to);
	own->error = errno;
}

/* The server is hit before the client connects. Its process still holds the port if it was stopped. */
static void while_connecting_victim(void)
{
	int fd = told_listener();
	tell(reports[1]);
	await_byte(orders[0]);
	MUST((fd = raccept(fd, NULL, NULL)) >= 0);
	TRUE(receive_from(fd, 0, 5) == 5);
	GOOD(rclose(fd));
}

static void while_connecting(pid_t victim)
{
	struct work client = { .work = connects };
	client.port = told_port();
	await_byte(reports[0]);
	hit(victim);
	start(&client);
	give_time();
	release(victim);
	GOOD(pthread_join(client.thread, NULL));
	TRUE(stops ? client.result == 0 : client.result == -1 && client.error == ECONNREFUSED);
	if (stops)
		TRUE(send_from(client.fd, 0, 5, 0) == 5);
	GOOD(rclose(client.fd));
}

/* The client does not block: after a second, rconnect returns, and the socket says later what has happened. */
static void while_connecting_unblocked(pid_t victim)
{
	struct sockaddr_in to = loopback(told_port());
	int fd = rsocket(AF_INET, SOCK_STREAM, 0), result, error = -1;
	socklen_t len = sizeof error;
	await_byte(reports[0]);
	GOOD(rfcntl(fd, F_SETFL, O_NONBLOCK));
	hit(victim);
	result = rconnect(fd, ADDRESS(to), sizeof to);
	TRUE(result == -1 && errno == (stops ? EINPROGRESS : ECONNREFUSED));
	if (stops) {
		TRUE(polled(fd, POLLOUT, 0) == 0);
		release(victim);
		TRUE(polled(fd, POLLOUT, WAIT_MS) == POLLOUT);
		GOOD(rgetsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len));
		TRUE(error == 0 && send_from(fd, 0, 5, 0) == 5);
	}
	GOOD(rclose(fd));
}

static void sends_all(struct work *own)
{
	own->count = send_from(own->fd, 0, TOTAL, 0);
	own->error = errno;
}

/* The victim has received a part of what the survivor sends. */
static void while_receiving_victim(void)
{
	int fd = raccept(told_listener(), NULL, NULL);
	MUST(fd >= 0 && receive_from(fd, 0, CHUNK) == CHUNK);
	tell(reports[1]);
	await_byte(orders[0]);
	TRUE(receive_from(fd, CHUNK, TOTAL - CHUNK) == TOTAL - CHUNK);
	TRUE(receive_from(fd, TOTAL, 1) == 0);
	GOOD(rclose(fd));
}

static void while_receiving(pid_t victim)
{
	struct work sender = { .work = sends_all };
	sender.fd = client(told_port());
	start(&sender);
	await_byte(reports[0]);
	hit(victim);
	give_time();
	release(victim);
	GOOD(pthread_join(sender.thread, NULL));
	if (stops)
		TRUE(sender.count == TOTAL);
	else
		TRUE(sender.count < TOTAL && (sender.error == ECONNRESET || sender.error == EPIPE));
	GOOD(rclose(sender.fd));
}

static void receives_all(struct work *own)
{
	own->count = receive_from(own->fd, 0, TOTAL);
}

/* The victim has sent a part of what the survivor receives. */
static void while_sending_victim(void)
{
	int fd = raccept(told_listener(), NULL, NULL);
	MUST(fd >= 0 && send_from(fd, 0, CHUNK, 0) == CHUNK);
	tell(reports[1]);
	await_byte(orders[0]);
	TRUE(send_from(fd, CHUNK, TOTAL - CHUNK, 0) == TOTAL - CHUNK);
	GOOD(rclose(fd));
}

static void while_sending(pid_t victim)
{
	struct work receiver = { .work = receives_all };
	receiver.fd = client(told_port());
	start(&receiver);
	await_byte(reports[0]);
	hit(victim);
	give_time();
	release(victim);
	GOOD(pthread_join(receiver.thread, NULL));
	TRUE(stops ? receiver.count == TOTAL : receiver.count <= CHUNK);
	GOOD(rclose(receiver.fd));
}

/* The victim has not accepted the connection, but it is established. */
static void before_accepting_victim(void)
{
	int fd = told_listener();
	TRUE(polled(fd, POLLIN, WAIT_MS) == POLLIN);
	tell(reports[1]);
	await_byte(orders[0]);
	MUST((fd = raccept(fd, NULL, NULL)) >= 0);
	TRUE(receive_from(fd, 0, 5) == 5 && send_from(fd, 0, TOTAL, 0) == TOTAL);
	GOOD(rclose(fd));
}

static void before_accepting(pid_t victim)
{
	struct work receiver = { .work = receives_all };
	receiver.fd = client(told_port());
	TRUE(send_from(receiver.fd, 0, 5, 0) == 5);
	await_byte(reports[0]);
	hit(victim);
	start(&receiver);
	give_time();
	release(victim);
	GOOD(pthread_join(receiver.thread, NULL));
	TRUE(receiver.count == (stops ? TOTAL : 0));
	GOOD(rclose(receiver.fd));
}

/* The client is hit, and the server survives. */
static void client_victim(void)
{
	int fd = client(told_port());
	TRUE(send_from(fd, 0, 5, 0) == 5);
	tell(reports[1]);
	await_byte(orders[0]);
	TRUE(receive_from(fd, 0, TOTAL) == TOTAL);
	GOOD(rclose(fd));
}

static void client_is_hit(pid_t victim)
{
	struct work sender = { .work = sends_all };
	int fd = told_listener();
	MUST((sender.fd = raccept(fd, NULL, NULL)) >= 0);
	/* Before the victim is hit: what a process has sent may not have left it. */
	TRUE(receive_from(sender.fd, 0, 5) == 5);
	await_byte(reports[0]);
	hit(victim);
	start(&sender);
	give_time();
	release(victim);
	GOOD(pthread_join(sender.thread, NULL));
	TRUE(stops ? sender.count == TOTAL : sender.count < TOTAL);
	GOOD(rclose(sender.fd));
	GOOD(rclose(fd));
}

/* rclose waits for the data that a stopped peer has not taken: ten seconds, or the time that the program sets. The data is lost. */
static void closing_victim(void)
{
	int fd = raccept(told_listener(), NULL, NULL);
	MUST(fd >= 0);
	tell(reports[1]);
	await_byte(orders[0]);
	TRUE(receive_from(fd, 0, TOTAL) < TOTAL);
	GOOD(rclose(fd));
}

static double seconds(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void closes_after(pid_t victim, struct linger *linger, double least)
{
	int fd = client(told_port());
	double before, took;
	await_byte(reports[0]);
	if (linger)
		GOOD(rsetsockopt(fd, SOL_SOCKET, SO_LINGER, linger, sizeof *linger));
	hit(victim);
	GOOD(rfcntl(fd, F_SETFL, O_NONBLOCK));
	TRUE(send_from(fd, 0, TOTAL, 0) < TOTAL);
	before = seconds();
	GOOD(rclose(fd));
	took = seconds() - before;
	/* A peer that was killed takes no time. The upper limit is for a busy machine. */
	if (took < (stops ? least : 0) || took > 40) {
		printf("rclose took %f s instead of %f s\n", took, least);
		bad = 1;
	}
	release(victim);
}

static void closing(pid_t victim)
{
	closes_after(victim, NULL, 9.9);
}

static void closing_soon(pid_t victim)
{
	struct linger linger = { .l_onoff = 1, .l_linger = 1 };
	closes_after(victim, &linger, 0.9);
}

static int bound(uint16_t *port_be)
{
	int fd = rsocket(AF_INET, SOCK_DGRAM, 0);
	struct sockaddr_in own = loopback(*port_be);
	socklen_t len = sizeof own;
	MUST(fd >= 0);
	GOOD(rbind(fd, ADDRESS(own), sizeof own));
	GOOD(rgetsockname(fd, ADDRESS(own), &len));
	*port_be = own.sin_port;
	return fd;
}

static void datagrams_victim(void)
{
	uint16_t port = 0;
	int fd = bound(&port);
	struct sockaddr_in from;
	socklen_t len = sizeof from;
	char data[8];
	MUST(write(ports[1], &port, sizeof port) == sizeof port);
	MUST(rrecvfrom(fd, data, sizeof data, 0, ADDRESS(from), &len) == 1);
	MUST(rsendto(fd, "b", 1, 0, ADDRESS(from), len) == 1);
	tell(reports[1]);
	await_byte(orders[0]);
	MUST(rrecv(fd, data, sizeof data, 0) == 1 && data[0] == 'c');
	GOOD(rclose(fd));
}

/* Datagrams to the victim are lost, or arrive later. If it was killed, another socket has its port soon. */
static void datagrams(pid_t victim)
{
	struct sockaddr_in to = loopback(told_port());
	uint16_t port = to.sin_port;
	int fd = rsocket(AF_INET, SOCK_DGRAM, 0), next = -1, tries;
	char data[8];
	MUST(rsendto(fd, "a", 1, 0, ADDRESS(to), sizeof to) == 1);
	MUST(rrecv(fd, data, sizeof data, 0) == 1 && data[0] == 'b');
	await_byte(reports[0]);
	hit(victim);
	for (tries = 0; tries < 1000; tries++) {
		ssize_t sent = rsendto(fd, "c", 1, MSG_DONTWAIT, ADDRESS(to), sizeof to);
		TRUE(sent == 1 || (sent == -1 && errno == EAGAIN));
	}
	TRUE(rrecv(fd, data, sizeof data, MSG_DONTWAIT) == -1 && errno == EAGAIN);
	if (!stops) {
		next = bound(&port);
		for (tries = 0; tries < 300 && !polled(next, POLLIN, 100); tries++) {
			ssize_t sent = rsendto(fd, "d", 1, MSG_DONTWAIT, ADDRESS(to), sizeof to);
			TRUE(sent == 1 || (sent == -1 && errno == EAGAIN));
		}
		MUST(rrecv(next, data, sizeof data, 0) == 1 && data[0] == 'd');
		GOOD(rclose(next));
	}
	release(victim);
	GOOD(rclose(fd));
}

static const struct {
	const char *name;
	void (*victim)(void);
	void (*survivor)(pid_t victim);
} rows[] = {
	{ "connecting", while_connecting_victim, while_connecting },
	{ "connecting without blocking", while_connecting_victim, while_connecting_unblocked },
	{ "before raccept", before_accepting_victim, before_accepting },
	{ "the victim receives", while_receiving_victim, while_receiving },
	{ "the victim sends", while_sending_victim, while_sending },
	{ "the client", client_victim, client_is_hit },
	{ "closing", closing_victim, closing },
	{ "closing, with SO_LINGER", closing_victim, closing_soon },
	{ "datagrams", datagrams_victim, datagrams },
};
enum { ROWS = sizeof rows / sizeof rows[0] };

/* Runs in a process of its own, which creates the victim before it uses the library: a process that uses the library cannot fork. */
static void run(int row)
{
	pid_t victim;
	alarm(250);
	GOOD(pipe(ports));
	GOOD(pipe(reports));
	GOOD(pipe(orders));
	MUST((victim = fork()) >= 0);
	if (victim == 0) {
		alarm(250);
		rows[row].victim();
		exit(bad);
	}
	rows[row].survivor(victim);
	await_end(victim);
	if (bad)
		printf("^ %s: %s\n", rows[row].name, stops ? "stopped" : "killed");
	exit(bad);
}

int main(void)
{
	int row, status;
	begin();
	/* All at once: most wait. */
	for (row = 0; row < 2 * ROWS; row++) {
		pid_t child;
		stops = row % 2;
		MUST((child = fork()) >= 0);
		if (child == 0)
			run(row / 2);
	}
	while (wait(&status) > 0)
		TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	return finish();
}
