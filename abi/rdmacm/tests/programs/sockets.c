/* Every rsockets call, with valid and invalid arguments, in right and wrong states. */
#include "sockets.h"

static void numbers_that_are_not_sockets(void)
{
	char byte = 0;
	struct iovec buffer = { &byte, 1 };
	struct msghdr message = { .msg_iov = &buffer, .msg_iovlen = 1 };
	struct sockaddr_in address = loopback(0);
	socklen_t len = sizeof address;
	int pipes[2], fd;
	GOOD(pipe(pipes));
	int wrong[] = { -1, 12345, pipes[0] };
	for (fd = 0; fd < 3; fd++) {
		int n = wrong[fd];
		FAILS(EBADF, rbind(n, ADDRESS(address), len));
		FAILS(EBADF, rlisten(n, 1));
		FAILS(EBADF, raccept(n, NULL, NULL));
		FAILS(EBADF, rconnect(n, ADDRESS(address), len));
		FAILS(EBADF, rshutdown(n, SHUT_RDWR));
		TRUE(rclose(n) == EBADF);
		FAILS(EBADF, rrecv(n, &byte, 1, 0));
		FAILS(EBADF, rrecvfrom(n, &byte, 1, 0, NULL, NULL));
		FAILS(EBADF, rrecvmsg(n, &message, 0));
		FAILS(EBADF, rsend(n, &byte, 1, 0));
		FAILS(EBADF, rsendto(n, &byte, 1, 0, NULL, 0));
		FAILS(EBADF, rsendmsg(n, &message, 0));
		FAILS(EBADF, rread(n, &byte, 1));
		FAILS(EBADF, rreadv(n, &buffer, 1));
		FAILS(EBADF, rwrite(n, &byte, 1));
		FAILS(EBADF, rwritev(n, &buffer, 1));
		FAILS(EBADF, rgetpeername(n, ADDRESS(address), &len));
		FAILS(EBADF, rgetsockname(n, ADDRESS(address), &len));
		FAILS(EBADF, rsetsockopt(n, SOL_SOCKET, SO_REUSEADDR, &bad, sizeof bad));
		FAILS(EBADF, rgetsockopt(n, SOL_SOCKET, SO_REUSEADDR, &bad, &len));
		FAILS(EBADF, rfcntl(n, F_GETFL));
		FAILS(EBADF, riomap(n, &byte, 1, PROT_WRITE, 0, 0));
		FAILS(EBADF, riounmap(n, &byte, 1));
		FAILS(EBADF, (long)riowrite(n, &byte, 1, 0, 0));
	}
	close(pipes[0]);
	close(pipes[1]);
}

static void unsupported_sockets(void)
{
	FAILS(EOPNOTSUPP, rsocket(AF_UNIX, SOCK_STREAM, 0));
	FAILS(EOPNOTSUPP, rsocket(AF_INET, SOCK_RAW, 0));
	FAILS(EOPNOTSUPP, rsocket(AF_INET, SOCK_STREAM, IPPROTO_UDP));
	FAILS(EOPNOTSUPP, rsocket(-1, -1, -1));
	/* As in the stock library: librspreload then falls back to an ordinary socket. */
	FAILS(EOPNOTSUPP, rsocket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
	FAILS(EOPNOTSUPP, rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
}

static void calls_in_wrong_states(void)
{
	char byte = 0;
	struct sockaddr_in address = loopback(0), far = address, peer;
	struct sockaddr family = { .sa_family = AF_UNIX };
	socklen_t len = sizeof peer;
	uint16_t port;
	int pair[2], fd = rsocket(AF_INET, SOCK_STREAM, 0), other;
	MUST(fd >= 0);
	FAILS(EINVAL, rbind(fd, NULL, 0));
	FAILS(EINVAL, rbind(fd, ADDRESS(address), 3));
	FAILS(EAFNOSUPPORT, rbind(fd, &family, sizeof family));
	FAILS(ENOTCONN, rsend(fd, &byte, 1, 0));
	FAILS(ENOTCONN, rrecv(fd, &byte, 1, 0));
	FAILS(ENOTCONN, rshutdown(fd, SHUT_RDWR));
	FAILS(ENOTCONN, rgetpeername(fd, ADDRESS(peer), &len));
	FAILS(ENOTCONN, riomap(fd, &byte, 1, PROT_WRITE, 0, 0));
	FAILS(EINVAL, raccept(fd, NULL, NULL));
	far.sin_addr.s_addr = inet_addr("192.0.2.1");
	FAILS(EADDRNOTAVAIL, rbind(fd, ADDRESS(far), sizeof far));
	FAILS(ENETUNREACH, rconnect(fd, ADDRESS(far), sizeof far));
	/* Connecting to a port without a listener fails. The socket can be used again. */
	address.sin_port = htons(1);
	FAILS(ECONNREFUSED, rconnect(fd, ADDRESS(address), sizeof address));
	address.sin_port = 0;
	FAILS(EINVAL, rbind(fd, ADDRESS(address), sizeof address));
	FAILS(ENOTCONN, rsend(fd, &byte, 1, 0));
	GOOD(rclose(fd));

	fd = listener(&port);
	FAILS(EINVAL, rbind(fd, ADDRESS(address), sizeof address));
	FAILS(EINVAL, rconnect(fd, ADDRESS(address), sizeof address));
	FAILS(ENOTCONN, rsend(fd, &byte, 1, 0));
	GOOD(rlisten(fd, 7));
	GOOD(rfcntl(fd, F_SETFL, (long)O_NONBLOCK));
	TRUE(rfcntl(fd, F_GETFL) == (O_RDWR | O_NONBLOCK));
	FAILS(EAGAIN, raccept(fd, NULL, NULL));
	/* The port is in use. */
	other = rsocket(AF_INET, SOCK_STREAM, 0);
	address.sin_port = port;
	FAILS(EADDRINUSE, rbind(other, ADDRESS(address), sizeof address));
	GOOD(rclose(other));
	other = client(port);
	TRUE(polled(fd, POLLIN, 60000) == POLLIN);
	len = sizeof peer;
	pair[0] = raccept(fd, ADDRESS(peer), &len);
	MUST(pair[0] >= 0);
	TRUE(len == sizeof peer && peer.sin_family == AF_INET);
	len = sizeof address;
	GOOD(rgetsockname(other, ADDRESS(address), &len));
	TRUE(peer.sin_port == address.sin_port && peer.sin_addr.s_addr == address.sin_addr.s_addr);
	FAILS(EISCONN, rconnect(other, ADDRESS(address), sizeof address));
	len = 4;
	GOOD(rgetpeername(other, ADDRESS(peer), &len));
	TRUE(len == sizeof peer && peer.sin_port == port);
	FAILS(EFAULT, rgetpeername(other, NULL, &len));
	len = 0;
	GOOD(rgetpeername(other, NULL, &len));
	TRUE(len == sizeof peer);
	FAILS(EINVAL, rshutdown(other, 77));
	FAILS(EFAULT, rsend(other, NULL, 1, 0));
	FAILS(EOPNOTSUPP, rsend(other, &byte, 1, MSG_OOB));
	FAILS(EOPNOTSUPP, rrecv(other, &byte, 1, MSG_OOB));
	FAILS(EINVAL, riomap(other, &byte, 1, PROT_READ, 0, 0));
	FAILS(ENOBUFS, riomap(other, &byte, 1, PROT_WRITE, 0, 0));
	FAILS(EINVAL, riounmap(other, &byte, 1));
	FAILS(EINVAL, (long)riowrite(other, &byte, 1, 0, 0));
	GOOD(rclose(pair[0]));
	GOOD(rclose(other));
	GOOD(rclose(fd));
	TRUE(rclose(fd) == EBADF);
}

static void options(void)
{
	int fd = rsocket(AF_INET6, SOCK_STREAM, 0), value, names[] = { RDMA_SQSIZE, RDMA_RQSIZE, RDMA_INLINE, RDMA_IOMAPSIZE };
	socklen_t len = sizeof value;
	struct linger linger = { 1, 3 };
	struct timeval time = { 0, 50000 };
	unsigned i;
	MUST(fd >= 0);
	TRUE(rfcntl(fd, F_GETFL) == O_RDWR);
	TRUE(rfcntl(fd, F_GETFD) == FD_CLOEXEC);
	FAILS(EOPNOTSUPP, rfcntl(fd, F_GETLK, 0L));
	for (i = 0; i < 4; i++) {
		value = 32;
		GOOD(rsetsockopt(fd, SOL_RDMA, names[i], &value, sizeof value));
		value = 0;
		GOOD(rgetsockopt(fd, SOL_RDMA, names[i], &value, &len));
		TRUE(value == 32 && len == sizeof value);
	}
	value = 0;
	FAILS(EINVAL, rsetsockopt(fd, SOL_RDMA, RDMA_SQSIZE, &value, sizeof value));
	FAILS(EOPNOTSUPP, rsetsockopt(fd, SOL_RDMA, 77, &value, sizeof value));
	FAILS(EOPNOTSUPP, rsetsockopt(fd, 77, SO_REUSEADDR, &value, sizeof value));
	FAILS(EOPNOTSUPP, rgetsockopt(fd, SOL_SOCKET, 9999, &value, &len));
	FAILS(EINVAL, rsetsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &value, 1));
	FAILS(EFAULT, rsetsockopt(fd, SOL_SOCKET, SO_REUSEADDR, NULL, sizeof value));
	FAILS(EFAULT, rgetsockopt(fd, SOL_SOCKET, SO_REUSEADDR, NULL, &len));
	int switches[][2] = { { SOL_SOCKET, SO_REUSEADDR }, { SOL_SOCKET, SO_KEEPALIVE }, { SOL_SOCKET, SO_OOBINLINE }, { IPPROTO_TCP, TCP_NODELAY }, { IPPROTO_IPV6, IPV6_V6ONLY } };
	for (i = 0; i < 5; i++) {
		value = 1;
		GOOD(rsetsockopt(fd, switches[i][0], switches[i][1], &value, sizeof value));
		value = 0;
		len = sizeof value;
		GOOD(rgetsockopt(fd, switches[i][0], switches[i][1], &value, &len));
		TRUE(value == 1);
	}
	value = 10000;
	GOOD(rsetsockopt(fd, SOL_SOCKET, SO_SNDBUF, &value, sizeof value));
	GOOD(rgetsockopt(fd, SOL_SOCKET, SO_SNDBUF, &value, &len));
	TRUE(value >= 20000);
	GOOD(rsetsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger));
	linger.l_linger = 0;
	len = sizeof linger;
	GOOD(rgetsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, &len));
	TRUE(linger.l_onoff == 1 && linger.l_linger == 3 && len == sizeof linger);
	GOOD(rclose(fd));
	/* A timeout for receiving. */
	int pair[2];
	connected(pair);
	GOOD(rsetsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time));
	FAILS(EAGAIN, rrecv(pair[0], &value, 1, 0));
	value = 5;
	FAILS(EINVAL, rsetsockopt(pair[0], SOL_RDMA, RDMA_SQSIZE, &value, sizeof value));
	GOOD(rclose(pair[0]));
	GOOD(rclose(pair[1]));
}

static void waiting(void)
{
	char byte = 7;
	int pair[2], pipes[2], fd, value;
	uint16_t port;
	fd_set reads, writes;
	struct timeval time = { 20, 0 };
	struct sockaddr_in to;
	socklen_t len = sizeof value;
	connected(pair);
	GOOD(pipe(pipes));
	struct pollfd fds[3] = { { pair[0], POLLIN, 0 }, { pipes[0], POLLIN, 0 }, { -1, POLLIN, 0 } };
	TRUE(rpoll(fds, 3, 0) == 0);
	TRUE(rpoll(fds, 3, 30) == 0);
	TRUE(rpoll(NULL, 0, 0) == 0);
	FAILS(EFAULT, rpoll(NULL, 1, 0));
	MUST(write(pipes[1], &byte, 1) == 1);
	TRUE(rpoll(fds, 3, 20000) == 1 && fds[0].revents == 0 && fds[1].revents == POLLIN);
	TRUE(rsend(pair[1], &byte, 1, 0) == 1);
	fds[1].fd = 12345;
	TRUE(rpoll(fds, 3, 20000) >= 1 && fds[1].revents == POLLNVAL);
	TRUE(polled(pair[0], POLLIN, 60000) == POLLIN);
	TRUE(polled(pair[0], POLLIN | POLLOUT, 60000) == (POLLIN | POLLOUT));
	FD_ZERO(&reads);
	FD_ZERO(&writes);
	FD_SET(pair[0], &reads);
	FD_SET(pair[1], &reads);
	FD_SET(pair[1], &writes);
	TRUE(rselect(1024, &reads, &writes, NULL, &time) == 2);
	TRUE(FD_ISSET(pair[0], &reads) && !FD_ISSET(pair[1], &reads) && FD_ISSET(pair[1], &writes));
	FAILS(EINVAL, rselect(-1, NULL, NULL, NULL, NULL));
	FAILS(EINVAL, rselect(1025, NULL, NULL, NULL, NULL));
	time.tv_sec = 0;
	TRUE(rselect(0, NULL, NULL, NULL, &time) == 0);
	/* With plain poll(), a program at least notices that something has happened. */
	struct pollfd plain = { pair[1], POLLIN, 0 };
	TRUE(polled(pair[1], POLLIN, 10) == 0);
	TRUE(rsend(pair[0], &byte, 1, 0) == 1);
	TRUE(poll(&plain, 1, 20000) == 1);
	TRUE(rrecv(pair[1], &byte, 1, MSG_DONTWAIT) == 1);
	GOOD(rclose(pair[0]));
	TRUE((polled(pair[1], POLLIN, 60000) & (POLLIN | POLLHUP)) == (POLLIN | POLLHUP));
	GOOD(rclose(pair[1]));
	close(pipes[0]);
	close(pipes[1]);
	/* A non-blocking rconnect. */
	int server = listener(&port);
	fd = rsocket(AF_INET, SOCK_STREAM, 0);
	GOOD(rfcntl(fd, F_SETFL, (long)O_NONBLOCK));
	to = loopback(port);
	TRUE(rconnect(fd, ADDRESS(to), sizeof to) == 0 || errno == EINPROGRESS);
	TRUE(polled(fd, POLLOUT, 60000) == POLLOUT);
	value = 1;
	GOOD(rgetsockopt(fd, SOL_SOCKET, SO_ERROR, &value, &len));
	TRUE(value == 0);
	FAILS(EAGAIN, rrecv(fd, &byte, 1, 0));
	GOOD(rclose(fd));
	/* The client has closed its socket before the server accepts. */
	fd = raccept(server, NULL, NULL);
	MUST(fd >= 0);
	TRUE(rrecv(fd, &byte, 1, 0) == 0);
	GOOD(rclose(fd));
	GOOD(rclose(server));
}

static void shutdowns(void)
{
	char text[8] = "";
	int pair[2];
	connected(pair);
	TRUE(rsend(pair[0], "abcd", 4, 0) == 4);
	GOOD(rshutdown(pair[0], SHUT_WR));
	FAILS(EPIPE, rsend(pair[0], "e", 1, MSG_NOSIGNAL));
	TRUE(rrecv(pair[1], text, 2, MSG_PEEK) == 2 && !memcmp(text, "ab", 2));
	TRUE(rrecv(pair[1], text, 8, MSG_WAITALL) == 4 && !memcmp(text, "abcd", 4));
	TRUE(rrecv(pair[1], text, 8, 0) == 0);
	struct iovec parts[3] = { { "fg", 2 }, { NULL, 0 }, { "hij", 3 } };
	TRUE(rwritev(pair[1], parts, 3) == 5);
	FAILS(EINVAL, rwritev(pair[1], parts, -1));
	char one[1], two[9];
	struct iovec into[2] = { { one, 1 }, { two, 9 } };
	struct msghdr message = { .msg_iov = into, .msg_iovlen = 2 };
	TRUE(rrecvmsg(pair[0], &message, 0) == 5 && one[0] == 'f' && !memcmp(two, "ghij", 4));
	GOOD(rshutdown(pair[1], SHUT_RDWR));
	TRUE(rrecv(pair[0], text, 8, 0) == 0);
	FAILS(EPIPE, rsend(pair[1], "e", 1, 0));
	FAILS(EPIPE, rsend(pair[0], "e", 1, 0));
	GOOD(rclose(pair[0]));
	GOOD(rclose(pair[1]));
	/* Data that arrives after SHUT_RD is discarded, and does not block the peer. */
	connected(pair);
	GOOD(rshutdown(pair[1], SHUT_RD));
	static char much[1 << 20];
	TRUE(rrecv(pair[1], text, 8, 0) == 0);
	GOOD(rfcntl(pair[0], F_SETFL, (long)O_NONBLOCK));
	ssize_t sent = rsend(pair[0], much, sizeof much, 0);
	TRUE(sent > 0);
	FAILS(EAGAIN, rsend(pair[0], much, sizeof much, 0));
	TRUE(polled(pair[1], POLLIN, 60000) & POLLIN);
	TRUE(polled(pair[0], POLLOUT, 60000) == POLLOUT);
	GOOD(rclose(pair[0]));
	GOOD(rclose(pair[1]));
}

static void children(void)
{
	int status, pair[2];
	connected(pair);
	fflush(stdout);
	pid_t child = fork();
	if (!child) {
		char byte;
		errno = 0;
		_exit(rsocket(AF_INET, SOCK_STREAM, 0) != -1 || errno != ENODEV || rrecv(pair[0], &byte, 1, 0) != -1 || errno != ENODEV || rclose(pair[0]) != ENODEV);
	}
	MUST(child > 0 && waitpid(child, &status, 0) == child);
	TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	TRUE(rsend(pair[0], "x", 1, 0) == 1);
	char byte;
	TRUE(rrecv(pair[1], &byte, 1, 0) == 1 && byte == 'x');
	GOOD(rclose(pair[0]));
	GOOD(rclose(pair[1]));
}

/* Unmapped memory is refused, as the kernel does; no bytes of the stream are lost. */
static void memory_is_checked(void)
{
	char *none = no_memory(), back[16];
	struct iovec half[2] = { { "ab", 2 }, { none, 2 } }, into[2] = { { back, 2 }, { none, 2 } };
	int pair[2];
	connected(pair);
	FAILS(EFAULT, rsend(pair[0], none, 4, 0));
	FAILS(EFAULT, rwritev(pair[0], half, 2));
	TRUE(rsend(pair[0], "whole", 5, 0) == 5);
	TRUE(polled(pair[1], POLLIN, 60000) == POLLIN);
	FAILS(EFAULT, rrecv(pair[1], none, 5, 0));
	FAILS(EFAULT, rrecv(pair[1], none, 5, MSG_PEEK));
	FAILS(EFAULT, rreadv(pair[1], into, 2));
	TRUE(rrecv(pair[1], back, 5, MSG_WAITALL) == 5 && !memcmp(back, "whole", 5));
	GOOD(rclose(pair[0]));
	GOOD(rclose(pair[1]));
}

/* librspreload opens a descriptor, then accepts. Its `select` needs the larger number for the socket. */
static void accepted_sockets_get_the_lowest_free_number(void)
{
	uint16_t port;
	int server = listener(&port), other = client(port), index, fd;
	TRUE(polled(server, POLLIN, 60000) == POLLIN);
	index = open("/dev/null", O_RDONLY);
	fd = raccept(server, NULL, NULL);
	TRUE(index >= 0 && fd > index);
	TRUE(rsend(other, "x", 1, 0) == 1 && polled(fd, POLLIN, 60000) == POLLIN);
	close(index);
	GOOD(rclose(fd));
	GOOD(rclose(other));
	GOOD(rclose(server));
}

/* iperf3 reads TCP_INFO. Only the state and the segment size are meaningful. */
static void information_of_tcp(void)
{
	struct tcp_info info;
	socklen_t len = sizeof info;
	uint16_t port;
	int server = listener(&port), fd = client(port), datagrams = rsocket(AF_INET, SOCK_DGRAM, 0);
	memset(&info, 0x55, sizeof info);
	GOOD(rgetsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len));
	TRUE(info.tcpi_state == TCP_ESTABLISHED && info.tcpi_snd_mss > 0 && info.tcpi_total_retrans == 0 && len > 0);
	len = 1;
	GOOD(rgetsockopt(server, IPPROTO_TCP, TCP_INFO, &info, &len));
	TRUE(info.tcpi_state == TCP_LISTEN && len == 1);
	len = sizeof info;
	FAILS(EOPNOTSUPP, rgetsockopt(datagrams, IPPROTO_TCP, TCP_INFO, &info, &len));
	GOOD(rclose(datagrams));
	GOOD(rclose(fd));
	GOOD(rclose(server));
}

int main(void)
{
	begin();
	memory_is_checked();
	accepted_sockets_get_the_lowest_free_number();
	information_of_tcp();
	numbers_that_are_not_sockets();
	unsupported_sockets();
	calls_in_wrong_states();
	options();
	waiting();
	shutdowns();
	children();
	return finish();
}
