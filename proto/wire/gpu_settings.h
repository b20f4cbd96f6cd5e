// Settings of a job that name GPUs of its EP group: their text and their ranges.
// threads: safe, no state.
#ifndef EPLB_PROTO_WIRE_GPU_SETTINGS_H_
#define EPLB_PROTO_WIRE_GPU_SETTINGS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "base/value_range.h"

namespace eplb::wire {

inline constexpr size_t kMaxNamedGpus = 64;  // of one setting
inline constexpr double kMinStatedSpeed = 0.05;
inline constexpr double kMaxStatedSpeed = 20;

// The speed of a GPU, relative to 1.
struct StatedSpeed {
  int32_t gpu = 0;
  double speed = 1;

  friend bool operator==(const StatedSpeed&, const StatedSpeed&) = default;
};

// "3:0.5,7:0.8": at most kMaxNamedGpus GPUs, rising; speeds in kMinStatedSpeed..kMaxStatedSpeed. ""
// or "none" for no GPU. errors: InvalidArgument.
absl::StatusOr<std::vector<StatedSpeed>> ParseSpeeds(std::string_view text);
std::string SpeedsText(const std::vector<StatedSpeed>& speeds);  // "" for none

// "3,7": at most kMaxNamedGpus GPUs, rising. "" or "none" for no GPU. errors: InvalidArgument.
absl::StatusOr<std::vector<int32_t>> ParseGpus(std::string_view text);
std::string GpusText(const std::vector<int32_t>& gpus);  // "" for none

// As ParseSpeeds; the scalar is SpeedsText.
struct SpeedsRange {
  std::optional<Scalar> Read(const WrittenValue& written) const;
  bool Holds(const Scalar& value) const;
  std::string Expected() const;
};

// As ParseGpus; the scalar is GpusText.
struct GpusRange {
  std::optional<Scalar> Read(const WrittenValue& written) const;
  bool Holds(const Scalar& value) const;
  std::string Expected() const;
};

}  // namespace eplb::wire

#endif  // EPLB_PROTO_WIRE_GPU_SETTINGS_H_
