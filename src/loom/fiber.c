/* The context switch. On x86-64 it is a dozen instructions that save what the ABI makes the callee
 * keep; it ends in an indirect jump rather than `ret`, since a return to another stack defeats the
 * return predictor. Elsewhere, or with WEFT_LOOM_UCONTEXT, ucontext does the same, slower. */
#define _GNU_SOURCE
#include "fiber.h"

#include <stdint.h>

/* Distance between the tops of neighbouring stacks, in cache lines of two: 5 is prime to 32, so 32
 * stacks take 32 different offsets inside 4 KiB. */
static size_t colour_offset(unsigned colour) {
  return (size_t)(colour * 5u % 32u) * 128u;
}

/* A run that stops leaves frames on its stacks, and an address sanitizer's marks around them: they
 * must not outlive the run. */
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#define STACK_CLEAN(stack, bytes) __asan_unpoison_memory_region(stack, bytes)
#else
#define STACK_CLEAN(stack, bytes) ((void)0)
#endif

#if defined(__x86_64__) && !defined(WEFT_LOOM_UCONTEXT)

__asm__(".text\n"
        ".globl fiber_switch\n"
        ".type fiber_switch, @function\n"
        "fiber_switch:\n"
        "  pushq %rbp\n"
        "  pushq %rbx\n"
        "  pushq %r12\n"
        "  pushq %r13\n"
        "  pushq %r14\n"
        "  pushq %r15\n"
        "  movq %rsp, (%rdi)\n"
        "  movq %rsi, %rsp\n"
        "  popq %r15\n"
        "  popq %r14\n"
        "  popq %r13\n"
        "  popq %r12\n"
        "  popq %rbx\n"
        "  popq %rbp\n"
        "  popq %rcx\n"
        "  jmpq *%rcx\n"
        ".size fiber_switch, .-fiber_switch\n");

void *fiber_make(void *stack, size_t bytes, unsigned colour, void (*entry)(void)) {
  STACK_CLEAN(stack, bytes);
  uintptr_t top = ((uintptr_t)stack + bytes - colour_offset(colour)) & ~(uintptr_t)63;
  void **sp = (void **)top;
  *--sp = NULL;                     /* in place of a return address: rsp is 8 mod 16 at entry */
  *--sp = (void *)(uintptr_t)entry; /* what the switch jumps to */
  for (int i = 0; i < 6; i++)
    *--sp = NULL;
  return sp;
}

#else

#include <ucontext.h>

void fiber_switch(void **save, void *to) {
  ucontext_t here;
  *save = &here;
  swapcontext(&here, (ucontext_t *)to);
}

void *fiber_make(void *stack, size_t bytes, unsigned colour, void (*entry)(void)) {
  STACK_CLEAN(stack, bytes);
  uintptr_t top = (uintptr_t)stack + bytes - colour_offset(colour) - sizeof(ucontext_t);
  ucontext_t *context = (ucontext_t *)(top & ~(uintptr_t)63);
  getcontext(context);
  context->uc_stack.ss_sp = stack;
  context->uc_stack.ss_size = (size_t)((char *)context - (char *)stack);
  context->uc_link = NULL;
  makecontext(context, entry, 0);
  return context;
}

#endif
