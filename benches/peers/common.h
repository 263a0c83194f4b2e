/* The parts that the peer benchmarks share: two pinned processes, a control page between them, timing and output.
 *
 * A benchmark is an initiator (parent, first core) and a target (child, second core). They agree on
 * what to do through a control page outside the fabric, so that the fabric under test carries only
 * the operations that are measured. The initiator waits for commands on standard input and answers each with
 * a line of JSON; between two commands both processes sleep in the kernel, so that others can be measured.
 */
#ifndef RKEY_PEERS_COMMON_H
#define RKEY_PEERS_COMMON_H

#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define BLOB 4096
#define PAGE 4096ul
#define LIVE_MAX 100000ul /* live regions during a measurement of registration */

enum kind { WRITE, READ, ATOMIC };

/* The initiator's command to the target; the target answers by storing `seq` into `done`. */
enum command { CMD_NONE, CMD_TOUCH, CMD_PINGPONG, CMD_TAGGED, CMD_SLEEP, CMD_EXIT };

struct control {
	_Alignas(128) atomic_uint seq;   /* number of the command, stored last */
	enum command command;
	uint64_t size, count;
	_Alignas(128) atomic_uint done;  /* number of the command that the target finished */
	_Alignas(128) atomic_int ready[2];
	_Alignas(128) unsigned char blob[2][BLOB]; /* addresses and keys of each side */
	size_t blob_len[2];
};

struct options {
	const char *provider, *ops, *sizes, *completion, *memory;
	int cores[2];
	bool ordered;
	unsigned timeout;    /* seconds that one command may take */
};

static struct control *control;
static struct options options = {
	.provider = "shm", .ops = "write,read,send,atomic,register", .sizes = "8,4096,65536,1048576",
	.completion = "default", .memory = "ordinary", .cores = {0, 1}, .timeout = 300,
};

static _Noreturn void die(const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	fprintf(stderr, "error: ");
	vfprintf(stderr, format, arguments);
	fprintf(stderr, "\n");
	va_end(arguments);
	exit(1);
}

static inline uint64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static inline bool listed(const char *list, const char *word)
{
	size_t length = strlen(word);
	for (const char *at = list; (at = strstr(at, word)); at += length)
		if ((at == list || at[-1] == ',') && (at[length] == 0 || at[length] == ','))
			return true;
	return false;
}

static void pin(int core)
{
	cpu_set_t set;
	if (core < 0)
		return;
	CPU_ZERO(&set);
	CPU_SET(core, &set);
	if (sched_setaffinity(0, sizeof(set), &set))
		fprintf(stderr, "warning: cannot pin to core %d: %s\n", core, strerror(errno));
}

static void *pages(size_t length)
{
	void *p = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		die("mmap of %zu bytes: %s", length, strerror(errno));
	memset(p, 1, length);
	return p;
}

/* Reads every cache line, so that the data arrives in this core's cache. */
static uint64_t touch_read(const void *p, size_t length)
{
	const volatile uint64_t *words = p;
	uint64_t sum = 0;
	for (size_t i = 0; i < length / 8; i += 8)
		sum += words[i];
	return sum;
}

/* Rewrites the whole buffer. */
static void touch_write(void *p, size_t length, uint64_t value)
{
	uint64_t *words = p;
	for (size_t i = 0; i < length / 8; i++)
		words[i] = value + i;
	atomic_signal_fence(memory_order_seq_cst);
}

/* A page of an area that is never touched, for regions that are only registered. */
static void *untouched_page(uint64_t index)
{
	static unsigned char *arena;
	if (!arena)
		arena = mmap(NULL, (LIVE_MAX + 1) * PAGE, PROT_READ | PROT_WRITE,
			     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (arena == MAP_FAILED)
		die("mmap: %s", strerror(errno));
	return arena + index * PAGE;
}

/* Operations in flight while streaming: enough to hide the latency, few enough to stay in the cache. */
static unsigned window_of(uint64_t size) { return size >= 1 << 20 ? 2 : size >= 1 << 14 ? 16 : 128; }
/* The distinct buffers of a rotating stream. */
static unsigned slots_of(uint64_t size) { return size >= 1 << 20 ? 2 : 16; }

static void barrier(int side)
{
	int turn = atomic_fetch_add(&control->ready[side], 1) + 1;
	while (atomic_load(&control->ready[!side]) < turn)
		sched_yield();
}

/* Publishes this side's blob and waits for the other side's. */
static void exchange(int side, const void *mine, size_t length)
{
	if (length > BLOB)
		die("address blob of %zu bytes is too long", length);
	memcpy(control->blob[side], mine, length);
	control->blob_len[side] = length;
	barrier(side);
}

static unsigned command(enum command what, uint64_t size, uint64_t count)
{
	unsigned next = atomic_load_explicit(&control->seq, memory_order_relaxed) + 1;
	bool asleep = control->command == CMD_SLEEP;
	control->command = what;
	control->size = size;
	control->count = count;
	atomic_store_explicit(&control->seq, next, memory_order_release);
	if (asleep)
		syscall(SYS_futex, &control->seq, FUTEX_WAKE, 1, NULL, NULL, 0);
	return next;
}

/* The target sleeps in the kernel until there is a command after number `seen`. */
static void sleep_until_command(unsigned seen)
{
	while (atomic_load_explicit(&control->seq, memory_order_acquire) == seen)
		syscall(SYS_futex, &control->seq, FUTEX_WAIT, seen, NULL, NULL, 0);
}

static int compare_double(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static double median(double *values, unsigned count)
{
	qsort(values, count, sizeof(*values), compare_double);
	return values[count / 2];
}

/* The first line, which describes what is measured. */
static void greet(const char *peer, const char *version)
{
	printf("{\"peer\":\"%s\",\"version\":\"%s\",\"provider\":\"%s%s\",\"completion\":\"%s\"}\n", peer, version,
	       options.provider, options.ordered ? " ordered" : "", options.completion);
	fflush(stdout);
}

/* The answer to a command. */
static void answer(double ns)
{
	printf("{\"ns\":%.2f}\n", ns);
	fflush(stdout);
}

/* The next size of the comma separated list, or 0 at its end. */
static uint64_t next_size(const char **list)
{
	char *end;
	if (!**list)
		return 0;
	uint64_t size = strtoull(*list, &end, 10);
	if (end == *list || (*end && *end != ',') || size < 8 || size % 8)
		die("bad size list at '%s': sizes are multiples of 8", *list);
	*list = *end ? end + 1 : end;
	return size;
}

/* Bytes of the buffer that all sizes need. */
static size_t needed(void)
{
	const char *sizes = options.sizes;
	size_t length = 0;
	for (uint64_t size; (size = next_size(&sizes));)
		if (size * slots_of(size) > length)
			length = size * slots_of(size);
	return (length + 2 * PAGE) & ~(PAGE - 1);
}

static void parse_options(int argc, char **argv, const char *usage)
{
	for (int i = 1; i < argc; i++) {
		const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
		if (!strcmp(name, "--ordered")) { options.ordered = true; continue; }
		if (strcmp(name, "--help") == 0 || !value) { fputs(usage, stderr); exit(strcmp(name, "--help") ? 2 : 0); }
		if (!strcmp(name, "--provider")) options.provider = value;
		else if (!strcmp(name, "--ops")) options.ops = value;
		else if (!strcmp(name, "--sizes")) options.sizes = value;
		else if (!strcmp(name, "--completion")) options.completion = value;
		else if (!strcmp(name, "--memory")) options.memory = value;
		else if (!strcmp(name, "--timeout")) options.timeout = (unsigned)atoi(value);
		else if (!strcmp(name, "--cores")) {
			if (sscanf(value, "%d,%d", &options.cores[0], &options.cores[1]) != 2)
				die("--cores needs two numbers, as in 0,1");
		} else { fprintf(stderr, "error: unknown option %s\n%s", name, usage); exit(2); }
		i++;
	}
}

/* Runs `initiator` here and `target` in a child, each on its core; returns the exit status. */
static int run_pair(void (*initiator)(void), void (*target)(void))
{
	control = mmap(NULL, sizeof(*control), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (control == MAP_FAILED)
		die("mmap of the control page: %s", strerror(errno));
	pid_t parent = getpid(), child = fork();
	if (child < 0)
		die("fork: %s", strerror(errno));
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent)
			_exit(1);
		pin(options.cores[1]);
		target();
		_exit(0);
	}
	pin(options.cores[0]);
	initiator();
	int status = 0;
	command(CMD_EXIT, 0, 0);
	waitpid(child, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

#endif
