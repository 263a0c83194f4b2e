/* The measuring loops, the same for every peer. A peer defines, before it includes this:
 *
 *   PEER                   its name in the results
 *   buffer, buffer_length  its memory, as the other side sees it
 *   version(), open_side() what it is, and how it connects the two sides
 *   progress()             lets the fabric work
 *   post()                 posts one operation between the same or other places of the two buffers
 *   in_flight()            operations that were posted and are not complete
 *   finish()               waits until all of this kind are complete, writes until they have arrived
 *   tagged()               tagged messages there and back
 *   registration()         time of one registration and close, beside so many live regions
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
 * before each one, outside the time that counts. */
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

/* Words come from a place of their own, so that the answer cannot overtake the question in one word. */
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

/* How many operations make about options.seconds. */
static uint64_t enough(double ns, uint64_t least)
{
	double n = options.seconds * 1e9 / (ns > 1 ? ns : 1);
	return n < (double)least ? least : (uint64_t)n;
}

static char about[32];
static double values[MAX_REPS];

static void print(const char *op, const char *mode, uint64_t size, const char *condition, uint64_t live)
{
	report(PEER, about, op, mode, size, condition, values, (unsigned)options.reps, live);
}

static void measure_moving(enum kind kind, const char *name, uint64_t size)
{
	for (unsigned rotating = 0; listed(options.modes, "stream") && rotating <= (size > 64); rotating++) {
		unsigned slots = rotating ? slots_of(size) : 1;
		uint64_t count = enough(stream(kind, size, 200, slots), 100);
		stream(kind, size, count / 4 + 1, slots);
		for (int r = 0; r < options.reps; r++)
			values[r] = stream(kind, size, count, slots);
		print(name, "stream", size, rotating ? "rotating" : "static", 0);
	}
	if (listed(options.modes, "oneway") && kind == WRITE) {
		uint64_t count = enough(2 * one_way(size, 200), 100);
		for (int r = 0; r < options.reps; r++)
			values[r] = one_way(size, count);
		print(name, "oneway", size, "static", 0);
	}
	for (int touched = 0; listed(options.modes, "single") && touched <= (kind != ATOMIC && size > 64); touched++) {
		uint64_t count = enough(single(kind, size, 100, touched) * (touched ? 3 : 1), 100);
		for (int r = 0; r < options.reps; r++)
			values[r] = single(kind, size, count, touched);
		print(name, "single", size, touched ? "touched" : "static", 0);
	}
}

static void measure_messages(uint64_t size)
{
	uint64_t count = 200;
	for (int r = -1; r < options.reps; r++) {
		unsigned seq = command(CMD_TAGGED, size, count);
		double ns = tagged(size, count, true);
		wait_done(seq);
		if (r < 0)
			count = enough(2 * ns, 100);
		else
			values[r] = ns;
	}
	print("send", "oneway", size, "static", 0);
}

static void measure_registration(uint64_t live)
{
	uint64_t count = enough(registration(live, 1000), 1000);
	for (int r = 0; r < options.reps; r++)
		values[r] = registration(live, count);
	print("register", "pair", 4096, "static", live);
}

static void measure(void)
{
	static const char *kinds[] = {"write", "read", "atomic"};
	version(about, sizeof(about));
	open_side(0);
	for (enum kind kind = WRITE; kind <= ATOMIC; kind++) {
		const char *sizes = kind == ATOMIC ? "8" : options.sizes;
		for (uint64_t size; listed(options.ops, kinds[kind]) && (size = next_size(&sizes));)
			measure_moving(kind, kinds[kind], size);
	}
	const char *sizes = options.sizes;
	for (uint64_t size; listed(options.ops, "send") && (size = next_size(&sizes));)
		measure_messages(size);
	for (uint64_t live = 0; listed(options.ops, "register") && live <= LIVE_MAX; live += LIVE_MAX)
		measure_registration(live);
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
		switch (control->command) {
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
	}
}

#endif
