// CUDA's extensions of C++ for kernels, included first by translated files.
#pragma once

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
template <class T>
unsigned __match_any_sync(unsigned mask, T value) {
  return static_cast<unsigned>(
      ::eplb::cuda_emulator::RunWarpCall({.operation = ::eplb::cuda_emulator::WarpOperation::kMatch,
                                          .mask = mask,
                                          .value = ::eplb::cuda_emulator::BitsOf(value)}));
}
inline unsigned __ballot_sync(unsigned mask, int test) {
  const unsigned same = __match_any_sync(mask, test != 0 ? 1 : 0);
  return test != 0 ? same : mask & ~same;
}

// ---- atomics, loads and stores with a hint, arithmetic ----

template <class T>
T atomicAdd(T* address, std::type_identity_t<T> value) {
  static_assert(std::is_same_v<T, int> || std::is_same_v<T, unsigned int> ||
                    std::is_same_v<T, unsigned long long>,
                "to C++ a uint64_t is none of CUDA's types");
  ::eplb::cuda_emulator::MayYield();
  ::eplb::cuda_emulator::CheckAccess(address, sizeof(T), sizeof(T));
  const T before = *address;
  *address += value;
  return before;
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
