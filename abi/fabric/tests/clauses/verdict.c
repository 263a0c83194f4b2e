/* How a check ends, and what it prints. */

#define _GNU_SOURCE
#include "suite.h"
#include <stdarg.h>
#include <unistd.h>

static int results = STDOUT_FILENO;

void verdicts_go_to(int descriptor) { results = descriptor; }

static _Noreturn void end(const char *verdict, const char *format, va_list words) {
    char text[512];
    int length = snprintf(text, sizeof text, "%s\t", verdict);
    vsnprintf(text + length, sizeof text - (size_t)length, format, words);
    if (write(results, text, strlen(text)) < 0) _exit(1);
    /* No code of the provider runs after this, so it cannot change the verdict. */
    _exit(0);
}

void differs(const char *format, ...) {
    va_list words;
    va_start(words, format);
    end("differs", format, words);
}

void does_not_apply(const char *format, ...) {
    va_list words;
    va_start(words, format);
    end("does not apply", format, words);
}

const char *code_name(long code) {
    static char names[4][48];
    static unsigned turn;
    static const struct {
        long code;
        const char *name;
    } own[] = {
        {FI_EOTHER, "FI_EOTHER"},         {FI_ETOOSMALL, "FI_ETOOSMALL"},       {FI_EOPBADSTATE, "FI_EOPBADSTATE"},
        {FI_EAVAIL, "FI_EAVAIL"},         {FI_EBADFLAGS, "FI_EBADFLAGS"},       {FI_ENOEQ, "FI_ENOEQ"},
        {FI_EDOMAIN, "FI_EDOMAIN"},       {FI_ENOCQ, "FI_ENOCQ"},               {FI_ECRC, "FI_ECRC"},
        {FI_ETRUNC, "FI_ETRUNC"},         {FI_ENOKEY, "FI_ENOKEY"},             {FI_ENOAV, "FI_ENOAV"},
        {FI_EOVERRUN, "FI_EOVERRUN"},     {FI_EKEYREJECTED, "FI_EKEYREJECTED"}, {NOTHING_CAME, "nothing"},
    };
    if (code == 0) return "0";
    char *name = names[turn++ % 4];
    long positive = code < 0 ? -code : code;
    const char *sign = code < 0 ? "-" : "";
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (own[i].code == positive) {
            snprintf(name, sizeof names[0], "%s%s", sign, own[i].name);
            return name;
        }
    const char *known = positive < 256 ? strerrorname_np((int)positive) : NULL;
    if (known)
        snprintf(name, sizeof names[0], "%sFI_%s", sign, known);
    else
        snprintf(name, sizeof names[0], "%ld", code);
    return name;
}

void wants(const char *call, long came, long wanted) {
    if (came != wanted) differs("%s: %s instead of %s", call, code_name(came), code_name(wanted));
}

void wants_refusal(const char *call, long came) {
    if (came >= 0) differs("%s: %s instead of an error", call, code_name(came));
}

void wants_failure(const char *transfer, long came) {
    if (came == NOTHING_CAME) differs("%s: neither success nor an error was reported", transfer);
    if (came == 0) differs("%s: success instead of an error", transfer);
}

void wants_that(bool so, const char *what) {
    if (!so) differs("not true: %s", what);
}
