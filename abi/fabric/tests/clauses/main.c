/* Tests the clauses of fi_mr(3) with a provider, through an installed libfabric: each check runs in its own process, with
 * a time limit. Prints a line for each: its name, its verdict, and the result if it differs.
 *
 *     clauses [--api 1.17] [--together 4] PROVIDER [CHECK...]
 *     clauses --list
 *
 * FI_RKEY_MR_MODE has the mode bits that `rkey` must require; FI_RKEY_STRICT=1 makes it follow the pages to the letter. */

#define _GNU_SOURCE
#include "suite.h"
#include <fcntl.h>
#include <getopt.h>
#include <glob.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* A check may wait several times, each time longer than any transfer takes. */
#define LIMIT_S 120
#define MOST_TOGETHER 64

extern const struct check __start_checks[], __stop_checks[];

/* A running check. */
struct child {
    const struct check *check;
    pid_t pid;
    int descriptor;
    time_t since;
};

static time_t seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec;
}

/* The provider shm names its files after the process. A process that exits without closing everything leaves them behind, and
 * a later process with the same PID cannot use them. */
static void remove_files_of(pid_t pid) {
    char pattern[64];
    glob_t found = {0};
    snprintf(pattern, sizeof pattern, "/dev/shm/%d:*", (int)pid);
    if (!glob(pattern, 0, NULL, &found))
        for (size_t i = 0; i < found.gl_pathc; i++) unlink(found.gl_pathv[i]);
    globfree(&found);
}

/* Libfabric loads its providers once, which takes far longer than a check. Their signal handlers turn a crash into an
 * exit, so children restore the defaults. */
static void load_providers(uint32_t api) {
    struct fi_info *info = NULL;
    if (!fi_getinfo(api, NULL, NULL, 0, NULL, &info)) fi_freeinfo(info);
    const int crashes[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};
    for (size_t i = 0; i < sizeof crashes / sizeof *crashes; i++) signal(crashes[i], SIG_DFL);
}

static _Noreturn void carry_out(const struct check *check, const char *provider, uint32_t api, int results) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    verdicts_go_to(results);
    remove_files_of(getpid());
    /* A crash is a result, so it leaves no core file. */
    setrlimit(RLIMIT_CORE, &(struct rlimit){0});
    static struct world world;
    world.check = check;
    world.provider = provider;
    world.api = api;
    uint32_t from = check->from ? check->from : FI_VERSION(1, 5);
    if (api < from || (check->below && api >= check->below)) does_not_apply("it concerns other API versions");
    bool ours = !strcmp(provider, "rkey");
    if (check->strict && ours && !strict_mode()) does_not_apply("it concerns strict mode");
    if (check->lenient && (!ours || strict_mode())) does_not_apply("it concerns rkey without strict mode");
    if (!check->bare) open_world(&world);
    check->run(&world);
    dprintf(results, "ok\t");
    _exit(0);
}

static struct child start(const struct check *check, const char *provider, uint32_t api) {
    int pipes[2];
    if (pipe2(pipes, O_CLOEXEC)) {
        perror("pipe2");
        exit(2);
    }
    fflush(stdout);
    pid_t pid = fork();
    if (pid < 0) {
        perror("fork");
        exit(2);
    }
    if (pid == 0) {
        close(pipes[0]);
        carry_out(check, provider, api, pipes[1]);
    }
    close(pipes[1]);
    return (struct child){check, pid, pipes[0], seconds()};
}

/* Prints the result of a check that has exited, or kills it and prints that. */
static void report(struct child *child, bool hangs) {
    char text[600] = "";
    int status = 0;
    if (hangs) kill(child->pid, SIGKILL);
    if (waitpid(child->pid, &status, 0) != child->pid) perror("waitpid");
    ssize_t length = read(child->descriptor, text, sizeof text - 1);
    if (length > 0) text[length] = 0;
    close(child->descriptor);
    remove_files_of(child->pid);
    if (hangs)
        snprintf(text, sizeof text, "hangs\t");
    else if (WIFSIGNALED(status))
        snprintf(text, sizeof text, "crashes\t%s", strsignal(WTERMSIG(status)));
    else if (!*text)
        snprintf(text, sizeof text, "crashes\tthe process ends with status %d", WEXITSTATUS(status));
    printf("%s\t%s\n", child->check->name, text);
    child->pid = 0;
}

static bool wanted(const struct check *check, int count, char **names) {
    for (int i = 0; i < count; i++)
        if (!strcmp(names[i], check->name)) return true;
    return count == 0;
}

static void run_all(const char *provider, uint32_t api, int together, int count, char **names) {
    struct child children[MOST_TOGETHER] = {0};
    const struct check *next = __start_checks;
    int running = 0;
    while (running || next < __stop_checks) {
        for (int i = 0; i < together && next < __stop_checks; i++) {
            while (next < __stop_checks && !wanted(next, count, names)) next++;
            if (children[i].pid || next == __stop_checks) continue;
            children[i] = start(next++, provider, api);
            running++;
        }
        struct pollfd ends[MOST_TOGETHER];
        for (int i = 0; i < together; i++)
            ends[i] = (struct pollfd){.fd = children[i].pid ? children[i].descriptor : -1, .events = POLLIN};
        if (running) poll(ends, (nfds_t)together, 1000);
        for (int i = 0; i < together; i++) {
            if (!children[i].pid) continue;
            bool hangs = !ends[i].revents && seconds() - children[i].since > LIMIT_S;
            if (!ends[i].revents && !hangs) continue;
            report(&children[i], hangs);
            running--;
        }
    }
}

static uint32_t version(const char *text) {
    unsigned major = 0, minor = 0;
    if (sscanf(text, "%u.%u", &major, &minor) != 2) {
        fprintf(stderr, "%s is not an API version such as 1.17\n", text);
        exit(2);
    }
    return FI_VERSION(major, minor);
}

int main(int count, char **words) {
    static const struct option options[] = {
        {"list", no_argument, 0, 'l'}, {"api", required_argument, 0, 'a'}, {"together", required_argument, 0, 't'}, {0}};
    uint32_t api = FI_VERSION(1, 17);
    int together = 4, option;
    while ((option = getopt_long(count, words, "", options, NULL)) != -1) {
        if (option == 'l') {
            for (const struct check *check = __start_checks; check < __stop_checks; check++)
                printf("%s\t%s\t%s\n", check->name, check->clauses, check->what);
            return 0;
        }
        if (option == 'a')
            api = version(optarg);
        else if (option == 't' && atoi(optarg) > 0 && atoi(optarg) <= MOST_TOGETHER)
            together = atoi(optarg);
        else
            return 2;
    }
    if (optind == count) {
        fprintf(stderr, "usage: clauses [--api 1.17] [--together 4] PROVIDER [CHECK...]\n");
        return 2;
    }
    load_providers(api);
    run_all(words[optind], api, together, count - optind - 1, words + optind + 1);
    return 0;
}
