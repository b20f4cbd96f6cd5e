// CUDA's extensions of C++ for kernels, included first by translated files.
#ifndef EPLB_TESTS_SUPPORT_CUDA_EMULATOR_DEVICE_LANGUAGE_H_
#define EPLB_TESTS_SUPPORT_CUDA_EMULATOR_DEVICE_LANGUAGE_H_

#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <cuda_runtime_api.h>

#include "tests/support/cuda_emulator/launch.h"
#include "tests/support/cuda_emulator/machine.h"

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

#define threadIdx (::eplb::cuda_emulator::current_position->thread)
#define blockIdx (::eplb::cuda_emulator::current_position->block)
#define blockDim (::eplb::cuda_emulator::current_position->block_dim)
#define gridDim (::eplb::cuda_emulator::current_position->grid_dim)
#define warpSize (::eplb::cuda_emulator::kWarpLanes)

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

// A vector of CUDA's, which checks each address that it is read from or written to.
#define EPLB_EMULATED_VECTOR(Name, Scalar, alignment, ...)                                   \
  struct alignas(alignment) Name {                                                           \
    Scalar __VA_ARGS__;                                                                      \
    Name() = default;                                                                        \
    Name(const Name& other) { Copy(other); }                                                 \
    Name& operator=(const Name& other) {                                                     \
      Copy(other);                                                                           \
      return *this;                                                                          \
    }                                                                                        \
                                                                                             \
   private:                                                                                  \
    void Copy(const Name& other) {                                                           \
      CheckAccess(this, sizeof(Name), alignment);                                            \
      CheckAccess(&other, sizeof(Name), alignment);                                          \
      std::memcpy(static_cast<void*>(this), static_cast<const void*>(&other), sizeof(Name)); \
    }                                                                                        \
  }
EPLB_EMULATED_VECTOR(Int2, int, 8, x, y);
EPLB_EMULATED_VECTOR(Int4, int, 16, x, y, z, w);
EPLB_EMULATED_VECTOR(Uint2, unsigned int, 8, x, y);
EPLB_EMULATED_VECTOR(Uint4, unsigned int, 16, x, y, z, w);
EPLB_EMULATED_VECTOR(Float2, float, 8, x, y);
EPLB_EMULATED_VECTOR(Float4, float, 16, x, y, z, w);
EPLB_EMULATED_VECTOR(Double2, double, 16, x, y);
EPLB_EMULATED_VECTOR(Longlong2, long long, 16, x, y);
EPLB_EMULATED_VECTOR(Ulonglong2, unsigned long long, 16, x, y);
#undef EPLB_EMULATED_VECTOR

// Value that a lane publishes, as bits.
template <class T>
uint64_t BitsOf(const T& value) {
  static_assert(std::is_arithmetic_v<T> && sizeof(T) >= sizeof(int), "CUDA shuffles 4 or 8 bytes");
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  return bits;
}
template <class T>
T ValueOf(uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

// source: the lane within the segment of `width`; beyond it each lane keeps its own value.
template <class T>
T Shuffle(WarpOperation operation, uint32_t mask, T value, int32_t source, int32_t width) {
  const int32_t lane = CurrentLane();
  const int32_t first = lane / width * width;
  const bool within = source >= first && source < first + width;
  return ValueOf<T>(RunWarpCall({.operation = operation,
                                 .mask = mask,
                                 .value = BitsOf(value),
                                 .source = within ? source : lane}));
}

// One of the types that CUDA's atomics take: to C++ a uint64_t is none of them.
template <class T>
inline constexpr bool kIsAtomic =
    std::is_same_v<T, int> || std::is_same_v<T, unsigned int> ||
    std::is_same_v<T, unsigned long long> || std::is_same_v<T, float> || std::is_same_v<T, double>;

template <class T, class Change>
T Atomically(T* address, const Change& change) {
  static_assert(kIsAtomic<T>);
  MayYield();
  CheckAccess(address, sizeof(T), sizeof(T));
  const T before = *address;
  *address = change(before);
  return before;
}

template <class T>
T CheckedLoad(const T* address) {
  CheckAccess(address, sizeof(T), alignof(T));
  return *address;
}
template <class T>
void CheckedStore(T* address, const std::type_identity_t<T>& value) {
  CheckAccess(address, sizeof(T), alignof(T));
  *address = value;
}

}  // namespace eplb::cuda_emulator

#define int2 ::eplb::cuda_emulator::Int2
#define int4 ::eplb::cuda_emulator::Int4
#define uint2 ::eplb::cuda_emulator::Uint2
#define uint4 ::eplb::cuda_emulator::Uint4
#define float2 ::eplb::cuda_emulator::Float2
#define float4 ::eplb::cuda_emulator::Float4
#define double2 ::eplb::cuda_emulator::Double2
#define longlong2 ::eplb::cuda_emulator::Longlong2
#define ulonglong2 ::eplb::cuda_emulator::Ulonglong2

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
  const int lane = ::eplb::cuda_emulator::CurrentLane();
  return ::eplb::cuda_emulator::Shuffle(::eplb::cuda_emulator::WarpOperation::kShuffle, mask, value,
                                        lane / width * width + source % width, width);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned distance, int width = 32) {
  const int source = ::eplb::cuda_emulator::CurrentLane() - static_cast<int>(distance);
  return ::eplb::cuda_emulator::Shuffle(::eplb::cuda_emulator::WarpOperation::kShuffleUp, mask,
                                        value, source, width);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned distance, int width = 32) {
  const int source = ::eplb::cuda_emulator::CurrentLane() + static_cast<int>(distance);
  return ::eplb::cuda_emulator::Shuffle(::eplb::cuda_emulator::WarpOperation::kShuffleDown, mask,
                                        value, source, width);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int distance, int width = 32) {
  const int source = ::eplb::cuda_emulator::CurrentLane() ^ distance;
  return ::eplb::cuda_emulator::Shuffle(::eplb::cuda_emulator::WarpOperation::kShuffleXor, mask,
                                        value, source, width);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  return static_cast<unsigned>(
      ::eplb::cuda_emulator::RunWarpCall({.operation = ::eplb::cuda_emulator::WarpOperation::kVote,
                                          .mask = mask,
                                          .value = predicate != 0 ? uint64_t{1} : 0}));
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate == 0 ? 1 : 0) == 0;
}
template <class T>
unsigned __match_any_sync(unsigned mask, T value) {
  return static_cast<unsigned>(
      ::eplb::cuda_emulator::RunWarpCall({.operation = ::eplb::cuda_emulator::WarpOperation::kMatch,
                                          .mask = mask,
                                          .value = ::eplb::cuda_emulator::BitsOf(value)}));
}
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}

// ---- atomics: of a block, the device and the system alike ----

#define EPLB_EMULATED_ATOMIC(name, expression)                                 \
  template <class T>                                                           \
  T name(T* address, std::type_identity_t<T> value) {                          \
    return ::eplb::cuda_emulator::Atomically(address, [value](T before) -> T { \
      (void)before;                                                            \
      return expression;                                                       \
    });                                                                        \
  }                                                                            \
  template <class T>                                                           \
  T name##_block(T* address, std::type_identity_t<T> value) {                  \
    return name(address, value);                                               \
  }                                                                            \
  template <class T>                                                           \
  T name##_system(T* address, std::type_identity_t<T> value) {                 \
    return name(address, value);                                               \
  }
EPLB_EMULATED_ATOMIC(atomicAdd, before + value)
EPLB_EMULATED_ATOMIC(atomicSub, before - value)
EPLB_EMULATED_ATOMIC(atomicMax, before < value ? value : before)
EPLB_EMULATED_ATOMIC(atomicMin, value < before ? value : before)
EPLB_EMULATED_ATOMIC(atomicAnd, before& value)
EPLB_EMULATED_ATOMIC(atomicOr, before | value)
EPLB_EMULATED_ATOMIC(atomicXor, before ^ value)
EPLB_EMULATED_ATOMIC(atomicExch, value)
#undef EPLB_EMULATED_ATOMIC
template <class T>
T atomicCAS(T* address, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  return ::eplb::cuda_emulator::Atomically(
      address, [=](T before) { return before == expected ? value : before; });
}

// ---- loads and stores with a hint, arithmetic ----

#define EPLB_EMULATED_LOAD(name)                        \
  template <class T>                                    \
  T name(const T* address) {                            \
    return ::eplb::cuda_emulator::CheckedLoad(address); \
  }
EPLB_EMULATED_LOAD(__ldg)
EPLB_EMULATED_LOAD(__ldca)
EPLB_EMULATED_LOAD(__ldcg)
EPLB_EMULATED_LOAD(__ldcs)
EPLB_EMULATED_LOAD(__ldcv)
EPLB_EMULATED_LOAD(__ldlu)
#undef EPLB_EMULATED_LOAD
#define EPLB_EMULATED_STORE(name)                               \
  template <class T>                                            \
  void name(T* address, const std::type_identity_t<T>& value) { \
    ::eplb::cuda_emulator::CheckedStore(address, value);        \
  }
EPLB_EMULATED_STORE(__stwb)
EPLB_EMULATED_STORE(__stcg)
EPLB_EMULATED_STORE(__stcs)
EPLB_EMULATED_STORE(__stwt)
#undef EPLB_EMULATED_STORE

// Files that include this are compiled without contraction: each is rounded.
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __fma_rn(double a, double b, double c) { return __builtin_fma(a, b, c); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline int __popc(unsigned bits) { return std::popcount(bits); }
inline int __popcll(unsigned long long bits) { return std::popcount(bits); }
inline int __clz(int bits) { return std::countl_zero(static_cast<unsigned>(bits)); }
inline int __clzll(long long bits) {
  return std::countl_zero(static_cast<unsigned long long>(bits));
}
inline int __ffs(int bits) {
  return bits == 0 ? 0 : std::countr_zero(static_cast<unsigned>(bits)) + 1;
}
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(uint64_t{a} * b >> 32);
}
inline unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }
inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }

#endif  // EPLB_TESTS_SUPPORT_CUDA_EMULATOR_DEVICE_LANGUAGE_H_
