/* Checks that end the program with the line of the first one that fails. */
#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                                  \
	do {                                                                              \
		if (!(condition)) {                                                       \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);   \
			exit(1);                                                          \
		}                                                                         \
	} while (0)

/* A call that returns a number, and what it must be. */
#define RETURNS(call, expected)                                                           \
	do {                                                                              \
		long got_ = (long)(call), want_ = (long)(expected);                       \
		if (got_ != want_) {                                                      \
			fprintf(stderr, "%s:%d: %s is %ld, not %ld\n", __FILE__, __LINE__, \
				#call, got_, want_);                                      \
			exit(1);                                                          \
		}                                                                         \
	} while (0)
