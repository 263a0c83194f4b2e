/* An ordinary HTTP server, without RDMA calls. It answers "GET /N" with N bytes, and exits after three connections.
 * Arguments: the address, if it is not the loopback address, and the port. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons((unsigned short)atoi(argv[argc - 1])) };
	int one = 1, left, fd = socket(AF_INET, SOCK_STREAM, 0);
	at.sin_addr.s_addr = argc == 3 ? inet_addr(argv[1]) : htonl(INADDR_LOOPBACK);
	alarm(250);
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof at) || listen(fd, 5))
		return 1;
	for (left = 3; left > 0; left--) {
		static char text[1 << 20];
		char *end = text;
		int peer = accept(fd, NULL, NULL);
		ssize_t got;
		if (peer < 0)
			return 2;
		do {
			got = read(peer, end, (size_t)(text + sizeof text - end - 1));
			if (got <= 0)
				return 3;
			end += got;
			*end = 0;
		} while (!strstr(text, "\r\n\r\n"));
		int size = 0;
		sscanf(text, "GET /%d", &size);
		int len = sprintf(text, "HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n", size);
		memset(text + len, 'x', (size_t)size);
		if (write(peer, text, (size_t)(len + size)) != len + size)
			return 4;
		shutdown(peer, SHUT_WR);
		while (read(peer, text, sizeof text) > 0)
			;
		close(peer);
	}
	close(fd);
	printf("served\n");
	return 0;
}
