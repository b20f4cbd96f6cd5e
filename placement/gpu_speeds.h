// How fast each GPU is, and which may hold experts at all.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "placement/ids.h"

namespace eplb {

// Relative speeds of the GPUs of an expert-parallel group. A GPU with speed 0.5 takes twice the
// time for a token, so it should get half the tokens; a GPU load is tokens / speed. An unusable GPU
// has speed 0 and holds nothing. Threads: immutable.
class GpuSpeeds {
 public:
  static constexpr double kMinSpeed = 1e-3;
  static constexpr double kMaxSpeed = 1e3;

  // All usable, all with speed 1.
  static GpuSpeeds Equal(int32_t num_gpus);
  // speeds: one per GPU, or empty for 1 everywhere. unusable: GPUs to leave empty, in any order.
  // errors: InvalidArgument, naming the GPU: another number of speeds than GPUs, a speed outside
  // kMinSpeed..kMaxSpeed, an unusable GPU that is out of range or given twice, none left.
  static absl::StatusOr<GpuSpeeds> Make(int32_t num_gpus, std::span<const double> speeds,
                                        std::span<const int32_t> unusable);

  int32_t num_gpus() const { return static_cast<int32_t>(speeds_.size()); }
  int32_t num_usable() const { return num_usable_; }
  // Sum over usable GPUs.
  double total() const { return total_; }
  // No GPU is unusable and all have one speed.
  bool all_equal() const { return all_equal_; }
  double SpeedOf(GpuId gpu) const { return speeds_[static_cast<size_t>(gpu.value)]; }
  bool Usable(GpuId gpu) const { return SpeedOf(gpu) > 0; }
  std::span<const double> speeds() const { return speeds_; }  // [G], 0 for an unusable GPU

  friend bool operator==(const GpuSpeeds&, const GpuSpeeds&) = default;

 private:
  explicit GpuSpeeds(std::vector<double> speeds);

  std::vector<double> speeds_;
  int32_t num_usable_ = 0;
  double total_ = 0;
  bool all_equal_ = true;
};

}  // namespace eplb
