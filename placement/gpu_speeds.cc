#include "placement/gpu_speeds.h"

#include <utility>

#include "base/errors.h"

namespace eplb {

GpuSpeeds::GpuSpeeds(std::vector<double> speeds) : speeds_(std::move(speeds)) {
  for (const double speed : speeds_) {
    num_usable_ += speed > 0 ? 1 : 0;
    total_ += speed;
    all_equal_ = all_equal_ && speed == speeds_.front();
  }
}

GpuSpeeds GpuSpeeds::Equal(int32_t num_gpus) {
  return GpuSpeeds(std::vector<double>(static_cast<size_t>(num_gpus), 1.0));
}

absl::StatusOr<GpuSpeeds> GpuSpeeds::Make(int32_t num_gpus, std::span<const double> speeds,
                                          std::span<const int32_t> unusable) {
  std::vector<double> result(speeds.begin(), speeds.end());
  if (speeds.empty()) result.assign(static_cast<size_t>(num_gpus), 1.0);
  if (result.size() != static_cast<size_t>(num_gpus)) {
    return InvalidInput(speeds.size(), " GPU speeds for ", num_gpus, " GPUs");
  }
  for (size_t gpu = 0; gpu < result.size(); ++gpu) {
    // Written so that NaN is refused too.
    if (!(result[gpu] >= kMinSpeed && result[gpu] <= kMaxSpeed)) {
      return InvalidInput("GPU ", gpu, " has speed ", result[gpu], ", expected ", kMinSpeed, "..",
                          kMaxSpeed);
    }
  }
  for (const int32_t gpu : unusable) {
    if (gpu < 0 || gpu >= num_gpus) {
      return InvalidInput("unusable GPU ", gpu, " is outside 0..", num_gpus - 1);
    }
    double& speed = result[static_cast<size_t>(gpu)];
    if (speed == 0) return InvalidInput("unusable GPU ", gpu, " is given twice");
    speed = 0;
  }
  GpuSpeeds made(std::move(result));
  if (made.num_usable() == 0) return InvalidInput("all ", num_gpus, " GPUs are unusable");
  return made;
}

}  // namespace eplb
