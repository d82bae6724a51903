/* Where a sanitizer runs a test. It sees what the plain build's test does not, and is slow: what it
 * could only see again is left out there. */
#ifndef WEFT_TESTS_SUPPORT_SANITIZED_H
#define WEFT_TESTS_SUPPORT_SANITIZED_H

/* Sizes that only cost time shrink. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

/* ThreadSanitizer sees how threads meet. Values, dtypes and formats have no part in that; layouts,
 * ranks, threads, phases and the order of calls do. */
#if defined(__SANITIZE_THREAD__)
enum { THREADS_ONLY = 1 };
#else
enum { THREADS_ONLY = 0 };
#endif

#endif
