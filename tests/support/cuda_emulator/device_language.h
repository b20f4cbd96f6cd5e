// CUDA's extensions of C++ for kernels, included first by translated files.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <cuda_runtime_api.h>

#include "tests/support/cuda_emulator/device_memory.h"
#include "tests/support/cuda_emulator/launch.h"
#include "tests/support/cuda_emulator/machine.h"
#include "tests/support/cuda_emulator/race.h"

// The paths for the GPU are taken. Not before CUDA's own headers, which would take theirs too.
#define __CUDA_ARCH__ 900

#undef __global__
#undef __device__
#undef __host__
#undef __forceinline__
#undef __noinline__
#undef __launch_bounds__
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)  // translate.py writes the check

#define cudaLaunchKernelEx(config, ...) \
  ::eplb::cuda_emulator::LaunchEx(#__VA_ARGS__, config, __VA_ARGS__)

namespace eplb::cuda_emulator {

template <class T>
T* DynamicShared() {
  return reinterpret_cast<T*>(DynamicSharedMemory());
}

// Key: a type of its own for each declaration, and each instantiation of the function around it.
template <class T, class Key>
T& StaticShared(Key /*key*/) {
  static const char kKey = 0;
  return *reinterpret_cast<T*>(StaticSharedMemory(&kKey, sizeof(T), alignof(T)));
}

// CUDA's uint4, which checks each address that it is read from or written to.
struct alignas(16) Uint4 {
  unsigned int x, y, z, w;
  Uint4() = default;
  Uint4(const Uint4& other) { Copy(other); }
  Uint4& operator=(const Uint4& other) {
    Copy(other);
    return *this;
  }

 private:
  void Copy(const Uint4& other) {
    CheckAccess(this, sizeof(Uint4), alignof(Uint4));
    CheckAccess(&other, sizeof(Uint4), alignof(Uint4));
    std::memcpy(static_cast<void*>(this), static_cast<const void*>(&other), sizeof(Uint4));
  }
};

template <class T>
Bits BitsOf(const T& value) {
  static_assert(std::is_arithmetic_v<T> && sizeof(T) <= sizeof(Bits));
  Bits bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  return bits;
}
template <class T>
T ValueOf(Bits bits) {
  T value;
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

// A value that lanes exchange or compare.
template <class T>
Bits BitsOfLane(const T& value) {
  static_assert(sizeof(T) >= sizeof(int), "CUDA shuffles 4 or 8 bytes");
  return BitsOf(value);
}

// source: the lane within the segment of `width`; beyond it each lane keeps its own value.
template <class T>
T Shuffle(uint32_t mask, T value, int32_t source, int32_t width) {
  const int32_t lane = CurrentLane();
  const int32_t first = lane / width * width;
  const bool within = source >= first && source < first + width;
  return ValueOf<T>(RunWarpCall({.operation = WarpOperation::kShuffle,
                                 .mask = mask,
                                 .value = BitsOfLane(value),
                                 .source = within ? source : lane}));
}

// Numbers are widened, so that one comparison of 64 bits fits both signs.
template <class T>
T Reduce(WarpOperation operation, uint32_t mask, T value) {
  return static_cast<T>(RunWarpCall({.operation = operation,
                                     .mask = mask,
                                     .value = static_cast<Bits>(static_cast<int64_t>(value))}));
}

template <class T>
T Update(T* address, T value, Bits (*next)(Bits before, Bits operand), const void* place) {
  static_assert(std::is_same_v<T, int> || std::is_same_v<T, unsigned int> ||
                    std::is_same_v<T, unsigned long long> || std::is_floating_point_v<T>,
                "to C++ a uint64_t is none of CUDA's types");
  return ValueOf<T>(UpdateWord(address, sizeof(T), BitsOf(value), next, Order::kRelaxed, place));
}

// Values of PTX's loads and stores, by way of the type of the instruction.
template <class T, class Register>
void Assign(T& to, Register from) {
  if constexpr (std::is_floating_point_v<T> != std::is_floating_point_v<Register>) {
    static_assert(sizeof(T) == sizeof(Register));
    std::memcpy(&to, &from, sizeof(T));
  } else {
    to = static_cast<T>(from);
  }
}

// address: a pointer or its bits. A vector is aligned to its size.
template <class T, class Address, class... Registers>
void PtxLoad(Address address, int offset, Registers&... registers) {
  const auto* from = reinterpret_cast<const T*>((const char*)address + offset);
  CheckAccess(from, sizeof...(registers) * sizeof(T), sizeof...(registers) * sizeof(T));
  (Assign(registers, *from++), ...);
}
template <class T, class Address, class... Registers>
void PtxStore(Address address, int offset, const Registers&... registers) {
  auto* to = reinterpret_cast<T*>((char*)address + offset);
  CheckAccess(to, sizeof...(registers) * sizeof(T), sizeof...(registers) * sizeof(T));
  (Assign(*to++, registers), ...);
}
template <class T, Order kOrder, class Address, class Register>
[[gnu::always_inline]] inline void PtxLoadWord(Address address, int offset, Register& to) {
  Assign(to, ValueOf<T>(LoadWord((const char*)address + offset, sizeof(T), kOrder, Here())));
}
template <class T, Order kOrder, class Address, class Register>
[[gnu::always_inline]] inline void PtxStoreWord(Address address, int offset, Register from) {
  T value;
  Assign(value, from);
  StoreWord((char*)address + offset, sizeof(T), BitsOf(value), kOrder, Here());
}

}  // namespace eplb::cuda_emulator

#define uint4 ::eplb::cuda_emulator::Uint4

// ---- barriers, warps ----

inline void __syncthreads(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  ::eplb::cuda_emulator::WaitForBlock({file, line});
}
inline void __syncwarp(unsigned mask = 0xffffffff) {
  ::eplb::cuda_emulator::RunWarpCall(
      {.operation = ::eplb::cuda_emulator::WarpOperation::kSync, .mask = mask});
}
template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  const int first = ::eplb::cuda_emulator::CurrentLane() / width * width;
  return ::eplb::cuda_emulator::Shuffle(mask, value, first + source % width, width);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned distance, int width = 32) {
  const int source = ::eplb::cuda_emulator::CurrentLane() + static_cast<int>(distance);
  return ::eplb::cuda_emulator::Shuffle(mask, value, source, width);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned distance, int width = 32) {
  const int source = ::eplb::cuda_emulator::CurrentLane() - static_cast<int>(distance);
  return ::eplb::cuda_emulator::Shuffle(mask, value, source, width);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int distance, int width = 32) {
  const int source = ::eplb::cuda_emulator::CurrentLane() ^ distance;
  return ::eplb::cuda_emulator::Shuffle(mask, value, source, width);
}
template <class T>
unsigned __match_any_sync(unsigned mask, T value) {
  return static_cast<unsigned>(
      ::eplb::cuda_emulator::RunWarpCall({.operation = ::eplb::cuda_emulator::WarpOperation::kMatch,
                                          .mask = mask,
                                          .value = ::eplb::cuda_emulator::BitsOfLane(value)}));
}
inline unsigned __ballot_sync(unsigned mask, int test) {
  const unsigned same = __match_any_sync(mask, test != 0 ? 1 : 0);
  return test != 0 ? same : mask & ~same;
}
inline int __any_sync(unsigned mask, int test) { return __ballot_sync(mask, test) != 0; }
inline int __all_sync(unsigned mask, int test) { return __ballot_sync(mask, !test) == 0; }

#define EPLB_REDUCE(name, operation, T)                                                         \
  inline T __reduce_##name##_sync(unsigned mask, T value) {                                     \
    return ::eplb::cuda_emulator::Reduce(::eplb::cuda_emulator::WarpOperation::operation, mask, \
                                         value);                                                \
  }
EPLB_REDUCE(add, kAdd, int)
EPLB_REDUCE(add, kAdd, unsigned)
EPLB_REDUCE(min, kMin, int)
EPLB_REDUCE(min, kMin, unsigned)
EPLB_REDUCE(max, kMax, int)
EPLB_REDUCE(max, kMax, unsigned)
EPLB_REDUCE(and, kAnd, unsigned)
EPLB_REDUCE(or, kOr, unsigned)
EPLB_REDUCE(xor, kXor, unsigned)
#undef EPLB_REDUCE

// ---- programmatic dependent launch, fences, waits ----

inline void cudaGridDependencySynchronize() { ::eplb::cuda_emulator::WaitForPredecessors(); }
inline void cudaTriggerProgrammaticLaunchCompletion() {}  // a dependent launch never waits for it
inline void __threadfence_block() { ::eplb::cuda_emulator::Fence(); }
inline void __threadfence() { ::eplb::cuda_emulator::Fence(); }
inline void __threadfence_system() { ::eplb::cuda_emulator::Fence(); }
inline void __nanosleep(unsigned) { ::eplb::cuda_emulator::YieldToAll(); }
inline long long clock64() { return static_cast<long long>(::eplb::cuda_emulator::GlobalTimer()); }

// ---- atomics, loads and stores with a hint, arithmetic ----

#define EPLB_ATOMIC(name, result)                                                           \
  template <class T>                                                                        \
  [[gnu::always_inline]] inline T atomic##name(T* address, std::type_identity_t<T> value) { \
    using ::eplb::cuda_emulator::Bits;                                                      \
    return ::eplb::cuda_emulator::Update(                                                   \
        address, value,                                                                     \
        [](Bits before, Bits operand) {                                                     \
          const T a = ::eplb::cuda_emulator::ValueOf<T>(before);                            \
          const T b = ::eplb::cuda_emulator::ValueOf<T>(operand);                           \
          return ::eplb::cuda_emulator::BitsOf<T>(result);                                  \
        },                                                                                  \
        ::eplb::cuda_emulator::Here());                                                     \
  }
EPLB_ATOMIC(Add, static_cast<T>(a + b))
EPLB_ATOMIC(Min, b < a ? b : a)
EPLB_ATOMIC(Max, a < b ? b : a)
EPLB_ATOMIC(And, a& b)
EPLB_ATOMIC(Or, a | b)
EPLB_ATOMIC(Xor, a ^ b)
EPLB_ATOMIC(Exch, (static_cast<void>(a), b))
#undef EPLB_ATOMIC
template <class T>
[[gnu::always_inline]] inline T atomicCAS(T* address, std::type_identity_t<T> expected,
                                          std::type_identity_t<T> value) {
  using ::eplb::cuda_emulator::BitsOf;
  return ::eplb::cuda_emulator::ValueOf<T>(::eplb::cuda_emulator::ExchangeWordIf(
      address, sizeof(T), BitsOf(expected), BitsOf(value), ::eplb::cuda_emulator::Here()));
}
template <class T>
T __ldg(const T* address) {
  ::eplb::cuda_emulator::CheckAccess(address, sizeof(T), alignof(T));
  return *address;
}
template <class T>
T __ldcs(const T* address) {
  ::eplb::cuda_emulator::CheckAccess(address, sizeof(T), alignof(T));
  return *address;
}
template <class T>
void __stcs(T* address, const std::type_identity_t<T>& value) {
  ::eplb::cuda_emulator::CheckAccess(address, sizeof(T), alignof(T));
  *address = value;
}

// Files that include this are compiled without contraction, so each result is rounded.
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline int __popc(unsigned bits) { return std::popcount(bits); }
inline int __popcll(unsigned long long bits) { return std::popcount(bits); }
inline float __fdividef(float a, float b) { return a / b; }
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline int __ffsll(long long bits) { return __builtin_ffsll(bits); }
inline int __clz(int bits) { return std::countl_zero(static_cast<unsigned>(bits)); }
inline int __clzll(long long bits) {
  return std::countl_zero(static_cast<unsigned long long>(bits));
}
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(static_cast<unsigned long long>(a) * b >> 32);
}
