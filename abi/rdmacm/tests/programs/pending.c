/* A listener is closed while stopped clients wait for it to accept their connections. */
#include "sockets.h"
#include <time.h>

#define CLIENTS 16

static void run_clients(int from)
{
	int fds[CLIENTS], i;
	char byte;
	uint16_t port;
	MUST(read(from, &port, sizeof port) == sizeof port);
	for (i = 0; i < CLIENTS; i++)
		fds[i] = client(port);
	raise(SIGSTOP);
	for (i = 0; i < CLIENTS; i++) {
		TRUE(rrecv(fds[i], &byte, 1, 0) <= 0);
		GOOD(rclose(fds[i]));
	}
	exit(bad);
}

int main(void)
{
	struct timespec before, after;
	int ports[2], status, fd;
	uint16_t port;
	pid_t clients;
	begin();
	GOOD(pipe(ports));
	MUST((clients = fork()) >= 0);
	if (clients == 0) {
		alarm(250);
		run_clients(ports[0]);
	}
	fd = listener(&port);
	GOOD(rlisten(fd, CLIENTS));
	MUST(write(ports[1], &port, sizeof port) == sizeof port);
	MUST(waitpid(clients, &status, WUNTRACED) == clients && WIFSTOPPED(status));
	TRUE(polled(fd, POLLIN, 60000) == POLLIN);
	clock_gettime(CLOCK_MONOTONIC, &before);
	GOOD(rclose(fd));
	clock_gettime(CLOCK_MONOTONIC, &after);
	/* Waiting for the clients one after another would take ten seconds for each. */
	TRUE(after.tv_sec - before.tv_sec < 60);
	GOOD(kill(clients, SIGCONT));
	MUST(waitpid(clients, &status, 0) == clients);
	TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	return finish();
}
