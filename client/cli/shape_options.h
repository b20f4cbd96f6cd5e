// Options that `plan`, `replay` and `sweep` share: the job's shape, the policy, the GPUs' speeds
// and the prices.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "client/cli/formats/load_window.h"
#include "placement/decision/cost.h"
#include "placement/gpu_speeds.h"
#include "placement/load.h"
#include "placement/placement.h"
#include "placement/policies/registry.h"
#include "placement/policy.h"
#include "placement/split/batch_split.h"
#include "placement/topology.h"

namespace eplb::cli {

struct ShapeOptions {
  int32_t gpus = 0;
  int32_t nodes = 1;
  int32_t groups = 1;
  NamedPolicy policy = kDefaultPolicyName;
  std::string tie_break = "stable";  // stable, compat
  std::string hierarchy;             // strict, soft, none; empty: by the policy's own rule
  std::string effort = "default";    // fast, default, thorough
  bool allow_duplicates = false;
  std::optional<int32_t> max_moves_per_gpu;
};

// Value of --without-gpus: the loss of each GPU alone.
inline constexpr char kEachGpu[] = "each";

struct SpeedOptions {
  std::string gpu_speed;      // "1,0.5,..", one per GPU; empty: all alike
  std::string unusable_gpus;  // "3,7,.."; empty: none
  std::string without_gpus;   // the same, GPUs that are lost; kEachGpu: one after the other
};

struct CostOptions {
  int64_t expert_bytes = 0;               // bytes of a transfer
  std::string link_gbps = "450,50";       // GB/s inside a node, between nodes
  std::optional<double> token_ns;         // time on the fullest GPU; by default see kTokenNs
  bool training = false;                  // replicas cost a broadcast and a gradient sum a step
  std::optional<int64_t> weight_bytes;    // bytes of a replica; by default expert_bytes
  std::optional<int64_t> gradient_bytes;  // by default twice the weights: fp32 for bf16
};

// Forward pass of a token through a DeepSeek-V3 expert at half of an H200's bf16 peak: 44 M
// parameters * 2 FLOP / 500 TFLOP/s = 176 ns. Training adds twice that for the backward pass.
inline constexpr double kTokenNs = 176;
inline constexpr double kTrainingTokenNs = 3 * kTokenNs;

// Numbers or percentages separated by commas; none in an empty text. errors: InvalidArgument,
// naming the flag.
absl::StatusOr<std::vector<double>> ParseNumbers(const char* flag, const std::string& text);

// errors: InvalidArgument, naming the flag, and the policy where that does not take it.
absl::StatusOr<std::unique_ptr<Policy>> MakeCheckedPolicy(const ShapeOptions& options);
// The options of a policy that the flags set.
PolicyOptions PolicyOptionsOf(const ShapeOptions& options);
absl::StatusOr<Topology> MakeTopology(const ShapeOptions& options, const Load& load, int32_t slots);
absl::StatusOr<GpuSpeeds> MakeSpeeds(const SpeedOptions& speeds, const ShapeOptions& options);
// The GPUs that --without-gpus lists; none for kEachGpu.
absl::StatusOr<std::vector<int32_t>> ReadLostGpus(const SpeedOptions& speeds);
// GPU speeds to assume if only the placement is known: GPUs without experts are unusable, and the
// others are equally fast.
absl::StatusOr<GpuSpeeds> SpeedsOfPlacement(const Placement& placement);
// The hierarchy that the policy obeys on this topology: --hierarchy, else the policy's own rule.
Hierarchy HierarchyInForce(const ShapeOptions& options, const Topology& topology);
absl::StatusOr<Costs> MakeCosts(const CostOptions& options);

// The mode that --split names. "optimal", which only `plan` has, plans for equal shares.
SplitMode SplitModeOf(const std::string& split);
// With --split batch, checks that each batch of the file's load can be split exactly.
// errors: as CheckBatches, naming the file.
absl::Status CheckSplit(const std::string& split, const std::string& path,
                        std::span<const LoadWindow> windows);

// For stderr: the policy that answers in place of --policy; empty if that one does.
// asked: the command without a history, "one plan". from_previous: there is a placement to start
// from.
std::string NoHistoryNote(const ShapeOptions& options, const std::string& asked,
                          bool from_previous);
// For stderr: a note if the policy aims at exact splits and --split batch is not given.
std::string EqualSharesNote(const ShapeOptions& options, const std::string& split);

// "8 layers of 64 experts in 72 slots on 8 GPUs, 2 nodes".
std::string ShapeText(const Topology& topology);

// For stderr: the engines' formats need slots % gpus == 0, with the next such number of slots.
// Empty if `gpus` divides `slots`.
std::string UnequalSlotsNote(int64_t slots, int64_t gpus);

// How --link-gbps was read, for people.

// "INTRA,INTER", each as ParseBandwidth reads it. errors: InvalidArgument, naming the flag.
absl::Status ReadLinks(const std::string& text, Costs& costs);

// "450 GB/s inside a node and 50 GB/s between nodes".
std::string LinksText(const CostOptions& options);
// For stderr: a number that was probably meant in Gb/s, "note: --link-gbps: INTER is ..". Empty:
// none.
std::string LinksNote(const CostOptions& options);

// How far found GPU loads are above their proved bounds.

struct BoundGaps {
  std::vector<double> bounds;               // [L], never above the peak
  std::vector<std::optional<double>> gaps;  // [L], peak / bound - 1; none for a layer without load
  std::optional<double> mean;               // over layers with load; none if all are idle
  std::optional<double> max;                // over layers with load; absent if all are idle
};

// peaks, bounds: [L], largest GPU load found and its proved lower bound, tokens / speed. A bound
// that is above its peak by rounding (1e-9 of it) is lowered to the peak: what was reached bounds
// nothing from below, so the smaller of the two is still proved. errors: Internal, naming the
// layer, for a bound further above: it is none, and that is our fault.
absl::StatusOr<BoundGaps> GapsToBounds(const std::vector<double>& peaks,
                                       const std::vector<double>& bounds);

}  // namespace eplb::cli
