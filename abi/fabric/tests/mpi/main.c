/* What MPI programs do over a network: messages, collectives and one-sided access, with all data checked.
 * Arguments: the parts to run; without any, all of them. */

#include "check.h"

int rank, ranks;

static int asked_for(const char *part, int count, char **words) {
    for (int i = 1; i < count; i++)
        if (!strcmp(words[i], part)) return 1;
    return count == 1;
}

static void run(const char *part, void (*function)(void), int count, char **words) {
    if (!asked_for(part, count, words)) return;
    function();
    MPI_Barrier(MPI_COMM_WORLD);
    if (!rank) {
        printf("%s: %d ranks agree\n", part, ranks);
        fflush(stdout);
    }
}

int main(int count, char **words) {
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    run("messages", messages, count, words);
    run("matched", matched, count, words);
    run("truncation", truncation, count, words);
    run("collectives", collectives, count, words);
    run("access", access_to_windows, count, words);
    run("windows", windows, count, words);
    MPI_Finalize();
    return 0;
}
