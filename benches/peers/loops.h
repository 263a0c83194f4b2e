/* The measurement loops, which are the same for every peer. Before it includes this file, a peer defines:
 *
 *   PEER                   its name in the results
 *   buffer, buffer_length  its memory, as the other side sees it
 *   version(), open_side() what it is, and how it connects the two sides
 *   progress()             lets the fabric work
 *   post()                 posts one operation between the same or other places of the two buffers
 *   in_flight()            operations that were posted and are not complete
 *   finish()               waits until all of this kind are complete, writes until they have arrived
 *   tagged()               tagged messages there and back
 *   registration()         time of one registration and deregistration, with this many other live regions
 *
 * Commands are lines "run OPERATION MODE SIZE CONDITION LIVE COUNT"; the answer is {"ns":NANOSECONDS} of one
 * operation. The coordinator (`rkey bench`) decides how many operations and repetitions there are.
 */
#ifndef RKEY_PEERS_LOOPS_H
#define RKEY_PEERS_LOOPS_H

#include "common.h"

static double stream(enum kind kind, uint64_t size, uint64_t count, unsigned slots)
{
	unsigned window = window_of(size);
	uint64_t start = now_ns();
	for (uint64_t i = 0; i < count; i++) {
		while (in_flight() >= window)
			progress();
		post(kind, (i % slots) * size, (i % slots) * size, size, i);
	}
	finish(kind);
	return (double)(now_ns() - start) / (double)count;
}

static void wait_done(unsigned seq)
{
	while (atomic_load_explicit(&control->done, memory_order_acquire) != seq)
		progress();
}

/* One operation at a time. Touched: we rewrite the source and the other side reads the destination
 * before each one, outside the measured time. */
static double single(enum kind kind, uint64_t size, uint64_t count, bool touched)
{
	static double samples[20001];
	if (count > 20001)
		count = 20001;
	for (uint64_t i = 0; i < count; i++) {
		if (touched) {
			if (kind == WRITE)
				touch_write(buffer, size, i);
			else
				touch_read(buffer, size);
			wait_done(command(CMD_TOUCH, size, kind == READ ? i + 1 : 0));
		}
		uint64_t start = now_ns();
		post(kind, 0, 0, size, i);
		finish(kind);
		samples[i] = (double)(now_ns() - start);
	}
	return median(samples, (unsigned)count);
}

/* The last word of a message, which is written last. */
static volatile uint64_t *last_word(uint64_t size) { return (volatile uint64_t *)(buffer + size - 8); }

/* An 8-byte message has its own source, so that preparing it does not touch the word in which the answer arrives. */
static void ping(uint64_t size, uint64_t value)
{
	uint64_t from = size > 8 ? 0 : buffer_length - 8;
	*last_word(from + size) = value;
	post(WRITE, from, 0, size, value);
}

static void await(uint64_t size, uint64_t value)
{
	while (*last_word(size) != value)
		progress();
}

static double one_way(uint64_t size, uint64_t count)
{
	*last_word(size) = 0;
	unsigned seq = command(CMD_PINGPONG, size, count);
	while (atomic_load_explicit(&control->ready[1], memory_order_acquire) < (int)seq + 1000000)
		progress();
	uint64_t start = now_ns();
	for (uint64_t i = 1; i <= count; i++) {
		ping(size, 2 * i);
		await(size, 2 * i + 1);
	}
	double result = (double)(now_ns() - start) / (double)count / 2;
	wait_done(seq);
	finish(WRITE);
	return result;
}

static void answer_ping(unsigned seq)
{
	uint64_t size = control->size, count = control->count;
	*last_word(size) = 0;
	atomic_store_explicit(&control->ready[1], (int)seq + 1000000, memory_order_release);
	for (uint64_t i = 1; i <= count; i++) {
		await(size, 2 * i);
		ping(size, 2 * i + 1);
	}
	finish(WRITE);
}

static double messages(uint64_t size, uint64_t count)
{
	unsigned seq = command(CMD_TAGGED, size, count);
	double ns = tagged(size, count, true);
	wait_done(seq);
	return ns;
}

struct order { char operation[16], mode[16], condition[16]; uint64_t size, live, count; };

static double run(const struct order *o)
{
	static const char *kinds[] = {"write", "read", "atomic"};
	bool register_pages = !strcmp(o->operation, "register");
	if (!o->count || (!register_pages && (o->size < 8 || o->size % 8 || o->size * 2 > buffer_length)) || o->live > LIVE_MAX)
		die("invalid command: %lu operations of %lu B with %lu live regions", o->count, o->size, o->live);
	if (register_pages)
		return registration(o->live, o->count);
	if (!strcmp(o->operation, "send"))
		return messages(o->size, o->count);
	for (enum kind kind = WRITE; kind <= ATOMIC; kind++) {
		if (strcmp(o->operation, kinds[kind]))
			continue;
		if (!strcmp(o->mode, "stream"))
			return stream(kind, o->size, o->count, strcmp(o->condition, "rotating") ? 1 : slots_of(o->size));
		if (!strcmp(o->mode, "oneway") && kind == WRITE)
			return one_way(o->size, o->count);
		if (!strcmp(o->mode, "single"))
			return single(kind, o->size, o->count, !strcmp(o->condition, "touched"));
	}
	die("unsupported operation and mode: %s %s", o->operation, o->mode);
}

static void measure(void)
{
	char about[32], line[128];
	version(about, sizeof(about));
	open_side(0);
	wait_done(command(CMD_SLEEP, 0, 0));
	greet(PEER, about);
	while (fgets(line, sizeof(line), stdin)) {
		struct order o;
		if (sscanf(line, "run %15s %15s %lu %15s %lu %lu", o.operation, o.mode, &o.size, o.condition, &o.live, &o.count) != 6)
			die("invalid command; expected: run OPERATION MODE SIZE CONDITION LIVE COUNT");
		alarm(options.timeout);
		wait_done(command(CMD_NONE, 0, 0));
		double ns = run(&o);
		wait_done(command(CMD_SLEEP, 0, 0));
		alarm(0);
		answer(ns);
	}
}

static void serve(void)
{
	open_side(1);
	for (unsigned seen = 0;;) {
		unsigned seq = atomic_load_explicit(&control->seq, memory_order_acquire);
		if (seq == seen) {
			progress();
			continue;
		}
		seen = seq;
		enum command what = control->command;
		switch (what) {
		case CMD_EXIT: return;
		case CMD_TOUCH:
			if (control->count)
				touch_write(buffer, control->size, control->count);
			else
				touch_read(buffer, control->size);
			break;
		case CMD_PINGPONG: answer_ping(seq); break;
		case CMD_TAGGED: tagged(control->size, control->count, false); break;
		default: break;
		}
		atomic_store_explicit(&control->done, seq, memory_order_release);
		if (what == CMD_SLEEP)
			sleep_until_command(seq);
	}
}

#endif
