#include "client/cli/shape_options.h"

#include <algorithm>
#include <limits>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

#include "base/errors.h"
#include "base/files.h"
#include "base/quantity.h"
#include "base/status_macros.h"
#include "client/cli/text.h"
#include "placement/bandwidth.h"
#include "placement/figure_mean.h"

namespace eplb::cli {

absl::Status ReadLinks(const std::string& text, Costs& costs) {
  const std::vector<std::string> parts = absl::StrSplit(text, ',');
  const auto no = [&text] {
    return InvalidInput("--link-gbps is \"", text, "\", expected INTRA,INTER, each ",
                        kBandwidthExpected);
  };
  if (parts.size() != 2) return no();
  const absl::StatusOr<double> intra = ParseBandwidth(parts[0]);
  const absl::StatusOr<double> inter = ParseBandwidth(parts[1]);
  if (!intra.ok() || !inter.ok()) return no();
  costs.intra_bytes_per_s = *intra;
  costs.inter_bytes_per_s = *inter;
  return absl::OkStatus();
}

std::string LinksText(const CostOptions& options) {
  Costs costs;
  if (!ReadLinks(options.link_gbps, costs).ok()) return options.link_gbps;
  return absl::StrCat(BandwidthText(costs.intra_bytes_per_s), " inside a node and ",
                      BandwidthText(costs.inter_bytes_per_s), " between nodes");
}

std::string LinksNote(const CostOptions& options) {
  const std::vector<std::string> parts = absl::StrSplit(options.link_gbps, ',');
  std::string note;
  for (size_t i = 0; i < std::min<size_t>(parts.size(), 2); ++i) {
    const std::string one =
        BandwidthNote(parts[i], i == 0 ? LinkClass::kIntraNode : LinkClass::kInterNode);
    if (one.empty()) continue;
    absl::StrAppend(&note, note.empty() ? "note: " : "; ",
                    "--link-gbps: ", i == 0 ? "INTRA " : "INTER ", one);
  }
  return note;
}

namespace {

constexpr int64_t kMaxBytes = int64_t{1} << 50;  // 1 PiB
constexpr double kMaxTokenNs = 1e9;

absl::Status CheckBytes(const char* flag, int64_t bytes) {
  if (bytes >= 0 && bytes <= kMaxBytes) return absl::OkStatus();
  return InvalidInput(flag, " is ", bytes, ", expected 0..2^50");
}

absl::Status NotTaken(const ShapeOptions& options, const char* flag) {
  return InvalidInput("policy ", options.policy.name, " does not take ", flag);
}

// `--effort` bounds a search that the reference does not have, so any value is obeyed.
absl::Status CheckFrame(const ShapeOptions& options) {
  if (options.policy.follows_reference) {
    if (options.hierarchy == "soft") return NotTaken(options, "--hierarchy soft");
    if (options.allow_duplicates) return NotTaken(options, "--allow-duplicates");
    if (options.max_moves_per_gpu.has_value()) return NotTaken(options, "--max-moves-per-gpu");
  } else if (options.tie_break != "stable") {
    return NotTaken(options, "--tie-break compat");
  }
  if (options.max_moves_per_gpu.value_or(0) < 0) {
    return InvalidInput("--max-moves-per-gpu is ", *options.max_moves_per_gpu,
                        ", expected at least 0");
  }
  if (options.hierarchy == "strict" && options.nodes > 0 && options.groups % options.nodes != 0) {
    return InvalidInput("--hierarchy strict needs --groups ", options.groups,
                        " to be a multiple of --nodes ", options.nodes);
  }
  return absl::OkStatus();
}

std::optional<Hierarchy> GivenHierarchy(const ShapeOptions& options) {
  if (options.hierarchy == "strict") return Hierarchy::kStrict;
  if (options.hierarchy == "soft") return Hierarchy::kSoft;
  if (options.hierarchy == "none") return Hierarchy::kNone;
  return std::nullopt;
}

// Numbers separated by commas. `read` stores the number that a text is, or returns false.
template <class Number, class Read>
absl::StatusOr<std::vector<Number>> ReadList(const char* flag, const std::string& text, Read read) {
  std::vector<Number> numbers;
  if (text.empty()) return numbers;
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(text, ','))) {
    Number number = 0;
    if (!read(part, &number)) {
      return InvalidInput(flag, " is \"", text, "\", expected numbers separated by commas");
    }
    numbers.push_back(number);
  }
  return numbers;
}

absl::StatusOr<std::vector<int32_t>> ReadGpus(const char* flag, const std::string& text) {
  return ReadList<int32_t>(flag, text, [](const std::string& part, int32_t* gpu) {
    return absl::SimpleAtoi(part, gpu);
  });
}

// A message about a shape with the names that the user typed.
absl::Status InFlagNames(const absl::Status& status) {
  return {status.code(), absl::StrReplaceAll(status.message(), {{"num_gpus", "--gpus"},
                                                                {"num_slots", "--slots"},
                                                                {"num_nodes", "--nodes"},
                                                                {"num_groups", "--groups"}})};
}

constexpr double kRounding = 1e-9;
// Loads below it have few digits.
constexpr double kLeastNormal = std::numeric_limits<double>::min() / kRounding;

}  // namespace

absl::StatusOr<std::vector<double>> ParseNumbers(const char* flag, const std::string& text) {
  return ReadList<double>(flag, text, [](const std::string& part, double* value) {
    const std::optional<double> number = ParseFraction(part);
    if (number) *value = *number;
    return number.has_value();
  });
}

PolicyOptions PolicyOptionsOf(const ShapeOptions& options) {
  PolicyOptions policy;
  policy.tie_break = options.tie_break == "compat" ? TieBreak::kCompat : TieBreak::kStable;
  policy.hierarchy = GivenHierarchy(options);
  if (options.effort == "fast") policy.effort = Effort::kFast;
  if (options.effort == "thorough") policy.effort = Effort::kThorough;
  policy.allow_duplicates = options.allow_duplicates;
  policy.max_moves_per_gpu = options.max_moves_per_gpu;
  return policy;
}

absl::StatusOr<std::unique_ptr<Policy>> MakeCheckedPolicy(const ShapeOptions& options) {
  // Before the policy is made, because these errors name the flag. An unknown policy has no traits.
  const std::vector<std::string> names = PolicyNames();
  if (std::ranges::find(names, options.policy.name) != names.end()) {
    EPLB_RETURN_IF_ERROR(CheckFrame(options));
  }
  return MakePolicy(options.policy.name, PolicyOptionsOf(options));
}

absl::StatusOr<Topology> MakeTopology(const ShapeOptions& options, const Load& load,
                                      int32_t slots) {
  absl::StatusOr<Topology> topology = Topology::Make({.num_layers = load.num_layers(),
                                                      .num_experts = load.num_experts(),
                                                      .num_slots = slots,
                                                      .num_gpus = options.gpus,
                                                      .num_nodes = options.nodes,
                                                      .num_groups = options.groups});
  const int32_t least = std::max(load.num_experts(), options.gpus);
  if (!topology.ok() && slots > 0 && options.gpus > 0 && slots < least) {
    return InvalidInput(InFlagNames(topology.status()).message(),
                        ", next: ", EqualSlots(least, options.gpus), " slots");
  }
  if (!topology.ok()) return InFlagNames(topology.status());
  // The reference looks at expert groups only in its hierarchical branch, and says so itself.
  if (!options.policy.follows_reference && load.num_experts() % options.groups != 0) {
    return InvalidInput("--groups ", options.groups, " expert groups do not divide the ",
                        load.num_experts(), " experts");
  }
  return topology;
}

absl::StatusOr<GpuSpeeds> MakeSpeeds(const SpeedOptions& speeds, const ShapeOptions& options) {
  if (options.policy.follows_reference) {
    if (!speeds.gpu_speed.empty()) return NotTaken(options, "--gpu-speed");
    if (!speeds.unusable_gpus.empty()) return NotTaken(options, "--unusable-gpus");
  }
  EPLB_ASSIGN_OR_RETURN(const std::vector<double> numbers,
                        ParseNumbers("--gpu-speed", speeds.gpu_speed));
  EPLB_ASSIGN_OR_RETURN(std::vector<int32_t> unusable,
                        ReadGpus("--unusable-gpus", speeds.unusable_gpus));
  // The speeds alone first, so that a message names the flag that is wrong.
  const absl::Status alone = GpuSpeeds::Make(options.gpus, numbers, {}).status();
  if (!alone.ok()) return InvalidInput("--gpu-speed: ", alone.message());
  absl::StatusOr<GpuSpeeds> made = GpuSpeeds::Make(options.gpus, numbers, unusable);
  if (!made.ok()) return InvalidInput("--unusable-gpus: ", made.status().message());
  EPLB_ASSIGN_OR_RETURN(const std::vector<int32_t> lost, ReadLostGpus(speeds));
  unusable.insert(unusable.end(), lost.begin(), lost.end());
  made = GpuSpeeds::Make(options.gpus, numbers, unusable);
  if (made.ok()) return made;
  return InvalidInput("--without-gpus: ", made.status().message());
}

absl::StatusOr<std::vector<int32_t>> ReadLostGpus(const SpeedOptions& speeds) {
  if (speeds.without_gpus == kEachGpu) return std::vector<int32_t>();
  absl::StatusOr<std::vector<int32_t>> lost = ReadGpus("--without-gpus", speeds.without_gpus);
  if (lost.ok()) return lost;
  return InvalidInput(lost.status().message(), ", or ", kEachGpu);
}

absl::StatusOr<GpuSpeeds> SpeedsOfPlacement(const Placement& placement) {
  const int32_t num_gpus = placement.topology().num_gpus();
  std::vector<int32_t> unusable;
  for (int32_t gpu = 0; gpu < num_gpus; ++gpu) {
    if (!placement.Holds(GpuId{gpu})) unusable.push_back(gpu);
  }
  return GpuSpeeds::Make(num_gpus, {}, unusable);
}

Hierarchy HierarchyInForce(const ShapeOptions& options, const Topology& topology) {
  if (const auto given = GivenHierarchy(options); given.has_value()) return *given;
  if (!options.policy.follows_reference) return DefaultHierarchy(topology);
  return topology.num_groups() % topology.num_nodes() == 0 ? Hierarchy::kStrict : Hierarchy::kNone;
}

absl::StatusOr<Costs> MakeCosts(const CostOptions& options) {
  Costs costs;
  EPLB_RETURN_IF_ERROR(CheckBytes("--expert-bytes", options.expert_bytes));
  EPLB_RETURN_IF_ERROR(ReadLinks(options.link_gbps, costs));
  const double token_ns = options.token_ns.value_or(options.training ? kTrainingTokenNs : kTokenNs);
  if (!(token_ns > 0 && token_ns <= kMaxTokenNs)) {
    return InvalidInput("--token-ns is ", token_ns, ", expected a number above 0, at most 1e9");
  }
  costs.token_seconds = token_ns * 1e-9;
  costs.expert.weight_bytes = options.expert_bytes;
  if (!options.training) {
    if (options.weight_bytes.has_value() || options.gradient_bytes.has_value()) {
      return InvalidInput(
          "--weight-bytes and --gradient-bytes price replicas; they need --training");
    }
    return costs;
  }
  costs.replica_weight_bytes = options.weight_bytes.value_or(options.expert_bytes);
  EPLB_RETURN_IF_ERROR(CheckBytes("--weight-bytes", costs.replica_weight_bytes));
  costs.replica_gradient_bytes = options.gradient_bytes.value_or(2 * costs.replica_weight_bytes);
  EPLB_RETURN_IF_ERROR(CheckBytes("--gradient-bytes", options.gradient_bytes.value_or(0)));
  return costs;
}

SplitMode SplitModeOf(const std::string& split) {
  return split == "batch" ? SplitMode::kBatch : SplitMode::kEqual;
}

absl::Status CheckSplit(const std::string& split, const std::string& path,
                        std::span<const LoadWindow> windows) {
  if (SplitModeOf(split) != SplitMode::kBatch) return absl::OkStatus();
  return InFile(path, CheckBatches(windows, kMaxSplitTokens));
}

std::string NoHistoryNote(const ShapeOptions& options, const std::string& asked,
                          bool from_previous) {
  if (!options.policy.chooses) return {};
  return absl::StrCat("note: policy ", options.policy.name,
                      " chooses by a history of windows, which ", asked, " does not have: this is ",
                      std::string(from_previous ? kIncrementalPolicyName : kDefaultPolicyName));
}

std::string EqualSharesNote(const ShapeOptions& options, const std::string& split) {
  if (!options.policy.aims_at_splits || SplitModeOf(split) == SplitMode::kBatch) {
    return {};
  }
  return absl::StrCat("note: policy ", options.policy.name,
                      " needs --split batch; without it this is ",
                      std::string(kIncrementalPolicyName));
}

std::string ShapeText(const Topology& topology) {
  std::string text = absl::StrCat(
      Counted(topology.num_layers(), "layer"), " of ", Counted(topology.num_experts(), "expert"),
      " in ", Counted(topology.num_slots(), "slot"), " on ", Counted(topology.num_gpus(), "GPU"));
  if (topology.num_nodes() > 1) absl::StrAppend(&text, ", ", Counted(topology.num_nodes(), "node"));
  if (topology.num_groups() > 1) {
    absl::StrAppend(&text, ", ", Counted(topology.num_groups(), "expert group"));
  }
  return text;
}

std::string UnequalSlotsNote(int64_t slots, int64_t gpus) {
  const int64_t more = slots % gpus;
  if (more == 0) return {};
  return absl::StrCat("note: ", gpus, " GPUs do not divide ", slots, " slots (", slots / gpus + 1,
                      " on the first ", more, ", ", slots / gpus,
                      " on the others); the engines' formats need slots % GPUs == 0, next: ",
                      EqualSlots(slots, gpus), " slots");
}

absl::StatusOr<BoundGaps> GapsToBounds(const std::vector<double>& peaks,
                                       const std::vector<double>& bounds) {
  BoundGaps result;
  FigureMean mean;
  for (size_t layer = 0; layer < peaks.size(); ++layer) {
    const double peak = peaks[layer];
    if (bounds[layer] > peak * (1 + kRounding) && bounds[layer] > kLeastNormal) {
      return Internal("layer ", layer, ": the proved bound ", bounds[layer],
                      " is above the GPU load ", peak, " that was found; please report this");
    }
    const double bound = std::min(bounds[layer], peak);
    result.bounds.push_back(bound);
    std::optional<double> gap;
    if (peak > 0) {
      gap = bound > 0 ? peak / bound - 1 : 0;
      result.max = std::max(result.max.value_or(0), *gap);
    }
    result.gaps.push_back(gap);
    mean.Add(gap);
  }
  result.mean = mean.Value();
  return result;
}

}  // namespace eplb::cli
