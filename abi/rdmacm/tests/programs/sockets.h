/* Shared by the programs that test rsockets. */
#include "common.h"
#include <sys/socket.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/mman.h>
#include <rdma/rsocket.h>

/* An address without memory. */
__attribute__((unused)) static char *no_memory(void)
{
	void *at = mmap(NULL, 65536, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	MUST(at != MAP_FAILED);
	return at;
}

/* Creates a listener on a free port of 127.0.0.1. */
__attribute__((unused)) static int listener(uint16_t *port_be)
{
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in address = loopback(0);
	socklen_t len = sizeof address;
	MUST(fd >= 0);
	GOOD(rbind(fd, ADDRESS(address), sizeof address));
	GOOD(rlisten(fd, 4));
	GOOD(rgetsockname(fd, ADDRESS(address), &len));
	TRUE(len == sizeof address && address.sin_port != 0 && address.sin_addr.s_addr == htonl(INADDR_LOOPBACK));
	*port_be = address.sin_port;
	return fd;
}

/* Creates a socket that is connected to a port. */
__attribute__((unused)) static int client(uint16_t port_be)
{
	int fd = rsocket(AF_INET, SOCK_STREAM, IPPROTO_TCP);
	struct sockaddr_in to = loopback(port_be);
	MUST(fd >= 0);
	MUST(rconnect(fd, ADDRESS(to), sizeof to) == 0);
	return fd;
}

/* Creates two sockets that are connected to each other. */
__attribute__((unused)) static void connected(int pair[2])
{
	uint16_t port;
	int fd = listener(&port);
	pair[0] = client(port);
	pair[1] = raccept(fd, NULL, NULL);
	MUST(pair[1] >= 0);
	GOOD(rclose(fd));
}

__attribute__((unused)) static short polled(int fd, short events, int timeout)
{
	struct pollfd entry = { .fd = fd, .events = events };
	int found = rpoll(&entry, 1, timeout);
	TRUE(found == (entry.revents != 0));
	return entry.revents;
}
