// Settings of a job that name GPUs of its EP group: their texts and ranges.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace eplb::wire {

inline constexpr char kNoGpu[] = "none";
inline constexpr size_t kMaxNamedGpus = 64;  // in one setting
inline constexpr double kMinStatedSpeed = 0.05;
inline constexpr double kMaxStatedSpeed = 20;

// The speed of a GPU, relative to 1.
struct StatedSpeed {
  int32_t gpu = 0;
  double speed = 1;

  friend bool operator==(const StatedSpeed&, const StatedSpeed&) = default;
};

// Parses "3:0.5,7:0.8": at most kMaxNamedGpus GPUs, rising; speeds [kMinStatedSpeed,
// kMaxStatedSpeed]. "" or "none" for no GPU. errors: InvalidArgument.
absl::StatusOr<std::vector<StatedSpeed>> ParseSpeeds(std::string_view text);
std::string SpeedsText(const std::vector<StatedSpeed>& speeds);  // "" for none

// Parses "3,7": at most kMaxNamedGpus GPUs, rising. "" or "none" for no GPU. errors:
// InvalidArgument.
absl::StatusOr<std::vector<int32_t>> ParseGpus(std::string_view text);
std::string GpusText(const std::vector<int32_t>& gpus);  // "" for none

// Descriptions of the texts that ParseSpeeds and ParseGpus accept.
std::string SpeedsExpected();
inline constexpr char kGpusExpected[] = "\"GPU,..\" with rising GPUs, or \"none\"";

}  // namespace eplb::wire
