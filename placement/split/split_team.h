// The numbers of a split, and the team that works on a layer: one thread here, the lanes of a warp
// in cuda/kernels/lane_team.h.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "placement/split/gpu_set.h"

namespace eplb {

// tokens / speed, exact. All products of the body's numbers stay below 2^63: a peak has at most
// kMaxSplitTokens tokens and one for each GPU, and TokensWithin is bounded.
struct SplitPeak {
  int64_t tokens = 0;
  int64_t speed = 1;

  friend bool operator==(const SplitPeak&, const SplitPeak&) = default;
};

inline constexpr int64_t kMaxSplitTokens = int64_t{1} << 36;  // most tokens of a layer
inline constexpr int64_t kMaxSplitSpeed = int64_t{1} << 24;
inline constexpr int64_t kSplitSlackUnit = int64_t{1} << 20;  // a slack or tolerance of 1
// Most tokens of a layer that is split in 32-bit integers, over up to 128 GPUs: a number of the
// body is at most one of tokens for each GPU.
inline constexpr int64_t kMaxNarrowTokens = int64_t{1} << 24;

EPLB_HOST_DEVICE inline bool IsBelow(const SplitPeak& a, const SplitPeak& b) {
  return a.tokens * b.speed < b.tokens * a.speed;
}

// Returns the larger peak; if both are equal, the one with the lower speed, so that the order of
// comparisons does not matter.
EPLB_HOST_DEVICE inline SplitPeak LargerPeak(const SplitPeak& a, const SplitPeak& b) {
  if (IsBelow(a, b)) return b;
  return IsBelow(b, a) || a.speed <= b.speed ? a : b;
}

// Returns dividend / divisor. On the GPU the compiler calls a function for a 64-bit division, and a
// kernel with a call checks at each exchange between lanes that all of them take part.
// REQUIRES: dividend >= 0, divisor > 0.
EPLB_HOST_DEVICE inline int64_t Quotient(int64_t dividend, int64_t divisor) {
#ifdef __CUDA_ARCH__
  // An estimate that is never too large leaves 2^-19 of the rest.
  const float inverse = __fdividef(0.999998f, static_cast<float>(divisor));
  int64_t quotient = 0;
  EPLB_ROLLED
  while (dividend >= divisor) {
    const auto estimate = static_cast<int64_t>(static_cast<float>(dividend) * inverse);
    const int64_t step = estimate > 1 ? estimate : 1;
    quotient += step;
    dividend -= step * divisor;
  }
  return quotient;
#else
  return dividend / divisor;
#endif
}
EPLB_HOST_DEVICE inline int32_t Quotient(int32_t dividend, int32_t divisor) {
  return dividend / divisor;
}

// The most tokens that a GPU of this speed does within the peak. No GPU can have more than
// kMaxSplitTokens, so a fast GPU beside a slow one, whose peak is high, has no more either.
EPLB_HOST_DEVICE inline int64_t TokensWithin(const SplitPeak& peak, int64_t speed) {
  const int64_t product = peak.tokens * speed;
  const int64_t tokens = peak.speed == 1 ? product : Quotient(product, peak.speed);
  return tokens < kMaxSplitTokens ? tokens : kMaxSplitTokens;
}

// Team that works on a layer: one thread, or the lanes of a warp. All members make the same calls
// with the same arguments, but for the leader's of Add. ForEach calls with every index once and
// returns when all members have finished. First returns the first index that passes the test, or
// `end`; Where returns the members of a set that pass it. Sum, Max, Union and Largest give every
// member the same result. PerGpu keeps a number or a set of each GPU: Set and Mine are for the
// member that works on the GPU, Of and Increase are for all members.
struct OneThread {
  template <class T, int kWords>
  struct PerGpu {
    EPLB_HOST_DEVICE explicit PerGpu(T* memory) : values(memory) {}
    EPLB_HOST_DEVICE void Set(int32_t gpu, const T& value) const { values[gpu] = value; }
    EPLB_HOST_DEVICE const T& Mine(int32_t gpu) const { return values[gpu]; }
    EPLB_HOST_DEVICE T Of(int32_t gpu) const { return values[gpu]; }
    EPLB_HOST_DEVICE void Increase(int32_t gpu, T value) const { values[gpu] += value; }

    T* values;
  };

  // A move updates the steps of its GPUs at once. A warp finds those of all changed GPUs together.
  static constexpr bool kKeepsSteps = true;

  static constexpr bool leader() { return true; }
  template <class Work>
  EPLB_HOST_DEVICE void ForEach(int32_t count, const Work& work) const {
    EPLB_ROLLED
    for (int32_t i = 0; i < count; ++i) work(i);
  }
  template <int kWords, class Work>
  EPLB_HOST_DEVICE void ForEachGpu(int32_t num_gpus, const Work& work) const {
    ForEach(num_gpus, work);
  }
  template <int kWords, class Work>
  EPLB_HOST_DEVICE void ForEachIn(const GpuSet<kWords>& set, const Work& work) const {
    set.Visit(work);
  }
  template <class Test>
  EPLB_HOST_DEVICE int32_t First(int32_t begin, int32_t end, const Test& test) const {
    while (begin < end && !test(begin)) ++begin;
    return begin;
  }
  template <int kWords, class Test>
  EPLB_HOST_DEVICE GpuSet<kWords> Where(const GpuSet<kWords>& among, const Test& test) const {
    GpuSet<kWords> result = GpuSet<kWords>::None();
    among.Visit([&](int32_t gpu) { result.AddIf(test(gpu), gpu); });
    return result;
  }
  template <class Token>
  EPLB_HOST_DEVICE void Add(Token& sum, Token value) const {
    sum += value;
  }
  template <class Token>
  EPLB_HOST_DEVICE Token Sum(Token value) const {
    return value;
  }
  template <class Token>
  EPLB_HOST_DEVICE Token Max(Token value) const {
    return value;
  }
  template <int kWords>
  EPLB_HOST_DEVICE GpuSet<kWords> Union(const GpuSet<kWords>& set) const {
    return set;
  }
  EPLB_HOST_DEVICE SplitPeak Largest(const SplitPeak& peak) const { return peak; }
  EPLB_HOST_DEVICE void Sync() const {}
};

}  // namespace eplb
