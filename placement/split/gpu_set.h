// A set of GPUs, a bit each.
#pragma once

#include <cstdint>

#include "base/host_device.h"

namespace eplb {

// Set of up to 64 * kWords GPUs. A plain value: scratch memory of the GPU holds it, too.
template <int kWords>
struct GpuSet {
  static constexpr int32_t kMaxGpus = 64 * kWords;

  uint64_t words[kWords];

  EPLB_HOST_DEVICE static GpuSet None() {
    GpuSet set;
    for (int i = 0; i < kWords; ++i) set.words[i] = 0;
    return set;
  }

  // 0 .. num_gpus - 1.
  EPLB_HOST_DEVICE static GpuSet All(int32_t num_gpus) {
    GpuSet set;
    for (int i = 0; i < kWords; ++i) {
      const int32_t left = num_gpus - 64 * i;
      set.words[i] = left >= 64 ? ~uint64_t{0} : left > 0 ? Bit(left) - 1 : 0;
    }
    return set;
  }

  EPLB_HOST_DEVICE bool empty() const {
    uint64_t any = 0;
    for (int i = 0; i < kWords; ++i) any |= words[i];
    return any == 0;
  }
  EPLB_HOST_DEVICE bool Has(int32_t gpu) const {
    const uint32_t shift = static_cast<uint32_t>(gpu) % 64;
    if constexpr (kWords == 2) return ((IsInSecond(gpu) ? words[1] : words[0]) >> shift & 1) != 0;
    return (words[Word(gpu)] >> shift & 1) != 0;
  }
  EPLB_HOST_DEVICE void Add(int32_t gpu) { AddIf(true, gpu); }
  EPLB_HOST_DEVICE void AddIf(bool condition, int32_t gpu) {
    const uint64_t bit = static_cast<uint64_t>(condition) << (static_cast<uint32_t>(gpu) % 64);
    if constexpr (kWords == 2) {
      words[0] |= IsInSecond(gpu) ? 0 : bit;
      words[1] |= IsInSecond(gpu) ? bit : 0;
    } else {
      words[Word(gpu)] |= bit;
    }
  }
  EPLB_HOST_DEVICE void Remove(int32_t gpu) {
    if constexpr (kWords == 2) {
      words[0] &= IsInSecond(gpu) ? ~uint64_t{0} : ~Bit(gpu);
      words[1] &= IsInSecond(gpu) ? ~Bit(gpu) : ~uint64_t{0};
    } else {
      words[Word(gpu)] &= ~Bit(gpu);
    }
  }
  EPLB_HOST_DEVICE void AddAll(const GpuSet& other) {
    for (int i = 0; i < kWords; ++i) words[i] |= other.words[i];
  }
  // Has no branch in a set of one word, because processors would mispredict it.
  EPLB_HOST_DEVICE void AddAllIf(bool condition, const GpuSet& other) {
    if constexpr (kWords == 1) {
      words[0] |= other.words[0] & (condition ? ~uint64_t{0} : 0);
    } else if (condition) {
      AddAll(other);
    }
  }
  EPLB_HOST_DEVICE void KeepOnly(const GpuSet& other) {
    for (int i = 0; i < kWords; ++i) words[i] &= other.words[i];
  }
  EPLB_HOST_DEVICE void RemoveAll(const GpuSet& other) {
    for (int i = 0; i < kWords; ++i) words[i] &= ~other.words[i];
  }
  EPLB_HOST_DEVICE bool IsWithin(const GpuSet& other) const {
    uint64_t outside = 0;
    for (int i = 0; i < kWords; ++i) outside |= words[i] & ~other.words[i];
    return outside == 0;
  }
  EPLB_HOST_DEVICE bool Meets(const GpuSet& other) const {
    uint64_t both = 0;
    for (int i = 0; i < kWords; ++i) both |= words[i] & other.words[i];
    return both != 0;
  }
  // -1: empty.
  EPLB_HOST_DEVICE int32_t Lowest() const {
    for (int i = 0; i < kWords; ++i) {
      if (words[i] != 0) return 64 * i + LowestBit(words[i]);
    }
    return -1;
  }
  // Calls with every member, rising. `visit` may change this set: members at the call count.
  template <class Work>
  EPLB_HOST_DEVICE void Visit(const Work& visit) const {
    EPLB_UNROLL
    for (int i = 0; i < kWords; ++i) {
      EPLB_ROLLED
      for (uint64_t left = words[i]; left != 0; left &= left - 1) visit(64 * i + LowestBit(left));
    }
  }

 private:
  // A set of one or two words is never indexed by a variable: on the GPU it stays in registers.
  EPLB_HOST_DEVICE static uint32_t Word(int32_t gpu) {
    return kWords == 1 ? 0 : static_cast<uint32_t>(gpu) / 64;
  }
  EPLB_HOST_DEVICE static bool IsInSecond(int32_t gpu) { return gpu >= 64; }
  EPLB_HOST_DEVICE static uint64_t Bit(int32_t gpu) {
    return uint64_t{1} << (static_cast<uint32_t>(gpu) % 64);
  }
  EPLB_HOST_DEVICE static int32_t LowestBit(uint64_t word) {
#ifdef __CUDA_ARCH__
    return __ffsll(static_cast<long long>(word)) - 1;  // NOLINT(google-runtime-int): CUDA's type
#else
    return __builtin_ctzll(word);
#endif
  }
};

}  // namespace eplb
