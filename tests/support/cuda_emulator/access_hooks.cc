// The functions of ThreadSanitizer that kernels call at their loads, stores and atomics of C++.
#include <cstddef>
#include <cstdint>

#include "tests/support/cuda_emulator/machine.h"
#include "tests/support/cuda_emulator/race.h"

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
namespace eplb::cuda_emulator {
namespace {

Order OrderOf(int order) {
  switch (order) {
    case __ATOMIC_RELAXED:
      return Order::kRelaxed;
    case __ATOMIC_RELEASE:
      return Order::kRelease;
    case __ATOMIC_ACQ_REL:
    case __ATOMIC_SEQ_CST:
      return Order::kAcquireRelease;
    default:
      return Order::kAcquire;
  }
}

// An atomic access, or a volatile one, which is a relaxed atomic to CUDA. A thread that only loads
// may wait for another one.
void NoteAtomicBytes(const void* address, size_t size, Order order, bool loads, bool writes,
                     const void* place) {
  if (current_runner == nullptr) return;
  if (!writes) YieldToAll();
  NoteKernelAccess(address, size, {.writes = writes, .is_atomic = true}, place);
  Clock& clock = current_runner->clock;
  if (loads && writes) {
    clock.Update(address, order);
  } else if (loads) {
    clock.Load(address, order);
  } else {
    clock.Store(address, order);
  }
}
template <class T>
void NoteAtomic(const T* address, int order, bool loads, bool writes, const void* place) {
  NoteAtomicBytes(address, sizeof(T), OrderOf(order), loads, writes, place);
}

}  // namespace
}  // namespace eplb::cuda_emulator

// NOLINTBEGIN(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp): the compiler's names
#define EPLB_ACCESS(name, size, writes)                                                          \
  extern "C" void __tsan_##name(void* address) {                                                 \
    eplb::cuda_emulator::NoteKernelAccess(address, size, {writes}, __builtin_return_address(0)); \
  }
#define EPLB_VOLATILE(name, size, writes)                                                     \
  extern "C" void __tsan_##name(void* address) {                                              \
    eplb::cuda_emulator::NoteAtomicBytes(address, size, eplb::cuda_emulator::Order::kRelaxed, \
                                         !(writes), writes, __builtin_return_address(0));     \
  }
#define EPLB_ACCESSES(size)                                 \
  EPLB_ACCESS(read##size, size, false)                      \
  EPLB_ACCESS(write##size, size, true)                      \
  EPLB_ACCESS(unaligned_read##size, size, false)            \
  EPLB_ACCESS(unaligned_write##size, size, true)            \
  EPLB_VOLATILE(volatile_read##size, size, false)           \
  EPLB_VOLATILE(volatile_write##size, size, true)           \
  EPLB_VOLATILE(unaligned_volatile_read##size, size, false) \
  EPLB_VOLATILE(unaligned_volatile_write##size, size, true)
EPLB_ACCESSES(1)
EPLB_ACCESSES(2)
EPLB_ACCESSES(4)
EPLB_ACCESSES(8)
EPLB_ACCESSES(16)
// Atomics of C++, of which a kernel's body may have some for the CPU.
#define EPLB_UPDATE(name, bits, value)                                                          \
  extern "C" uint##bits##_t __tsan_atomic##bits##_##name(uint##bits##_t* address,               \
                                                         uint##bits##_t b, int order) {         \
    eplb::cuda_emulator::NoteAtomic(address, order, true, true, __builtin_return_address(0));   \
    uint##bits##_t a = __atomic_load_n(address, __ATOMIC_SEQ_CST);                              \
    while (!__atomic_compare_exchange_n(address, &a, static_cast<uint##bits##_t>(value), false, \
                                        __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {                  \
    }                                                                                           \
    return a;                                                                                   \
  }
#define EPLB_COMPARE(name, bits)                                                                 \
  extern "C" int __tsan_atomic##bits##_compare_exchange_##name(                                  \
      uint##bits##_t* address, uint##bits##_t* expected, uint##bits##_t value, int order, int) { \
    eplb::cuda_emulator::NoteAtomic(address, order, true, true, __builtin_return_address(0));    \
    return __atomic_compare_exchange_n(address, expected, value, false, __ATOMIC_SEQ_CST,        \
                                       __ATOMIC_SEQ_CST)                                         \
               ? 1                                                                               \
               : 0;                                                                              \
  }
#define EPLB_ATOMICS(bits)                                                                         \
  extern "C" uint##bits##_t __tsan_atomic##bits##_load(const uint##bits##_t* address, int order) { \
    eplb::cuda_emulator::NoteAtomic(address, order, true, false, __builtin_return_address(0));     \
    return __atomic_load_n(address, __ATOMIC_SEQ_CST);                                             \
  }                                                                                                \
  extern "C" void __tsan_atomic##bits##_store(uint##bits##_t* address, uint##bits##_t value,       \
                                              int order) {                                         \
    eplb::cuda_emulator::NoteAtomic(address, order, false, true, __builtin_return_address(0));     \
    __atomic_store_n(address, value, __ATOMIC_SEQ_CST);                                            \
  }                                                                                                \
  EPLB_UPDATE(exchange, bits, b)                                                                   \
  EPLB_UPDATE(fetch_add, bits, a + b)                                                              \
  EPLB_UPDATE(fetch_sub, bits, a - b)                                                              \
  EPLB_UPDATE(fetch_and, bits, a& b)                                                               \
  EPLB_UPDATE(fetch_or, bits, a | b)                                                               \
  EPLB_COMPARE(strong, bits)                                                                       \
  EPLB_COMPARE(weak, bits)
EPLB_ATOMICS(8)
EPLB_ATOMICS(32)
EPLB_ATOMICS(64)
extern "C" {
void __tsan_atomic_thread_fence(int) {
  if (eplb::cuda_emulator::current_runner == nullptr) return;
  eplb::cuda_emulator::current_runner->clock.Fence();
}
void __tsan_init() {}
void __tsan_read_range(void* address, size_t size) {
  eplb::cuda_emulator::NoteKernelAccess(address, size, {}, __builtin_return_address(0));
}
void __tsan_write_range(void* address, size_t size) {
  eplb::cuda_emulator::NoteKernelAccess(address, size, {.writes = true},
                                        __builtin_return_address(0));
}
}
// NOLINTEND(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp)
#endif
