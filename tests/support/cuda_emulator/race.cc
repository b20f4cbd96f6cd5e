#include "tests/support/cuda_emulator/race.h"

#include <unistd.h>

#include <array>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "tests/support/cuda_emulator/launch_order.h"
#include "tests/support/cuda_emulator/machine.h"
#include "tests/support/cuda_emulator/memory.h"
#include "tests/support/cuda_emulator/shadow.h"

extern "C" const char __executable_start;  // NOLINT(bugprone-reserved-identifier): the linker's

namespace eplb::cuda_emulator {
namespace {

// An instruction by its distance from the start of the program. A return address is of the
// instruction after the call.
uint32_t PlaceOf(const void* instruction) {
  return static_cast<uint32_t>(static_cast<const char*>(instruction) - &__executable_start - 1);
}

// Runs addr2line, because only a report needs the place. Returns "file:line", for inlined functions
// with the lines that call them.
std::string LineOf(uint32_t place) {
  std::array<char, 4096> text{};
  const ssize_t length = readlink("/proc/self/exe", text.data(), text.size() - 1);
  const std::string command =
      absl::StrCat("addr2line -i -e '", std::string(text.data(), length > 0 ? length : 0), "' 0x",
                   absl::Hex(place), " 2>/dev/null");
  std::string lines;
  if (FILE* const pipe = popen(command.c_str(), "r"); pipe != nullptr) {
    while (std::fgets(text.data(), static_cast<int>(text.size()), pipe) != nullptr) {
      if (std::strstr(text.data(), "device_language.h") != nullptr) continue;
      const char* const line = text.data() + (text[0] == '.' && text[1] == '/' ? 2 : 0);
      absl::StrAppend(&lines, lines.empty() ? "" : " < ", line);
      if (lines.back() == '\n') lines.pop_back();
    }
    pclose(pipe);
  }
  return lines.empty() ? absl::StrCat("0x", absl::Hex(place)) : lines;
}

const char* NameOf(const Access& access) {
  if (access.is_atomic) return access.writes ? "an atomic update" : "an atomic load";
  return access.writes ? "a write" : "a read";
}

std::string Described(const Access& now, const Conflict& past) {
  const std::byte* const at = past.word + std::countr_zero(past.bytes);
  const std::byte* const shared = current_runner->shared;
  const bool is_shared = at >= shared && at < shared + kSharedBytes;
  return absl::StrCat(
      "a race on ",
      is_shared ? absl::StrCat("shared memory at byte ", at - shared)
                : absl::StrCat("memory at 0x", absl::Hex(reinterpret_cast<uintptr_t>(at))),
      ": ", NameOf(now), " at ", LineOf(now.place), " is not ordered with ", NameOf(past.access),
      " by thread ", past.when.thread, " of ", NameOfBlock(past.when.block), " at ",
      LineOf(past.access.place));
}

// A write that follows another of the same bytes and is no race if it leaves them as they are: as
// to compute-sanitizer, two writes of one value are none.
struct Suspect {
  Access access;
  Conflict conflict;
  std::array<std::byte, 8> before{};
};
// Of the write that the thread makes now. No other thread runs before the next check.
std::vector<Suspect> suspects;

void CheckSuspects() {
  for (const Suspect& suspect : suspects) {
    for (size_t i = 0; i < suspect.before.size(); ++i) {
      if ((suspect.conflict.bytes >> i & 1) == 0) continue;
      if (suspect.conflict.word[i] == suspect.before[i]) continue;
      const std::string text = Described(suspect.access, suspect.conflict);
      suspects.clear();
      Stop(text);
    }
  }
  suspects.clear();
}

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
[[maybe_unused]] void NoteAtomic(const T* address, int order, bool loads, bool writes,
                                 const void* place) {
  NoteAtomicBytes(address, sizeof(T), OrderOf(order), loads, writes, place);
}

}  // namespace

void CheckWrites() {
  if (!suspects.empty()) CheckSuspects();
}

void NoteKernelAccess(const void* address, size_t size, AccessKind kind, const void* place) {
  const Runner* const runner = current_runner;
  if (runner == nullptr) return;
  CheckWrites();
  const auto* const at = static_cast<const std::byte*>(address);
  const bool of_block = at >= runner->shared && at < runner->shared + kSharedBytes;
  if (!of_block && !IsWatched(address)) return;
  const Access access{.writes = kind.writes, .is_atomic = kind.is_atomic, .place = PlaceOf(place)};
  for (const Conflict& past : NoteAccess(address, size, access, runner->clock, of_block)) {
    if (!access.writes || !past.access.writes || access.is_atomic) Stop(Described(access, past));
    suspects.push_back({.access = access, .conflict = past});
    std::memcpy(suspects.back().before.data(), past.word, sizeof(Suspect::before));
  }
}

void BeginRaceDetection(bool overlaps) {
  suspects.clear();
  ForgetReleases();
  if (!overlaps) ForgetAllAccesses();
}

const void* Here() { return __builtin_return_address(0); }

}  // namespace eplb::cuda_emulator

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// NOLINTBEGIN(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp): the compiler's names
#define EPLB_ACCESS(name, size, writes)                                                        \
  extern "C" void __tsan_##name(void* address) {                                               \
    eplb::cuda_emulator::NoteKernelAccess(address, size, {writes}, __builtin_return_address(0)); \
  }
#define EPLB_VOLATILE(name, size, writes)                                                 \
  extern "C" void __tsan_##name(void* address) {                                          \
    eplb::cuda_emulator::NoteAtomicBytes(address, size, eplb::cuda_emulator::Order::kRelaxed, \
                                         !(writes), writes, __builtin_return_address(0)); \
  }
#define EPLB_ACCESSES(size)                         \
  EPLB_ACCESS(read##size, size, false)              \
  EPLB_ACCESS(write##size, size, true)              \
  EPLB_ACCESS(unaligned_read##size, size, false)    \
  EPLB_ACCESS(unaligned_write##size, size, true)    \
  EPLB_VOLATILE(volatile_read##size, size, false)   \
  EPLB_VOLATILE(volatile_write##size, size, true)   \
  EPLB_VOLATILE(unaligned_volatile_read##size, size, false) \
  EPLB_VOLATILE(unaligned_volatile_write##size, size, true)
EPLB_ACCESSES(1)
EPLB_ACCESSES(2)
EPLB_ACCESSES(4)
EPLB_ACCESSES(8)
EPLB_ACCESSES(16)
// Atomics of C++, of which a kernel's body may have some for the CPU.
#define EPLB_UPDATE(name, bits, value)                                                       \
  extern "C" uint##bits##_t __tsan_atomic##bits##_##name(uint##bits##_t* address,            \
                                                         uint##bits##_t b, int order) {      \
    eplb::cuda_emulator::NoteAtomic(address, order, true, true, __builtin_return_address(0)); \
    uint##bits##_t a = __atomic_load_n(address, __ATOMIC_SEQ_CST);                           \
    while (!__atomic_compare_exchange_n(address, &a, static_cast<uint##bits##_t>(value), false, \
                                        __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {               \
    }                                                                                        \
    return a;                                                                                \
  }
#define EPLB_COMPARE(name, bits)                                                             \
  extern "C" int __tsan_atomic##bits##_compare_exchange_##name(                              \
      uint##bits##_t* address, uint##bits##_t* expected, uint##bits##_t value, int order, int) { \
    eplb::cuda_emulator::NoteAtomic(address, order, true, true, __builtin_return_address(0)); \
    return __atomic_compare_exchange_n(address, expected, value, false, __ATOMIC_SEQ_CST,    \
                                       __ATOMIC_SEQ_CST)                                     \
               ? 1                                                                           \
               : 0;                                                                          \
  }
#define EPLB_ATOMICS(bits)                                                                   \
  extern "C" uint##bits##_t __tsan_atomic##bits##_load(const uint##bits##_t* address,        \
                                                       int order) {                          \
    eplb::cuda_emulator::NoteAtomic(address, order, true, false, __builtin_return_address(0)); \
    return __atomic_load_n(address, __ATOMIC_SEQ_CST);                                       \
  }                                                                                          \
  extern "C" void __tsan_atomic##bits##_store(uint##bits##_t* address, uint##bits##_t value, \
                                              int order) {                                   \
    eplb::cuda_emulator::NoteAtomic(address, order, false, true, __builtin_return_address(0)); \
    __atomic_store_n(address, value, __ATOMIC_SEQ_CST);                                      \
  }                                                                                          \
  EPLB_UPDATE(exchange, bits, b)                                                             \
  EPLB_UPDATE(fetch_add, bits, a + b)                                                        \
  EPLB_UPDATE(fetch_sub, bits, a - b)                                                        \
  EPLB_UPDATE(fetch_and, bits, a & b)                                                        \
  EPLB_UPDATE(fetch_or, bits, a | b)                                                         \
  EPLB_COMPARE(strong, bits)                                                                 \
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
