/* Streams: bulk data in both directions, between threads and between processes, and writes by offset. */
#include "sockets.h"

#define MUCH (24 << 20)

struct half {
	int fd, seed;
	size_t piece;
};

static unsigned char byte_at(size_t at, int seed)
{
	return (unsigned char)((at * 31 + at / 253 + (size_t)seed) & 0xff);
}

static void *sends(void *argument)
{
	struct half *half = argument;
	unsigned char *data = malloc(half->piece);
	size_t at = 0, i;
	while (at < MUCH) {
		size_t len = half->piece < MUCH - at ? half->piece : MUCH - at;
		for (i = 0; i < len; i++)
			data[i] = byte_at(at + i, half->seed);
		MUST(rsend(half->fd, data, len, 0) == (ssize_t)len);
		at += len;
	}
	free(data);
	return NULL;
}

static void *receives(void *argument)
{
	struct half *half = argument;
	unsigned char *data = malloc(half->piece);
	size_t at = 0;
	while (at < MUCH) {
		ssize_t got = rrecv(half->fd, data, half->piece, 0), i;
		MUST(got > 0);
		for (i = 0; i < got; i++)
			if (data[i] != byte_at(at + (size_t)i, half->seed)) {
				printf("byte %zu is wrong\n", at + (size_t)i);
				exit(1);
			}
		at += (size_t)got;
	}
	free(data);
	return NULL;
}

/* Sends and receives on both sockets at once, with four threads. */
static void both_ways(size_t first, size_t second)
{
	int pair[2], i;
	pthread_t threads[4];
	connected(pair);
	struct half halves[4] = { { pair[0], 1, first }, { pair[1], 1, second }, { pair[1], 2, first }, { pair[0], 2, second } };
	for (i = 0; i < 4; i++)
		GOOD(pthread_create(&threads[i], NULL, i % 2 ? receives : sends, &halves[i]));
	for (i = 0; i < 4; i++)
		GOOD(pthread_join(threads[i], NULL));
	GOOD(rclose(pair[0]));
	GOOD(rclose(pair[1]));
}

/* Small rings and queues, so that credits and targets are renewed often. */
static void small_rings(void)
{
	int small = 1, one = 2, fds[2], server = rsocket(AF_INET, SOCK_STREAM, 0), i;
	struct sockaddr_in address = loopback(0);
	socklen_t len = sizeof address;
	fds[0] = rsocket(AF_INET, SOCK_STREAM, 0);
	fds[1] = server;
	for (i = 0; i < 2; i++) {
		GOOD(rsetsockopt(fds[i], SOL_SOCKET, SO_RCVBUF, &small, sizeof small));
		GOOD(rsetsockopt(fds[i], SOL_SOCKET, SO_SNDBUF, &small, sizeof small));
		GOOD(rsetsockopt(fds[i], SOL_RDMA, RDMA_SQSIZE, &one, sizeof one));
		GOOD(rsetsockopt(fds[i], SOL_RDMA, RDMA_RQSIZE, &one, sizeof one));
	}
	GOOD(rbind(server, ADDRESS(address), sizeof address));
	GOOD(rlisten(server, 1));
	GOOD(rgetsockname(server, ADDRESS(address), &len));
	GOOD(rconnect(fds[0], ADDRESS(address), sizeof address));
	fds[1] = raccept(server, NULL, NULL);
	MUST(fds[1] >= 0);
	pthread_t threads[2];
	struct half halves[2] = { { fds[0], 3, 5000 }, { fds[1], 3, 777 } };
	GOOD(pthread_create(&threads[0], NULL, sends, &halves[0]));
	GOOD(pthread_create(&threads[1], NULL, receives, &halves[1]));
	for (i = 0; i < 2; i++)
		GOOD(pthread_join(threads[i], NULL));
	GOOD(rclose(fds[0]));
	GOOD(rclose(fds[1]));
	GOOD(rclose(server));
}

/* Memory that the peer addresses by offset. */
static void by_offset(void)
{
	int areas = 4, fd = rsocket(AF_INET, SOCK_STREAM, 0), other, server, i;
	static char memory[100000], text[4];
	uint16_t port;
	server = listener(&port);
	GOOD(rsetsockopt(server, SOL_RDMA, RDMA_IOMAPSIZE, &areas, sizeof areas));
	GOOD(rsetsockopt(fd, SOL_RDMA, RDMA_IOMAPSIZE, &areas, sizeof areas));
	struct sockaddr_in to = loopback(port);
	GOOD(rconnect(fd, ADDRESS(to), sizeof to));
	other = raccept(server, NULL, NULL);
	MUST(other >= 0);
	for (i = 0; i < 4; i++)
		TRUE(riomap(other, memory + 1000 * i, 1000, PROT_WRITE, 0, 5000 + 1000 * i) == 5000 + 1000 * i);
	FAILS(ENOBUFS, riomap(other, memory + 9000, 1, PROT_WRITE, 0, 0));
	TRUE(rsend(other, "map", 4, 0) == 4 && rrecv(fd, text, 4, MSG_WAITALL) == 4);
	/* A write that spans two areas. */
	char data[1500];
	memset(data, 'x', sizeof data);
	TRUE(riowrite(fd, data, sizeof data, 5500, 0) == sizeof data);
	TRUE(rsend(fd, "end", 4, 0) == 4 && rrecv(other, text, 4, MSG_WAITALL) == 4);
	TRUE(memory[499] == 0 && memory[500] == 'x' && memory[1999] == 'x' && memory[2000] == 0);
	FAILS(EINVAL, (long)riowrite(fd, data, 1, 4999, 0));
	FAILS(EINVAL, (long)riowrite(fd, data, 1, 9000, 0));
	/* After riounmap, writes to the area fail, and its record can be reused. */
	GOOD(riounmap(other, memory, 1000));
	FAILS(EINVAL, riounmap(other, memory, 1000));
	TRUE(rsend(other, "gon", 4, 0) == 4 && rrecv(fd, text, 4, MSG_WAITALL) == 4);
	FAILS(EINVAL, (long)riowrite(fd, data, 1, 5500, 0));
	TRUE(riomap(other, memory + 50000, 50000, PROT_WRITE, 0, -1) == (off_t)(uintptr_t)(memory + 50000));
	TRUE(rsend(other, "new", 4, 0) == 4 && rrecv(fd, text, 4, MSG_WAITALL) == 4);
	TRUE(riowrite(fd, "here", 5, (off_t)(uintptr_t)(memory + 99000), 0) == 5);
	TRUE(rsend(fd, "end", 4, 0) == 4 && rrecv(other, text, 4, MSG_WAITALL) == 4);
	TRUE(!strcmp(memory + 99000, "here"));
	GOOD(rclose(fd));
	GOOD(rclose(other));
	GOOD(rclose(server));
}

static uint16_t port_of_child(int from)
{
	uint16_t port;
	MUST(read(from, &port, sizeof port) == sizeof port);
	return port;
}

/* Forks a child that echoes everything it receives. Called before the library is used. */
static pid_t echoes(int to)
{
	pid_t child = fork();
	MUST(child >= 0);
	if (child)
		return child;
	begin();
	uint16_t port;
	int fd = listener(&port);
	MUST(write(to, &port, sizeof port) == sizeof port);
	for (;;) {
		static char data[70000];
		int one = raccept(fd, NULL, NULL);
		ssize_t got;
		MUST(one >= 0);
		while ((got = rrecv(one, data, sizeof data, 0)) > 0)
			MUST(rsend(one, data, (size_t)got, 0) == got);
		MUST(got == 0);
		rclose(one);
	}
}

static void processes(pid_t child, int from)
{
	uint16_t port = port_of_child(from);
	static char data[50000], back[50000];
	int round, fd, status;
	for (round = 0; round < 20; round++) {
		memset(data, 'a' + round, sizeof data);
		fd = client(port);
		MUST(rsend(fd, data, sizeof data, 0) == sizeof data);
		MUST(rrecv(fd, back, sizeof back, MSG_WAITALL) == sizeof back);
		TRUE(!memcmp(data, back, sizeof data));
		GOOD(rclose(fd));
	}
	/* Killing the peer ends a blocking receive. */
	fd = client(port);
	MUST(rsend(fd, data, 10, 0) == 10 && rrecv(fd, back, 10, MSG_WAITALL) == 10);
	kill(child, SIGKILL);
	MUST(waitpid(child, &status, 0) == child);
	ssize_t got = rrecv(fd, back, 1, 0);
	TRUE(got == 0 || (got == -1 && errno == ECONNRESET));
	FAILS(ECONNRESET, rsend(fd, data, 1, 0));
	TRUE(polled(fd, POLLOUT, 60000) & POLLHUP);
	GOOD(rclose(fd));
	fd = rsocket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in to = loopback(port);
	FAILS(ECONNREFUSED, rconnect(fd, ADDRESS(to), sizeof to));
	GOOD(rclose(fd));
}

int main(void)
{
	int pipes[2];
	begin();
	GOOD(pipe(pipes));
	pid_t child = echoes(pipes[1]);
	processes(child, pipes[0]);
	both_ways(100000, 4096);
	both_ways(333, 70000);
	small_rings();
	by_offset();
	return finish();
}
