// Targets of the benches' figures, and the verdict on them. Used by one binary at a time, so
// it is a header alone.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_format.h"

namespace eplb::bench {

inline constexpr double kMostCopyToMemcpy = 1 / 0.85;  // 85 % of its speed: 1.176 times its time
inline constexpr double kMostFusedToCopy = 1.05;
// Microseconds of 4,096 tokens x 8 choices, and of 131,072 x 8.
inline constexpr double kMostRouteUs4096 = 3;
inline constexpr double kMostRouteUs131072 = 4.5;
inline constexpr double kMostQuotaRouteUs4096 = 6;
inline constexpr double kMostQuotaRouteUs131072 = 15;
// Microseconds of a layer's split on up to 32 GPUs, and on more: the median and the slowest layer.
inline constexpr double kMostSplitUs32[] = {6, 30};
inline constexpr double kMostSplitUs64[] = {30, 90};
inline constexpr double kMostLoopSlowdown = 0.01;

struct Target {
  std::string what;
  std::string figure;  // its key in the bench's own line
  double value = 0;
  double at_most = 0;
  // Above at_most, but no more than this: a warning. Absent: there is no such range.
  std::optional<double> tolerated = std::nullopt;
};

enum class Verdict { kOk, kWarning, kMissed };

// A figure that is no number is a miss.
inline Verdict VerdictOn(const Target& target) {
  if (target.value <= target.at_most) return Verdict::kOk;
  const bool tolerated = target.tolerated.has_value() && target.value <= *target.tolerated;
  return tolerated ? Verdict::kWarning : Verdict::kMissed;
}

// Figure that a sound build reaches on a device where its kernels cannot reach the target: a
// checksum issues 22 instructions for 8 bytes, which the faster memory of an H200 waits for.
struct Tolerance {
  std::string_view device;  // in CUDA's name of it
  std::string_view figure;
  double at_most = 0;
};
inline constexpr Tolerance kTolerances[] = {
    {"H100", "fused_to_copy", 1.08},
    {"H200", "fused_to_copy", 1.12},
};

// The targets are for H100 and H200. On another device a miss is a warning.
inline std::vector<Target> OnDevice(std::vector<Target> targets, std::string_view device) {
  const auto is_on = [device](const Tolerance& tolerance) {
    return device.find(tolerance.device) != std::string_view::npos;
  };
  const bool is_known = std::any_of(std::begin(kTolerances), std::end(kTolerances), is_on);
  for (Target& target : targets) {
    if (!is_known) target.tolerated = std::numeric_limits<double>::max();
    for (const Tolerance& tolerance : kTolerances) {
      if (is_on(tolerance) && tolerance.figure == target.figure) {
        target.tolerated = tolerance.at_most;
      }
    }
  }
  return targets;
}

// Targets are for large rows; the time of small ones is their tables'.
inline std::vector<Target> CopyTargets(int32_t num_rows, int64_t row_bytes, double copy_to_memcpy,
                                       double fused_to_copy) {
  if (num_rows < 2 || row_bytes < int64_t{1} << 20) return {};
  const std::string rows = absl::StrFormat("%d rows of %d bytes", num_rows, row_bytes);
  return {{"copy of " + rows + " against cudaMemcpyAsync", "copy_to_memcpy", copy_to_memcpy,
           kMostCopyToMemcpy},
          {"checksum in the copy of " + rows + " against the copy alone", "fused_to_copy",
           fused_to_copy, kMostFusedToCopy}};
}

// Ids of 4 bytes are held to a time: those of 8 bytes wait for memory. Batches of other sizes are
// printed alone.
inline std::vector<Target> RouteTargets(int64_t num_tokens, int32_t top_k, int32_t id_bytes,
                                        double count_and_route_us) {
  if (id_bytes != 4 || (num_tokens != 4096 && num_tokens != 131'072)) return {};
  return {{absl::StrFormat("count and route of %d x %d", num_tokens, top_k), "count_and_route_us",
           count_and_route_us, num_tokens == 4096 ? kMostRouteUs4096 : kMostRouteUs131072}};
}

// The same for the count of the chunks and the routing by quota.
inline std::vector<Target> QuotaRouteTargets(int64_t num_tokens, int32_t top_k, int32_t id_bytes,
                                             double count_and_quota_route_us) {
  if (id_bytes != 4 || (num_tokens != 4096 && num_tokens != 131'072)) return {};
  return {{absl::StrFormat("count and route by quota of %d x %d", num_tokens, top_k),
           "count_and_quota_route_us", count_and_quota_route_us,
           num_tokens == 4096 ? kMostQuotaRouteUs4096 : kMostQuotaRouteUs131072}};
}

// Layers that are split alone, with the counts of all sources and the quotas of one of them.
inline std::vector<Target> SplitTargets(int32_t num_gpus, double tolerance, double p50_us,
                                        double max_us) {
  const std::string what =
      absl::StrFormat("split of a layer over %d GPUs, tolerance %.2f", num_gpus, tolerance);
  const auto& most = num_gpus <= 32 ? kMostSplitUs32 : kMostSplitUs64;
  return {{what, "p50_us", p50_us, most[0]}, {what, "max_us", max_us, most[1]}};
}

inline Target LoopTarget(double slowdown) {
  return {"training loop beside an idle client", "slowdown", slowdown, kMostLoopSlowdown};
}

// One JSON object on a line.
inline std::string VerdictLine(const Target& target) {
  constexpr std::string_view kWords[] = {"ok", "WARNING", "MISSED"};
  return absl::StrFormat(
      "{\"target\": \"%s\", \"figure\": \"%s\", \"value\": %.4f, \"at_most\": %.4f, "
      "\"verdict\": \"%s\"}\n",
      target.what, target.figure, target.value, target.at_most,
      kWords[static_cast<size_t>(VerdictOn(target))]);
}

// Returns the exit code of a bench that has run; a warning is no failure. check: a miss is a
// failure.
inline int ExitCode(const std::vector<Target>& targets, bool check) {
  const bool missed = std::any_of(targets.begin(), targets.end(), [](const Target& target) {
    return VerdictOn(target) == Verdict::kMissed;
  });
  return check && missed ? 1 : 0;
}

struct Arguments {
  bool usable = false;
  bool check = false;
};
// Accepts no argument, or --check alone.
inline Arguments ParseArguments(int argc, const char* const* argv) {
  const bool check = argc == 2 && std::string_view(argv[1]) == "--check";
  return {.usable = argc == 1 || check, .check = check};
}

}  // namespace eplb::bench
