// Replays recorded loads: the functions of eplb_plan.h that tell what balancing would have saved.
#include "placement/replay/replay.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/errors.h"
#include "base/status_macros.h"
#include "client/c/call.h"
#include "client/c/client_handle.h"
#include "client/c/eplb_plan.h"
#include "client/c/plan.h"
#include "client/c/structs.h"
#include "placement/policies/registry.h"

#include <Eigen/Core>

namespace eplb::c {

namespace {

constexpr double kTokenNs = 176;  // the default of `eplbctl replay --token-ns`
constexpr double kMaxTokenNs = 1e9;
constexpr int64_t kHistory = 4;

eplb_replay_options DefaultReplayOptions() {
  eplb_replay_options options = {};
  options.struct_size = sizeof(options);
  options.min_gain = ReplayOptions().min_gain;
  options.token_ns = kTokenNs;
  options.steps_of_window = kUsualWindowSteps;
  options.every = 1;
  options.history = kHistory;
  options.num_gpus = 1;
  options.num_nodes = 1;
  options.num_groups = 1;
  return options;
}

// A caller's number that must be in a range.
absl::Status CheckRange(const char* name, double value, double least, double most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return InvalidInput(name, ": ", value, ", expected ", least, "..", most);
}

absl::StatusOr<ReplayOptions> MakeReplayOptions(const eplb_replay_options& options) {
  if (options.reserved != 0) return InvalidInput("options.reserved is not 0");
  const std::string_view split = options.split == nullptr ? "equal" : options.split;
  if (split != "equal" && split != "batch") {
    return InvalidInput("split: \"", options.split, "\", expected equal or batch");
  }
  EPLB_RETURN_IF_ERROR(CheckRange("min_gain", options.min_gain, 0, 1));
  EPLB_RETURN_IF_ERROR(CheckRange("token_ns", options.token_ns, 0, kMaxTokenNs));
  EPLB_RETURN_IF_ERROR(CheckRange("expert_bytes", static_cast<double>(options.expert_bytes), 0,
                                  static_cast<double>(int64_t{1} << 50)));
  ReplayOptions replay{.every = options.every,
                       .history = options.history,
                       .min_gain = options.min_gain,
                       .split = split == "batch" ? SplitMode::kBatch : SplitMode::kEqual};
  replay.costs.token_seconds = options.token_ns * 1e-9;
  replay.costs.expert.weight_bytes = options.expert_bytes;
  return replay;
}

absl::StatusOr<std::vector<Load>> ReadWindows(const eplb_replay_options& options,
                                              const int64_t* counts) {
  if (counts == nullptr) return InvalidInput("counts is NULL");
  if (options.num_windows < 1 || options.num_layers < 1 || options.num_experts < 1) {
    return InvalidInput("num_windows ", options.num_windows, ", num_layers ", options.num_layers,
                        ", num_experts ", options.num_experts, ", expected at least 1");
  }
  std::vector<Load> windows;
  const int64_t size = int64_t{options.num_layers} * options.num_experts;
  for (int32_t window = 0; window < options.num_windows; ++window) {
    const absl::StatusOr<Load> load = Load::FromCounts(Eigen::Map<const LoadMatrix>(
        counts + window * size, options.num_layers, options.num_experts));
    if (!load.ok()) {
      return InvalidInput("window ", window, ": ", load.status().message());
    }
    windows.push_back(*load);
  }
  return windows;
}

absl::StatusOr<ReplayResult> ReplayWindows(const eplb_replay_options& options,
                                           const int64_t* counts) {
  EPLB_ASSIGN_OR_RETURN(ReplayOptions replay, MakeReplayOptions(options));
  EPLB_RETURN_IF_ERROR(CheckRange("steps_of_window", static_cast<double>(options.steps_of_window),
                                  1, static_cast<double>(int64_t{1} << 31)));
  EPLB_ASSIGN_OR_RETURN(const std::vector<Load> windows, ReadWindows(options, counts));
  std::vector<StepRange> steps;
  for (int64_t first = 0; std::ssize(steps) < std::ssize(windows);
       first += options.steps_of_window) {
    steps.push_back({first, first + options.steps_of_window - 1});
  }
  EPLB_ASSIGN_OR_RETURN(const Topology topology, Topology::Make(ShapeOf(options)));
  replay.switch_time = UsualSwitchTime(topology, replay.costs);
  const std::string policy(options.policy == nullptr ? kServicePolicyName : options.policy);
  EPLB_RETURN_IF_ERROR(MakePolicy(policy, replay.policy).status());
  return Replay({windows, steps}, topology, policy, replay);
}

}  // namespace

}  // namespace eplb::c

extern "C" {

int32_t eplb_replay_options_init(eplb_replay_options* options, size_t struct_size) noexcept {
  return eplb::c::InitStruct(eplb::c::DefaultReplayOptions(), options, struct_size);
}

int32_t eplb_replay(const eplb_replay_options* options, const int64_t* counts,
                    eplb_replay_figures* figures) noexcept {
  return eplb::c::CatchAll([&]() -> absl::Status {
    EPLB_ASSIGN_OR_RETURN(const eplb_replay_options read,
                          eplb::c::ReadStruct("options", options, eplb::c::DefaultReplayOptions()));
    EPLB_RETURN_IF_ERROR(eplb::c::CheckFillable("figures", figures));
    EPLB_ASSIGN_OR_RETURN(const eplb::ReplayResult result, eplb::c::ReplayWindows(read, counts));
    const eplb::ReplaySummary& summary = result.summary;
    eplb_replay_figures found = {};
    found.balancedness_without_eplb =
        summary.balancedness_without_eplb_mean.value_or(eplb::c::kNoFigure);
    found.balancedness = summary.balancedness_mean.value_or(eplb::c::kNoFigure);
    found.seconds_without_eplb = summary.without_eplb_seconds;
    found.seconds_saved = summary.seconds_saved;
    found.seconds_spent = summary.seconds_spent;
    found.rebalances = summary.rebalances;
    found.transfers = summary.transfers;
    found.bytes = summary.bytes;
    eplb::c::FillStruct(found, figures);
    return absl::OkStatus();
  });
}

}  // extern "C"
