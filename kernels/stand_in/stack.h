// Switches from one stack to another within a thread.
#pragma once

#include <cstddef>

#ifndef __x86_64__
#include <ucontext.h>
#endif

namespace stand_in {

#ifdef __x86_64__

// The state of a stopped stack. Blocks switch between threads many million times: the compiler saves only the registers
// that it needs at the place where it inlines this, and nothing is called.
class Stopped {
    void* at = nullptr;

  public:
    // On an empty stack: starts at the beginning of `entry`, which does not return.
    void start(void* stack, size_t bytes, void (*entry)()) {
        void** top = (void**)((char*)stack + bytes);
        *--top = nullptr;  // its return address
        *--top = (void*)entry;
        at = top;
    }

    // Stops here and continues on another stack.
    [[gnu::always_inline]] static void go(Stopped& from, Stopped& to) {
        void** save = &from.at;
        void* there = to.at;
        // The 128 bytes below the stack pointer belong to the function that this is inlined into.
        asm volatile(
            "leaq -128(%%rsp), %%rsp\n\t"
            "pushq %%rbp\n\t"
            "pushq %%rbx\n\t"
            "leaq 1f(%%rip), %%rax\n\t"
            "pushq %%rax\n\t"
            "movq %%rsp, (%0)\n\t"
            "movq %1, %%rsp\n\t"
            "popq %%rax\n\t"
            "jmp *%%rax\n\t"
            "1:\n\t"
            "popq %%rbx\n\t"
            "popq %%rbp\n\t"
            "leaq 128(%%rsp), %%rsp"
            : "+D"(save), "+S"(there)
            :
            : "rax", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "xmm0", "xmm1", "xmm2", "xmm3",
              "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "cc",
              "memory");
    }
};

#else

class Stopped {
    ucontext_t at;

  public:
    void start(void* stack, size_t bytes, void (*entry)()) {
        getcontext(&at);
        at.uc_stack.ss_sp = stack;
        at.uc_stack.ss_size = bytes;
        at.uc_link = nullptr;
        makecontext(&at, entry, 0);
    }

    static void go(Stopped& from, Stopped& to) { swapcontext(&from.at, &to.at); }
};

#endif

}  // namespace stand_in
