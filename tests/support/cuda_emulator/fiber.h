// A stack of its own that runs until it switches to another: a thread of a block.
#pragma once

#include <cstddef>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace eplb::cuda_emulator {

// One that was not started is the stack of whoever switches away from it.
class Fiber {
 public:
  Fiber() = default;
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;
  ~Fiber();

  // The next switch to it calls `entry`, which never returns. What it did before is forgotten.
  void Start(void (*entry)());

  // Leaves `from` for `to`; returns when a fiber switches to `from`.
  static void Switch(Fiber& from, Fiber& to);

  bool Has(const void* address) const;

 private:
  static void Enter();

  std::byte* stack_ = nullptr;
  void (*entry_)() = nullptr;
  void* fake_stack_ = nullptr;  // stack of AddressSanitizer
  const void* sanitizer_bottom_ = nullptr;
  size_t sanitizer_size_ = 0;
#if defined(__x86_64__)
  void* stack_pointer_ = nullptr;
#else
  ucontext_t context_{};
#endif
};

}  // namespace eplb::cuda_emulator
