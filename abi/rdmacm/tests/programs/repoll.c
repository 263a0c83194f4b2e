/* epoll for rsockets: repoll_create, repoll_ctl, repoll_wait. */
#define _GNU_SOURCE
#include "sockets.h"
#include <dlfcn.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <time.h>

/* The headers of rdma-core 44 do not declare them. */
static int (*repoll_create)(int size);
static int (*repoll_ctl)(int set, int operation, int fd, struct epoll_event *event);
static int (*repoll_wait)(int set, struct epoll_event *events, int most, int timeout);

static int control(int set, int operation, int fd, uint32_t events, uint64_t data)
{
	struct epoll_event event = { .events = events, .data.u64 = data };
	return repoll_ctl(set, operation, fd, &event);
}

/* The only event within `timeout`, or 0. Its data must be `data`. */
static uint32_t event(int set, uint64_t data, int timeout)
{
	struct epoll_event events[4];
	int found = repoll_wait(set, events, 4, timeout);
	MUST(found >= 0);
	if (found == 0)
		return 0;
	TRUE(found == 1 && events[0].data.u64 == data);
	return events[0].events;
}

static void arguments(void)
{
	int set = repoll_create(1), pair[2];
	struct epoll_event events[1];
	MUST(set >= 0);
	connected(pair);
	FAILS(EINVAL, repoll_create(-1));
	FAILS(EBADF, repoll_ctl(pair[0], EPOLL_CTL_ADD, pair[1], events));
	FAILS(EFAULT, repoll_ctl(set, EPOLL_CTL_ADD, pair[0], NULL));
	FAILS(EINVAL, control(set, 77, pair[0], EPOLLIN, 0));
	FAILS(EINVAL, control(set, EPOLL_CTL_ADD, set, EPOLLIN, 0));
	FAILS(EBADF, control(set, EPOLL_CTL_ADD, 9999, EPOLLIN, 0));
	FAILS(ENOENT, control(set, EPOLL_CTL_MOD, pair[0], EPOLLIN, 0));
	FAILS(ENOENT, control(set, EPOLL_CTL_DEL, pair[0], 0, 0));
	GOOD(control(set, EPOLL_CTL_ADD, pair[0], EPOLLIN, 0));
	FAILS(EEXIST, control(set, EPOLL_CTL_ADD, pair[0], EPOLLIN, 0));
	FAILS(EBADF, repoll_wait(pair[0], events, 1, 0));
	FAILS(EINVAL, repoll_wait(set, events, 0, 0));
	FAILS(EFAULT, repoll_wait(set, NULL, 1, 0));
	TRUE(event(set, 0, 0) == 0);
	GOOD(repoll_ctl(set, EPOLL_CTL_DEL, pair[0], NULL));
	GOOD(rclose(set));
	FAILS(EBADF, repoll_wait(set, events, 1, 0));
	GOOD(rclose(pair[0]));
	GOOD(rclose(pair[1]));
}

/* Reports what is ready, as long as it is. */
static void levels(void)
{
	int set = repoll_create(1), pair[2];
	char data[100];
	connected(pair);
	GOOD(control(set, EPOLL_CTL_ADD, pair[0], EPOLLIN | EPOLLOUT | EPOLLRDHUP, 7));
	TRUE(event(set, 7, 0) == EPOLLOUT);
	TRUE(event(set, 7, -1) == EPOLLOUT);
	GOOD(control(set, EPOLL_CTL_MOD, pair[0], EPOLLIN | EPOLLRDHUP, 8));
	TRUE(event(set, 8, 20) == 0);
	MUST(rsend(pair[1], "abc", 3, 0) == 3);
	TRUE(event(set, 8, 5000) == EPOLLIN);
	MUST(rrecv(pair[0], data, 1, 0) == 1);
	TRUE(event(set, 8, 0) == EPOLLIN);
	MUST(rrecv(pair[0], data, sizeof data, 0) == 2);
	TRUE(event(set, 8, 20) == 0);
	GOOD(rclose(pair[1]));
	TRUE((event(set, 8, 5000) & (EPOLLIN | EPOLLRDHUP)) == (EPOLLIN | EPOLLRDHUP));
	MUST(rrecv(pair[0], data, sizeof data, 0) == 0);
	TRUE(event(set, 8, 0) & EPOLLHUP);
	/* A closed socket leaves the set. Its number may come back. */
	GOOD(rclose(pair[0]));
	TRUE(event(set, 8, 0) == 0);
	connected(pair);
	GOOD(control(set, EPOLL_CTL_ADD, pair[0], EPOLLOUT, 9));
	TRUE(event(set, 9, 0) == EPOLLOUT);
	GOOD(rclose(set));
	GOOD(rclose(pair[0]));
	GOOD(rclose(pair[1]));
}

/* Reports each change once. */
static void edges(void)
{
	int set = repoll_create(1), pair[2];
	char data[100];
	connected(pair);
	GOOD(rfcntl(pair[0], F_SETFL, O_NONBLOCK));
	GOOD(control(set, EPOLL_CTL_ADD, pair[0], EPOLLIN | EPOLLOUT | EPOLLET, 1));
	TRUE(event(set, 1, 0) & EPOLLOUT);
	TRUE(event(set, 1, 20) == 0);
	MUST(rsend(pair[1], "ab", 2, 0) == 2);
	TRUE(event(set, 1, 5000) & EPOLLIN);
	TRUE(event(set, 1, 20) == 0);
	/* More data is a change, although the socket was readable before. */
	MUST(rsend(pair[1], "c", 1, 0) == 1);
	TRUE(event(set, 1, 5000) & EPOLLIN);
	TRUE(event(set, 1, 20) == 0);
	MUST(rrecv(pair[0], data, sizeof data, 0) == 3);
	TRUE(rrecv(pair[0], data, sizeof data, 0) == -1 && errno == EAGAIN);
	MUST(rsend(pair[1], "d", 1, 0) == 1);
	TRUE(event(set, 1, 5000) & EPOLLIN);
	GOOD(rclose(set));
	GOOD(rclose(pair[0]));
	GOOD(rclose(pair[1]));
}

/* A change is reported to each instance, although what it has to do with the socket makes the socket's descriptor unreadable. */
static void shared(void)
{
	int sets[2] = { repoll_create(1), repoll_create(1) }, pair[2], i, round;
	char data[100] = "";
	ssize_t got, sent = 0;
	connected(pair);
	GOOD(rfcntl(pair[0], F_SETFL, O_NONBLOCK));
	for (i = 0; i < 2; i++) {
		GOOD(control(sets[i], EPOLL_CTL_ADD, pair[0], EPOLLIN | EPOLLOUT | EPOLLET, 1));
		TRUE(event(sets[i], 1, 0) == EPOLLOUT);
		TRUE(event(sets[i], 1, 20) == 0);
	}
	for (round = 0; round < 20; round++) {
		/* Every second time, the earlier data stays: only a count tells this change from the last one. */
		MUST(rsend(pair[1], "a", 1, 0) == 1);
		for (i = 0; i < 2; i++)
			TRUE(event(sets[i], 1, 5000) == (EPOLLIN | EPOLLOUT));
		for (i = 0; i < 2; i++)
			TRUE(event(sets[i], 1, 0) == 0);
		if (round % 2)
			MUST(rrecv(pair[0], data, sizeof data, 0) == 2);
	}
	/* A full socket has room again. The data that the peer sends meanwhile does not count as room. */
	GOOD(control(sets[1], EPOLL_CTL_MOD, pair[0], EPOLLOUT | EPOLLET, 2));
	TRUE(event(sets[1], 2, 0) == EPOLLOUT);
	MUST(rsend(pair[1], "a", 1, 0) == 1);
	TRUE(event(sets[0], 1, 5000) == (EPOLLIN | EPOLLOUT));
	TRUE(event(sets[1], 2, 20) == 0);
	while ((got = rsend(pair[0], data, sizeof data, 0)) > 0)
		sent += got;
	TRUE(errno == EAGAIN);
	TRUE(event(sets[1], 2, 20) == 0);
	while (sent > 0) {
		MUST((got = rrecv(pair[1], data, sizeof data, 0)) > 0);
		sent -= got;
	}
	TRUE(event(sets[0], 1, 5000) == (EPOLLIN | EPOLLOUT));
	TRUE(event(sets[1], 2, 5000) == EPOLLOUT);
	for (i = 0; i < 2; i++) {
		GOOD(rclose(sets[i]));
		GOOD(rclose(pair[i]));
	}
}

/* Reports once, until the program asks again. */
static void once(void)
{
	int set = repoll_create(1), pair[2];
	connected(pair);
	GOOD(control(set, EPOLL_CTL_ADD, pair[0], EPOLLOUT | EPOLLONESHOT, 1));
	TRUE(event(set, 1, 0) == EPOLLOUT);
	TRUE(event(set, 1, 0) == 0);
	MUST(rsend(pair[1], "ab", 2, 0) == 2);
	TRUE(event(set, 1, 20) == 0);
	GOOD(control(set, EPOLL_CTL_MOD, pair[0], EPOLLIN | EPOLLONESHOT, 2));
	TRUE(event(set, 2, 5000) == EPOLLIN);
	GOOD(control(set, EPOLL_CTL_DEL, pair[0], 0, 0));
	GOOD(control(set, EPOLL_CTL_ADD, pair[0], EPOLLIN, 3));
	TRUE(event(set, 3, 0) == EPOLLIN);
	GOOD(rclose(set));
	GOOD(rclose(pair[0]));
	GOOD(rclose(pair[1]));
}

/* Ordinary descriptors, and datagrams. */
static void others(void)
{
	int set = repoll_create(1), counter = eventfd(0, EFD_CLOEXEC);
	int fds[2] = { rsocket(AF_INET, SOCK_DGRAM, 0), rsocket(AF_INET, SOCK_DGRAM, 0) };
	struct sockaddr_in to = loopback(0);
	socklen_t len = sizeof to;
	uint64_t one = 1;
	char data[10];
	GOOD(rbind(fds[0], ADDRESS(to), sizeof to));
	GOOD(rgetsockname(fds[0], ADDRESS(to), &len));
	GOOD(control(set, EPOLL_CTL_ADD, counter, EPOLLIN, 1));
	GOOD(control(set, EPOLL_CTL_ADD, fds[0], EPOLLIN, 2));
	TRUE(event(set, 0, 20) == 0);
	MUST(write(counter, &one, sizeof one) == sizeof one);
	TRUE(event(set, 1, 5000) == EPOLLIN);
	MUST(read(counter, &one, sizeof one) == sizeof one);
	MUST(rsendto(fds[1], "x", 1, 0, ADDRESS(to), sizeof to) == 1);
	TRUE(event(set, 2, 5000) == EPOLLIN);
	MUST(rrecv(fds[0], data, sizeof data, 0) == 1);
	TRUE(event(set, 2, 20) == 0);
	FAILS(EEXIST, control(set, EPOLL_CTL_ADD, counter, EPOLLIN, 1));
	GOOD(control(set, EPOLL_CTL_DEL, counter, 0, 0));
	close(counter);
	GOOD(rclose(fds[0]));
	GOOD(rclose(fds[1]));
}

static int open_descriptors(void)
{
	int fd, count = 0;
	for (fd = 0; fd < 1000; fd++)
		count += fcntl(fd, F_GETFD) >= 0;
	return count;
}

/* Sets that were closed as descriptors do not harm what gets their numbers, and leave nothing behind. */
static void closed_as_descriptors(void)
{
	struct sockaddr_in name;
	socklen_t len = sizeof name;
	int set, sets[8], before = open_descriptors(), i, fd;
	/* Another set gets the number. */
	set = repoll_create(1);
	for (i = 0; i < 20; i++) {
		close(set);
		TRUE(repoll_create(1) == set);
	}
	GOOD(rclose(set));
	TRUE(open_descriptors() == before);
	/* A socket has several descriptors. One of the numbers becomes its own. */
	for (i = 0; i < 8; i++)
		sets[i] = repoll_create(1);
	for (i = 0; i < 8; i++)
		close(sets[i]);
	fd = rsocket(AF_INET, SOCK_STREAM, 0);
	TRUE(fd >= sets[0] && fd <= sets[7]);
	GOOD(rclose(fd));
	FAILS(EBADF, rgetsockname(fd, ADDRESS(name), &len));
	/* A descriptor of the program gets the number. */
	set = repoll_create(1);
	close(set);
	MUST((fd = eventfd(0, EFD_CLOEXEC)) == set);
	TRUE(rclose(fd) == EBADF);
	GOOD(close(fd));
	TRUE(open_descriptors() == before);
}

static atomic_int waiter;

static void *waits(void *set)
{
	struct epoll_event events[1];
	atomic_store(&waiter, gettid());
	FAILS(EBADF, repoll_wait(*(int *)set, events, 1, -1));
	return NULL;
}

/* Starts a thread that waits for a set. Returns when it sleeps. */
static pthread_t start_waiting(int *set)
{
	pthread_t thread;
	char path[64], line[256];
	atomic_store(&waiter, 0);
	GOOD(pthread_create(&thread, NULL, waits, set));
	while (!atomic_load(&waiter))
		usleep(1000);
	snprintf(path, sizeof path, "/proc/self/task/%d/stat", atomic_load(&waiter));
	do {
		FILE *stat;
		usleep(1000);
		MUST((stat = fopen(path, "r")));
		MUST(fgets(line, sizeof line, stat));
		fclose(stat);
	} while (!strstr(line, ") S "));
	return thread;
}

/* Closing a set wakes the threads that wait for it. */
static void closed_while_waiting(void)
{
	int set = repoll_create(1), same;
	pthread_t thread = start_waiting(&set);
	GOOD(rclose(set));
	GOOD(pthread_join(thread, NULL));
	set = repoll_create(1);
	thread = start_waiting(&set);
	close(set);
	same = repoll_create(1);
	TRUE(same == set);
	GOOD(pthread_join(thread, NULL));
	GOOD(rclose(same));
}

/* Ready sockets and descriptors do not keep others from being reported, although there is room for one event only. */
static void fair(void)
{
	int set = repoll_create(1), other = repoll_create(1), pairs[3][2], counter = eventfd(1, EFD_CLOEXEC), seen[5] = { 0 }, i;
	struct epoll_event events[1];
	MUST(repoll_wait(set, events, 1, 0) == 0);
	for (i = 0; i < 3; i++) {
		connected(pairs[i]);
		GOOD(control(set, EPOLL_CTL_ADD, pairs[i][0], i == 2 ? EPOLLIN : EPOLLOUT, (uint64_t)i));
	}
	GOOD(control(set, EPOLL_CTL_ADD, counter, EPOLLIN, 3));
	GOOD(control(other, EPOLL_CTL_ADD, pairs[2][0], EPOLLIN | EPOLLET, 4));
	for (i = 0; i < 20; i++)
		MUST(repoll_wait(set, events, 1, 0) == 1);
	/* The other set takes the event. */
	MUST(rsend(pairs[2][1], "a", 1, 0) == 1);
	TRUE(event(other, 4, 5000) == EPOLLIN);
	for (i = 0; i < 50000 && !(seen[0] && seen[1] && seen[2] && seen[3]); i++) {
		MUST(repoll_wait(set, events, 1, 0) == 1);
		seen[events[0].data.u64]++;
		usleep(100);
	}
	TRUE(seen[0] && seen[1] && seen[2] && seen[3]);
	/* What is ready is reported, whichever kind was preferred. */
	GOOD(control(set, EPOLL_CTL_MOD, pairs[0][0], EPOLLIN | EPOLLET, 0));
	GOOD(repoll_ctl(set, EPOLL_CTL_DEL, pairs[1][0], NULL));
	GOOD(repoll_ctl(set, EPOLL_CTL_DEL, pairs[2][0], NULL));
	for (i = 0; i < 20; i++)
		MUST(repoll_wait(set, events, 1, 0) == 1 && events[0].data.u64 == 3);
	close(counter);
	for (i = 0; i < 3; i++) {
		GOOD(rclose(pairs[i][0]));
		GOOD(rclose(pairs[i][1]));
	}
	GOOD(rclose(set));
	GOOD(rclose(other));
}

/* Each kind of change is an edge for each of two sets: connections, datagrams, a shutdown, an end. */
static void kinds_of_edges(void)
{
	uint16_t port;
	int sets[2] = { repoll_create(1), repoll_create(1) }, fd = listener(&port), pair[2], clients[2], i;
	int datagrams[2] = { rsocket(AF_INET, SOCK_DGRAM, 0), rsocket(AF_INET, SOCK_DGRAM, 0) };
	struct sockaddr_in to = loopback(0);
	socklen_t len = sizeof to;
	GOOD(rlisten(fd, 8));
	GOOD(rfcntl(fd, F_SETFL, O_NONBLOCK));
	connected(pair);
	GOOD(rbind(datagrams[0], ADDRESS(to), sizeof to));
	GOOD(rgetsockname(datagrams[0], ADDRESS(to), &len));
	for (i = 0; i < 2; i++) {
		GOOD(control(sets[i], EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET, 1));
		GOOD(control(sets[i], EPOLL_CTL_ADD, pair[0], EPOLLIN | EPOLLRDHUP | EPOLLET, 2));
		GOOD(control(sets[i], EPOLL_CTL_ADD, datagrams[0], EPOLLIN | EPOLLET, 3));
		TRUE(event(sets[i], 0, 20) == 0);
	}
	for (i = 0; i < 2; i++) {
		/* The second connection arrives while the first one waits. */
		MUST((clients[i] = client(port)) >= 0);
		TRUE(event(sets[0], 1, 5000) == EPOLLIN);
		TRUE(event(sets[1], 1, 5000) == EPOLLIN);
	}
	for (i = 0; i < 3; i++) {
		MUST(rsendto(datagrams[1], "x", 1, 0, ADDRESS(to), sizeof to) == 1);
		TRUE(event(sets[0], 3, 5000) == EPOLLIN);
		TRUE(event(sets[1], 3, 5000) == EPOLLIN);
	}
	GOOD(rshutdown(pair[1], SHUT_WR));
	TRUE(event(sets[0], 2, 5000) == (EPOLLIN | EPOLLRDHUP));
	TRUE(event(sets[1], 2, 5000) == (EPOLLIN | EPOLLRDHUP));
	GOOD(rclose(pair[1]));
	for (i = 0; i < 2; i++)
		TRUE(event(sets[i], 2, 5000) & EPOLLHUP);
	for (i = 0; i < 2; i++) {
		GOOD(rclose(sets[i]));
		GOOD(rclose(clients[i]));
		GOOD(rclose(datagrams[i]));
	}
	GOOD(rclose(fd));
	GOOD(rclose(pair[0]));
}

/* A child that only waits, until it is killed. Without handlers, the library does not learn of the child: it has copies of all descriptors. */
static pid_t new_child(int with_handlers)
{
	pid_t child = with_handlers ? fork() : (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
	MUST(child >= 0);
	if (child == 0) {
		alarm(250);
		for (;;)
			pause();
	}
	return child;
}

static int milliseconds_of_this_thread(void)
{
	struct timespec time;
	GOOD(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time));
	return (int)(time.tv_sec * 1000 + time.tv_nsec / 1000000);
}

/* Closed sockets leave each set at once, although a forked child has copies of their descriptors. */
static void closed_with_copies(int with_handlers)
{
	int sets[2] = { repoll_create(1), repoll_create(1) }, pair[2], datagram = rsocket(AF_INET, SOCK_DGRAM, 0), i, before;
	pid_t child;
	connected(pair);
	for (i = 0; i < 2; i++) {
		GOOD(control(sets[i], EPOLL_CTL_ADD, pair[0], EPOLLIN, 1));
		GOOD(control(sets[i], EPOLL_CTL_ADD, datagram, EPOLLIN, 2));
		TRUE(event(sets[i], 0, 20) == 0);
	}
	child = new_child(with_handlers);
	GOOD(rclose(pair[0]));
	GOOD(rclose(datagram));
	for (i = 0; i < 2; i++) {
		struct pollfd entry = { .fd = sets[i], .events = POLLIN };
		before = milliseconds_of_this_thread();
		TRUE(event(sets[i], 0, 200) == 0);
		/* A thread that is woken all the time uses all of the 200 ms. */
		TRUE(milliseconds_of_this_thread() - before < 100);
		TRUE(poll(&entry, 1, 0) == 0);
	}
	GOOD(kill(child, SIGKILL));
	MUST(waitpid(child, NULL, 0) == child);
	GOOD(rclose(pair[1]));
	GOOD(rclose(sets[0]));
	GOOD(rclose(sets[1]));
}

#define CLIENTS 40
#define ROUNDS 50

static void *asks(void *argument)
{
	uint16_t port = *(uint16_t *)argument;
	int fd = client(port), i;
	char data[300], back[300];
	for (i = 0; i < ROUNDS; i++) {
		size_t len = (size_t)(1 + i * 5), got = 0;
		memset(data, i, len);
		MUST(rsend(fd, data, len, 0) == (ssize_t)len);
		while (got < len) {
			ssize_t more = rrecv(fd, back + got, len - got, 0);
			MUST(more > 0);
			got += (size_t)more;
		}
		MUST(!memcmp(data, back, len));
	}
	GOOD(rclose(fd));
	return NULL;
}

/* A server as programs with epoll write it: one thread, non-blocking sockets, edges. It has room for few events at a time. */
static void server(uint32_t flags)
{
	uint16_t port;
	int fd = listener(&port), set = repoll_create(1), open = 0, ended = 0, i;
	pthread_t threads[CLIENTS];
	GOOD(rlisten(fd, CLIENTS));
	GOOD(rfcntl(fd, F_SETFL, O_NONBLOCK));
	GOOD(control(set, EPOLL_CTL_ADD, fd, EPOLLIN | flags, (uint64_t)fd));
	for (i = 0; i < CLIENTS; i++)
		GOOD(pthread_create(&threads[i], NULL, asks, &port));
	while (ended < CLIENTS) {
		struct epoll_event events[3];
		int found = repoll_wait(set, events, 3, 60000);
		MUST(found > 0);
		for (i = 0; i < found; i++) {
			int from = (int)events[i].data.u64;
			char data[200];
			ssize_t got;
			while (from == fd) {
				int new = raccept(fd, NULL, NULL);
				if (new < 0) {
					MUST(errno == EAGAIN);
					break;
				}
				open++;
				GOOD(rfcntl(new, F_SETFL, O_NONBLOCK));
				GOOD(control(set, EPOLL_CTL_ADD, new, EPOLLIN | flags, (uint64_t)new));
			}
			if (from == fd)
				continue;
			while ((got = rrecv(from, data, sizeof data, 0)) > 0)
				MUST(rsend(from, data, (size_t)got, 0) == got);
			if (got == 0) {
				GOOD(rclose(from));
				ended++;
			} else {
				MUST(errno == EAGAIN);
			}
		}
	}
	TRUE(open == CLIENTS);
	for (i = 0; i < CLIENTS; i++)
		GOOD(pthread_join(threads[i], NULL));
	GOOD(rclose(fd));
	GOOD(rclose(set));
}

static void *find(const char *name)
{
	void *call = dlvsym(RTLD_DEFAULT, name, "RDMACM_1.5");
	if (!call)
		printf("%s of RDMACM_1.5 is missing\n", name);
	MUST(call != NULL);
	return call;
}

int main(void)
{
	repoll_create = find("repoll_create");
	repoll_ctl = find("repoll_ctl");
	repoll_wait = find("repoll_wait");
	arguments();
	levels();
	edges();
	shared();
	once();
	others();
	closed_as_descriptors();
	closed_while_waiting();
	fair();
	kinds_of_edges();
	closed_with_copies(0);
	closed_with_copies(1);
	server(0);
	server(EPOLLET);
	return finish();
}
