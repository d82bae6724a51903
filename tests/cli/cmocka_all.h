/* cmocka and what it must be included after. */
#ifndef TESTS_CLI_CMOCKA_ALL_H
#define TESTS_CLI_CMOCKA_ALL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#endif
