#include "tests/support/cuda_emulator/fiber.h"

#include <sys/mman.h>

#include <cstdlib>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if defined(__x86_64__)
// Calls are all that may come between, so the registers that a call keeps are enough. ucontext
// makes two system calls a switch, which takes a hundred times as long.
extern "C" void eplb_emulator_switch(void** from, void* to);
asm(R"(
.text
.type eplb_emulator_switch, @function
eplb_emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size eplb_emulator_switch, .-eplb_emulator_switch
)");
#endif

namespace eplb::cuda_emulator {
namespace {

constexpr size_t kGuardBytes = 4096;  // without access, below the stack
constexpr size_t kStackBytes = size_t{256} * 1024;

// Fiber that made the last switch.
Fiber* switched_from = nullptr;
Fiber* switched_to = nullptr;

}  // namespace

Fiber::~Fiber() {
  if (stack_ != nullptr) munmap(stack_, kStackBytes);
}

bool Fiber::Has(const void* address) const {
  const auto* const at = static_cast<const std::byte*>(address);
  return stack_ != nullptr && at >= stack_ && at < stack_ + kStackBytes;
}

void Fiber::Start(void (*entry)()) {
  if (stack_ == nullptr) {
    void* const stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stack == MAP_FAILED || mprotect(stack, kGuardBytes, PROT_NONE) != 0) std::abort();
    stack_ = static_cast<std::byte*>(stack);
  }
  entry_ = entry;
  sanitizer_bottom_ = stack_ + kGuardBytes;
  sanitizer_size_ = kStackBytes - kGuardBytes;
  fake_stack_ = nullptr;
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(stack_ + kGuardBytes, sanitizer_size_);
#endif
#if defined(__x86_64__)
  auto* const top = reinterpret_cast<void**>(stack_ + kStackBytes);
  top[-1] = nullptr;  // return address of Enter
  top[-2] = reinterpret_cast<void*>(&Fiber::Enter);
  for (int i = 3; i <= 8; ++i) top[-i] = nullptr;  // the registers
  stack_pointer_ = top - 8;
#else
  getcontext(&context_);
  context_.uc_stack.ss_sp = stack_ + kGuardBytes;
  context_.uc_stack.ss_size = sanitizer_size_;
  context_.uc_link = nullptr;
  makecontext(&context_, &Fiber::Enter, 0);
#endif
}

void Fiber::Enter() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &switched_from->sanitizer_bottom_,
                                  &switched_from->sanitizer_size_);
#endif
  switched_to->entry_();
  std::abort();
}

void Fiber::Switch(Fiber& from, Fiber& to) {
  switched_from = &from;
  switched_to = &to;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&from.fake_stack_, to.sanitizer_bottom_, to.sanitizer_size_);
#endif
#if defined(__x86_64__)
  eplb_emulator_switch(&from.stack_pointer_, to.stack_pointer_);
#else
  swapcontext(&from.context_, &to.context_);
#endif
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(from.fake_stack_, &switched_from->sanitizer_bottom_,
                                  &switched_from->sanitizer_size_);
#endif
}

}  // namespace eplb::cuda_emulator
