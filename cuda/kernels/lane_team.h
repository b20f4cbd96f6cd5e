// The lanes of a warp as a team that works on one layer: placement/split/split_body.h's OneThread,
// 32 times. What the lanes exchange is a Machine's: the GPU's warp, or a stand-in on the CPU.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "placement/split/gpu_set.h"
#include "placement/split/split_body.h"

namespace eplb::cuda {

inline constexpr int32_t kLanes = 32;

// Machine: lane(); Sync(), after which all lanes see what each wrote; ShuffleXor(value, distance),
// the value of lane `lane() ^ distance`; AddTo(sum, value), an atomic addition. All lanes make the
// same calls of Sync and ShuffleXor.
template <class Machine>
class LaneTeam {
 public:
  EPLB_HOST_DEVICE explicit LaneTeam(const Machine& machine) : machine_(machine) {}

  EPLB_HOST_DEVICE bool leader() const { return machine_.lane() == 0; }
  EPLB_HOST_DEVICE void Sync() const { machine_.Sync(); }
  EPLB_HOST_DEVICE void Add(int64_t& sum, int64_t value) const { machine_.AddTo(sum, value); }

  template <class Work>
  EPLB_HOST_DEVICE void ForEach(int32_t count, const Work& work) const {
    for (int32_t i = machine_.lane(); i < count; i += kLanes) work(i);
    machine_.Sync();
  }
  template <int kWords, class Work>
  EPLB_HOST_DEVICE void ForEachIn(const GpuSet<kWords>& set, const Work& work) const {
    for (int32_t gpu = machine_.lane(); gpu < GpuSet<kWords>::kMaxGpus; gpu += kLanes) {
      if (set.Has(gpu)) work(gpu);
    }
    machine_.Sync();
  }

  EPLB_HOST_DEVICE int64_t Sum(int64_t value) const {
    for (int32_t distance = kLanes / 2; distance > 0; distance /= 2) {
      value += Exchange(value, distance);
    }
    return value;
  }
  EPLB_HOST_DEVICE int64_t Max(int64_t value) const {
    for (int32_t distance = kLanes / 2; distance > 0; distance /= 2) {
      const int64_t other = Exchange(value, distance);
      value = other > value ? other : value;
    }
    return value;
  }
  template <int kWords>
  EPLB_HOST_DEVICE GpuSet<kWords> Union(GpuSet<kWords> set) const {
    for (int32_t distance = kLanes / 2; distance > 0; distance /= 2) {
      for (int i = 0; i < kWords; ++i) {
        set.words[i] |= machine_.ShuffleXor(set.words[i], distance);
      }
    }
    return set;
  }
  EPLB_HOST_DEVICE SplitPeak Largest(SplitPeak peak) const {
    for (int32_t distance = kLanes / 2; distance > 0; distance /= 2) {
      peak = LargerPeak(peak, {Exchange(peak.tokens, distance), Exchange(peak.speed, distance)});
    }
    return peak;
  }

 private:
  EPLB_HOST_DEVICE int64_t Exchange(int64_t value, int32_t distance) const {
    return static_cast<int64_t>(machine_.ShuffleXor(static_cast<uint64_t>(value), distance));
  }

  Machine machine_;
};

}  // namespace eplb::cuda
