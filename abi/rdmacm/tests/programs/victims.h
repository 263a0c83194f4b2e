/* A process that is killed or stopped at a point that it reports, and goes on when it is told to. */
#include <signal.h>
#include <sys/wait.h>

static int stops;
/* Created before the victim is: its port or that of the server, its report, and the order to go on that it gets after it was stopped. */
static int ports[2], reports[2], orders[2];

static void tell(int to)
{
	MUST(write(to, "x", 1) == 1);
}

static void await_byte(int from)
{
	char byte;
	MUST(read(from, &byte, 1) == 1);
}

static void hit(pid_t victim)
{
	int status;
	GOOD(kill(victim, stops ? SIGSTOP : SIGKILL));
	MUST(waitpid(victim, &status, WUNTRACED) == victim);
	TRUE(stops ? WIFSTOPPED(status) : WIFSIGNALED(status));
}

static void release(pid_t victim)
{
	if (stops) {
		GOOD(kill(victim, SIGCONT));
		tell(orders[1]);
	}
}

static void await_end(pid_t victim)
{
	int status;
	if (!stops)
		return;
	MUST(waitpid(victim, &status, 0) == victim);
	TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}
