// The lanes of a warp as a team that works on one layer: placement/split/split_team.h's OneThread,
// 32 times. A lane works on the GPUs with its number, modulo 32. What the lanes exchange is a
// Machine's: the GPU's warp, or a stand-in on the CPU.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "placement/split/gpu_set.h"
#include "placement/split/split_team.h"

namespace eplb::cuda {

inline constexpr int32_t kLanes = 32;

// Machine: lane(); Sync(), after which all lanes see what each wrote; Shuffle(value, lane) and
// ShuffleXor(value, distance), the value of another lane; Ballot(test), a bit of each lane;
// LowestBit; Sum, Max and Or of 32-bit numbers of all lanes; AddTo(sum, value), an atomic addition.
// All lanes make the same calls, but for AddTo.
template <class Machine>
class LaneTeam {
 public:
  static constexpr bool kKeepsSteps = false;

  template <class T, int kWords>
  class PerGpu {
   public:
    EPLB_HOST_DEVICE explicit PerGpu(const T* /*memory*/) {}

    EPLB_HOST_DEVICE void Set(int32_t gpu, const T& value) {
      if (gpu < kLanes) {
        first_ = value;
      } else if (kWords == 1 || gpu < 2 * kLanes) {
        second_ = value;
      } else if (gpu < 3 * kLanes) {
        third_ = value;
      } else {
        fourth_ = value;
      }
    }
    EPLB_HOST_DEVICE T Mine(int32_t gpu) const {
      const T low = gpu < kLanes ? first_ : second_;
      if constexpr (kWords == 1) return low;
      const T high = gpu < 3 * kLanes ? third_ : fourth_;
      return gpu < 2 * kLanes ? low : high;
    }
    EPLB_HOST_DEVICE T Of(int32_t gpu) const { return Machine::Shuffle(Mine(gpu), gpu % kLanes); }
    EPLB_HOST_DEVICE void Increase(int32_t gpu, T value) {
      if (gpu % kLanes == Machine::lane()) Set(gpu, Mine(gpu) + value);
    }

   private:
    static_assert(kWords <= 2);
    // Values for the GPUs lane(), lane() + 32, and so on. An array would not stay in registers.
    T first_, second_, third_, fourth_;
  };

  EPLB_HOST_DEVICE explicit LaneTeam(const Machine& machine) : machine_(machine) {}

  EPLB_HOST_DEVICE bool leader() const { return machine_.lane() == 0; }
  EPLB_HOST_DEVICE void Sync() const { machine_.Sync(); }
  template <class Token>
  EPLB_HOST_DEVICE void Add(Token& sum, Token value) const {
    machine_.AddTo(sum, value);
  }

  template <class Work>
  EPLB_HOST_DEVICE void ForEach(int32_t count, const Work& work) const {
    EPLB_ROLLED
    for (int32_t i = machine_.lane(); i < count; i += kLanes) work(i);
    machine_.Sync();
  }
  template <int kWords, class Work>
  EPLB_HOST_DEVICE void ForEachGpu(int32_t num_gpus, const Work& work) const {
    EPLB_UNROLL
    for (int32_t i = 0; i < 2 * kWords; ++i) {
      const int32_t gpu = machine_.lane() + i * kLanes;
      if (gpu < num_gpus) work(gpu);
    }
    machine_.Sync();
  }
  template <int kWords, class Work>
  EPLB_HOST_DEVICE void ForEachIn(const GpuSet<kWords>& set, const Work& work) const {
    EPLB_UNROLL
    for (int32_t i = 0; i < 2 * kWords; ++i) {
      const int32_t gpu = machine_.lane() + i * kLanes;
      if (set.Has(gpu)) work(gpu);
    }
    machine_.Sync();
  }
  template <class Test>
  EPLB_HOST_DEVICE int32_t First(int32_t begin, int32_t end, const Test& test) const {
    EPLB_ROLLED
    for (int32_t at = begin; at < end; at += kLanes) {
      // A lane without an index tests the first one, which costs no branch.
      const int32_t i = at + machine_.lane();
      const bool passes = test(i < end ? i : at);
      const uint32_t found = machine_.Ballot(i < end && passes);
      if (found != 0) return at + machine_.LowestBit(found);
    }
    return end;
  }
  template <int kWords, class Test>
  EPLB_HOST_DEVICE GpuSet<kWords> Where(const GpuSet<kWords>& among, const Test& test) const {
    GpuSet<kWords> result = GpuSet<kWords>::None();
    EPLB_UNROLL
    for (int32_t i = 0; i < 2 * kWords; ++i) {
      const int32_t gpu = machine_.lane() + i * kLanes;
      const uint64_t found = machine_.Ballot(among.Has(gpu) && test(gpu));
      result.words[i / 2] |= found << (i % 2 * kLanes);
    }
    return result;
  }

  EPLB_HOST_DEVICE int32_t Sum(int32_t value) const { return machine_.Sum(value); }
  EPLB_HOST_DEVICE int32_t Max(int32_t value) const { return machine_.Max(value); }
  // 64-bit numbers in pieces: the compiler then sees that all lanes have the same result.
  EPLB_HOST_DEVICE int64_t Sum(int64_t value) const {
    constexpr int32_t kPiece = 24;  // bits, so that the sum of 32 pieces has less than 32
    constexpr int64_t kMask = (int64_t{1} << kPiece) - 1;
    const int64_t low = machine_.Sum(static_cast<int32_t>(value & kMask));
    const int64_t middle = machine_.Sum(static_cast<int32_t>(value >> kPiece & kMask));
    const int64_t high = machine_.Sum(static_cast<int32_t>(value >> 2 * kPiece));
    return low + middle * (kMask + 1) + high * (kMask + 1) * (kMask + 1);
  }
  // REQUIRES: the value is not negative.
  EPLB_HOST_DEVICE int64_t Max(int64_t value) const {
    constexpr int32_t kPiece = 31;
    const auto high = static_cast<int32_t>(value >> kPiece);
    const auto low = static_cast<int32_t>(value & INT32_MAX);
    const int32_t highest = machine_.Max(high);
    return (int64_t{highest} << kPiece) + machine_.Max(high == highest ? low : 0);
  }
  template <int kWords>
  EPLB_HOST_DEVICE GpuSet<kWords> Union(GpuSet<kWords> set) const {
    EPLB_UNROLL
    for (int i = 0; i < kWords; ++i) {
      const uint64_t low = machine_.Or(static_cast<uint32_t>(set.words[i]));
      const uint64_t high = machine_.Or(static_cast<uint32_t>(set.words[i] >> kLanes));
      set.words[i] = low | high << kLanes;
    }
    return set;
  }
  EPLB_HOST_DEVICE SplitPeak Largest(SplitPeak peak) const {
    EPLB_ROLLED
    for (int32_t distance = kLanes / 2; distance > 0; distance /= 2) {
      peak = LargerPeak(peak, {machine_.ShuffleXor(peak.tokens, distance),
                               machine_.ShuffleXor(peak.speed, distance)});
    }
    return {machine_.Shuffle(peak.tokens, 0), machine_.Shuffle(peak.speed, 0)};
  }

 private:
  Machine machine_;
};

}  // namespace eplb::cuda
