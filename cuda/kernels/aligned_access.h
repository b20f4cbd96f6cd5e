// Loads and stores of whole words and vectors: one instruction of the GPU for up to 16 bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/host_device.h"

namespace eplb::cuda {

EPLB_HOST_DEVICE inline bool IsAligned(const void* address, uintptr_t alignment) {
  return reinterpret_cast<uintptr_t>(address) % alignment == 0;
}

// True for a vector of 16-byte words.
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

// Largest unit of `kBytes` that the GPU loads at once.
#ifdef __CUDA_ARCH__
template <size_t kBytes>
struct DeviceWord;
template <>
struct DeviceWord<1> {
  using Type = unsigned char;
};
template <>
struct DeviceWord<2> {
  using Type = unsigned short;
};
template <>
struct DeviceWord<4> {
  using Type = unsigned int;
};
template <>
struct DeviceWord<8> {
  using Type = unsigned long long;
};
template <>
struct DeviceWord<16> {
  using Type = uint4;
};
#endif

// Load and store bytes that a kernel uses once, so that they leave the GPU's caches first. The
// bytes are in global memory of this GPU, another GPU or the host, which no compiler can tell from
// a pointer in a table. Word: 1, 2, 4, 8 or 16 bytes. REQUIRES of both: an address that is aligned
// to the size.
template <class Word>
EPLB_HOST_DEVICE inline Word LoadStreamed(const void* address) {
  static_assert(std::is_trivially_copyable_v<Word>);
  Word word;
#ifdef __CUDA_ARCH__
  using Type = typename DeviceWord<sizeof(Word)>::Type;
  const Type loaded = __ldcs(static_cast<const Type*>(address));
  std::memcpy(&word, &loaded, sizeof(Word));
#else
  std::memcpy(&word, address, sizeof(Word));
#endif
  return word;
}

template <class Word>
EPLB_HOST_DEVICE inline void StoreStreamed(void* address, const Word& word) {
  static_assert(std::is_trivially_copyable_v<Word>);
#ifdef __CUDA_ARCH__
  using Type = typename DeviceWord<sizeof(Word)>::Type;
  Type stored;
  std::memcpy(&stored, &word, sizeof(Word));
  __stcs(static_cast<Type*>(address), stored);
#else
  std::memcpy(address, &word, sizeof(Word));
#endif
}

}  // namespace eplb::cuda
