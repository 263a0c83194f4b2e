/* What the library has in a process ends when the process closes it or exits, although a forked child lives on. */
#include "sockets.h"

/* A child that only waits, until it is killed. The library has closed its copies in the child when this returns. */
static pid_t new_child(void)
{
	int pipes[2];
	char byte;
	pid_t child;
	GOOD(pipe(pipes));
	MUST((child = fork()) >= 0);
	if (child == 0) {
		alarm(250);
		MUST(write(pipes[1], "c", 1) == 1);
		for (;;)
			pause();
	}
	MUST(read(pipes[0], &byte, 1) == 1);
	close(pipes[0]);
	close(pipes[1]);
	return child;
}

static void end_child(pid_t child)
{
	GOOD(kill(child, SIGKILL));
	MUST(waitpid(child, NULL, 0) == child);
}

/* Creates a socket that is bound to a port, by default a free one. Returns -1 if the port is taken. */
static int bound(int type, uint16_t *port_be)
{
	int fd = rsocket(AF_INET, type, 0);
	struct sockaddr_in address = loopback(*port_be);
	socklen_t len = sizeof address;
	MUST(fd >= 0);
	if (rbind(fd, ADDRESS(address), sizeof address)) {
		TRUE(errno == EADDRINUSE);
		GOOD(rclose(fd));
		return -1;
	}
	GOOD(rgetsockname(fd, ADDRESS(address), &len));
	*port_be = address.sin_port;
	return fd;
}

/* A port can be bound again after it is closed. */
static void closed_ports(int type)
{
	uint16_t port = 0;
	int fd = bound(type, &port);
	pid_t child;
	if (type == SOCK_STREAM)
		GOOD(rlisten(fd, 1));
	child = new_child();
	TRUE(bound(type, &port) < 0);
	GOOD(rclose(fd));
	MUST((fd = bound(type, &port)) >= 0);
	if (type == SOCK_STREAM)
		GOOD(rlisten(fd, 1));
	GOOD(rclose(fd));
	end_child(child);
}

/* The parent still uses its sockets, and the child cannot. */
static void used_sockets(void)
{
	uint16_t port = 0;
	int pair[2], datagrams[2] = { bound(SOCK_DGRAM, &port), rsocket(AF_INET, SOCK_DGRAM, 0) }, status, i;
	struct sockaddr_in to = loopback(port);
	char data[4];
	pid_t child;
	connected(pair);
	for (i = 0; i < 2; i++) {
		MUST(rsend(pair[0], "ab", 2, 0) == 2);
		MUST(rsendto(datagrams[1], "cd", 2, 0, ADDRESS(to), sizeof to) == 2);
		if (i == 0) {
			MUST((child = fork()) >= 0);
			if (child == 0) {
				FAILS(ENODEV, rrecv(pair[1], data, sizeof data, 0));
				FAILS(ENODEV, rsend(pair[1], data, sizeof data, 0));
				FAILS(ENODEV, rrecv(datagrams[0], data, sizeof data, 0));
				FAILS(ENODEV, rsocket(AF_INET, SOCK_DGRAM, 0));
				_exit(bad);
			}
			MUST(waitpid(child, &status, 0) == child);
			TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
		}
		MUST(polled(pair[1], POLLIN, 20000) == POLLIN);
		MUST(rrecv(pair[1], data, sizeof data, 0) == 2);
		MUST(polled(datagrams[0], POLLIN, 20000) == POLLIN);
		MUST(rrecv(datagrams[0], data, sizeof data, 0) == 2);
	}
	for (i = 0; i < 2; i++) {
		GOOD(rclose(pair[i]));
		GOOD(rclose(datagrams[i]));
	}
}

/* The process exits, and a child of it lives on. */
static void ended_process(void)
{
	struct { uint16_t stream, datagram; pid_t child; } ports = { 0 };
	int to_us[2], fd, status;
	char data[4];
	pid_t parent;
	GOOD(pipe(to_us));
	MUST((parent = fork()) >= 0);
	if (parent == 0) {
		int fd = listener(&ports.stream);
		bound(SOCK_DGRAM, &ports.datagram);
		MUST(write(to_us[1], &ports, sizeof ports) == sizeof ports);
		fd = raccept(fd, NULL, NULL);
		MUST(rsend(fd, "ab", 2, 0) == 2);
		MUST(rrecv(fd, data, 1, 0) == 1);
		ports.child = new_child();
		MUST(write(to_us[1], &ports, sizeof ports) == sizeof ports);
		_exit(bad);
	}
	MUST(read(to_us[0], &ports, sizeof ports) == sizeof ports);
	fd = client(ports.stream);
	MUST(rrecv(fd, data, sizeof data, 0) == 2);
	MUST(rsend(fd, "x", 1, 0) == 1);
	/* Ends only if the child does not keep the connection. */
	TRUE(rrecv(fd, data, sizeof data, 0) <= 0);
	GOOD(rclose(fd));
	MUST(read(to_us[0], &ports, sizeof ports) == sizeof ports && ports.child > 0);
	MUST(waitpid(parent, &status, 0) == parent);
	TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	GOOD(kill(ports.child, 0));
	MUST((fd = bound(SOCK_DGRAM, &ports.datagram)) >= 0);
	GOOD(rclose(fd));
	MUST((fd = bound(SOCK_STREAM, &ports.stream)) >= 0);
	GOOD(rlisten(fd, 1));
	GOOD(rclose(fd));
	GOOD(kill(ports.child, SIGKILL));
}

int main(void)
{
	begin();
	/* First: a process that uses the library cannot fork another that does. */
	ended_process();
	closed_ports(SOCK_STREAM);
	closed_ports(SOCK_DGRAM);
	used_sockets();
	return finish();
}
