/* Datagrams through rsockets. */
#include "sockets.h"

static int bound(struct sockaddr_in *at)
{
	socklen_t len = sizeof *at;
	int fd = rsocket(AF_INET, SOCK_DGRAM, 0);
	MUST(fd >= 0);
	*at = loopback(0);
	GOOD(rbind(fd, (struct sockaddr *)at, sizeof *at));
	GOOD(rgetsockname(fd, (struct sockaddr *)at, &len));
	TRUE(at->sin_port != 0);
	return fd;
}

int main(void)
{
	static char big[5000], back[5000];
	struct sockaddr_in at[3], from, far = loopback(htons(9));
	socklen_t len = sizeof from;
	int fds[3], i, round, value;
	begin();
	for (i = 0; i < 3; i++)
		fds[i] = bound(&at[i]);
	FAILS(EDESTADDRREQ, rsend(fds[0], "x", 1, 0));
	FAILS(EMSGSIZE, rsendto(fds[0], big, sizeof big, 0, ADDRESS(at[1]), sizeof at[1]));
	FAILS(EAGAIN, rrecv(fds[0], back, 1, MSG_DONTWAIT));
	FAILS(EOPNOTSUPP, rlisten(fds[0], 1));
	FAILS(EOPNOTSUPP, raccept(fds[0], NULL, NULL));
	FAILS(ENOTCONN, rgetpeername(fds[0], ADDRESS(from), &len));
	far.sin_addr.s_addr = inet_addr("192.0.2.1");
	FAILS(ENETUNREACH, rsendto(fds[0], "x", 1, 0, ADDRESS(far), sizeof far));
	TRUE(polled(fds[0], POLLIN | POLLOUT, 0) == POLLOUT);
	/* There and back. The first datagram travels over UDP, the others between queue pairs. */
	for (round = 0; round < 200; round++) {
		size_t size = round == 0 ? 0 : (size_t)(round * 20);
		memset(big, 'a' + round % 26, size);
		TRUE(rsendto(fds[0], big, size, 0, ADDRESS(at[1]), sizeof at[1]) == (ssize_t)size);
		len = sizeof from;
		MUST(rrecvfrom(fds[1], back, sizeof back, 0, ADDRESS(from), &len) == (ssize_t)size);
		TRUE(!memcmp(big, back, size) && from.sin_port == at[0].sin_port && from.sin_addr.s_addr == at[0].sin_addr.s_addr);
		TRUE(rsendto(fds[1], back, size, 0, ADDRESS(from), len) == (ssize_t)size);
		TRUE(polled(fds[0], POLLIN, 60000) == POLLIN);
		MUST(rrecv(fds[0], back, sizeof back, MSG_PEEK) == (ssize_t)size);
		MUST(rrecv(fds[0], back, sizeof back, 0) == (ssize_t)size);
	}
	/* What does not fit is discarded. */
	TRUE(rsendto(fds[0], "abcdef", 6, 0, ADDRESS(at[1]), sizeof at[1]) == 6);
	struct iovec part = { back, 3 };
	struct msghdr message = { .msg_name = &from, .msg_namelen = sizeof from, .msg_iov = &part, .msg_iovlen = 1 };
	TRUE(rrecvmsg(fds[1], &message, 0) == 3 && message.msg_flags == MSG_TRUNC && message.msg_namelen == sizeof from);
	/* A connected socket receives only from its peer. */
	GOOD(rconnect(fds[0], ADDRESS(at[1]), sizeof at[1]));
	GOOD(rgetpeername(fds[0], ADDRESS(from), &len));
	TRUE(from.sin_port == at[1].sin_port);
	TRUE(rsendto(fds[2], "no", 2, 0, ADDRESS(at[0]), sizeof at[0]) == 2);
	TRUE(rsend(fds[0], "yes", 3, 0) == 3);
	TRUE(rrecv(fds[1], back, sizeof back, 0) == 3);
	TRUE(rsendto(fds[1], "yes", 3, 0, ADDRESS(at[0]), sizeof at[0]) == 3);
	TRUE(rrecv(fds[0], back, sizeof back, 0) == 3);
	len = sizeof value;
	GOOD(rgetsockopt(fds[0], SOL_SOCKET, SO_TYPE, &value, &len));
	TRUE(value == SOCK_DGRAM);
	/* Datagrams of an ordinary UDP socket, mostly malformed, do no harm. */
	int plain = socket(AF_INET, SOCK_DGRAM, 0);
	for (i = 0; i < 40; i++) {
		memset(big, i % 2 ? 0x55 : 0, 40);
		big[4] = 1;
		big[5] = i % 4 ? 0 : 7;
		big[6] = i % 3 ? 16 : 28;
		sendto(plain, big, (size_t)i, 0, ADDRESS(at[2]), sizeof at[2]);
	}
	TRUE(rsendto(fds[1], "still", 5, 0, ADDRESS(at[2]), sizeof at[2]) == 5);
	do
		MUST((value = (int)rrecv(fds[2], back, sizeof back, 0)) >= 0);
	while (value != 5 || memcmp(back, "still", 5));
	close(plain);
	for (i = 0; i < 3; i++)
		GOOD(rclose(fds[i]));
	TRUE(rclose(fds[0]) == EBADF);
	return finish();
}
