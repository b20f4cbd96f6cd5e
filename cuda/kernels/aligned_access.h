// Loads and stores of whole vectors: one instruction of the GPU for 16 bytes.
#ifndef EPLB_CUDA_KERNELS_ALIGNED_ACCESS_H_
#define EPLB_CUDA_KERNELS_ALIGNED_ACCESS_H_

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/host_device.h"

namespace eplb::cuda {

EPLB_HOST_DEVICE inline bool IsAligned(const void* address, uintptr_t alignment) {
  return reinterpret_cast<uintptr_t>(address) % alignment == 0;
}

// What a vector must be: made of 16-byte words.
template <class Vector>
inline constexpr bool kIsVector = std::is_trivially_copyable_v<Vector> && alignof(Vector) == 16;

// REQUIRES of both: the address is 16-byte aligned.
template <class Vector>
EPLB_HOST_DEVICE inline Vector LoadAligned(const void* address) {
  static_assert(kIsVector<Vector>);
  Vector vector;
#ifdef __CUDA_ARCH__
  // The GPU's compiler takes a memcpy apart where another path reads the same bytes singly.
  uint4 words[sizeof(Vector) / sizeof(uint4)];
  for (uint32_t i = 0; i < sizeof(Vector) / sizeof(uint4); ++i) {
    words[i] = static_cast<const uint4*>(address)[i];
  }
  std::memcpy(&vector, words, sizeof(Vector));
#else
  std::memcpy(&vector, address, sizeof(Vector));  // the bytes are of any type
#endif
  return vector;
}

template <class Vector>
EPLB_HOST_DEVICE inline void StoreAligned(void* address, const Vector& vector) {
  static_assert(kIsVector<Vector>);
#ifdef __CUDA_ARCH__
  uint4 words[sizeof(Vector) / sizeof(uint4)];
  std::memcpy(words, &vector, sizeof(Vector));
  for (uint32_t i = 0; i < sizeof(Vector) / sizeof(uint4); ++i) {
    static_cast<uint4*>(address)[i] = words[i];
  }
#else
  std::memcpy(address, &vector, sizeof(Vector));
#endif
}

}  // namespace eplb::cuda

#endif  // EPLB_CUDA_KERNELS_ALIGNED_ACCESS_H_
