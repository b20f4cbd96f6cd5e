// Times RebalanceExperts, and the policy `deepseek` around it, against plain_deepseek.cc: same
// process, same load, repetitions interleaved, medians. Exit 1 when an output differs from the
// baseline's or either ratio is above kMaxRatio.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "absl/strings/str_format.h"

#include "placement/policies/deepseek_policy.h"
#include "tests/bench/measure.h"
#include "tests/support/plain_deepseek.h"

namespace eplb {
namespace {

using bench::Median;
using bench::Milliseconds;

constexpr double kMaxRatio = 0.8;  // part of the baseline's time
constexpr int kRepetitions = 101;

using WideMatrix = LoadMatrix;

struct Row {
  const char* name;
  TopologyOptions shape;
  TieBreak tie_break;
};

struct BaselineMaps {
  WideMatrix physical_to_logical;
  WideMatrix replica_rank;
  WideMatrix counts;
};

bool Equal(const BaselineMaps& baseline, const DeepseekMaps& ours) {
  return (baseline.physical_to_logical == ours.physical_to_logical.cast<int64_t>()).all() &&
         (baseline.replica_rank == ours.replica_rank.cast<int64_t>()).all() &&
         (baseline.counts == ours.counts.cast<int64_t>()).all();
}

bool Equal(const BaselineMaps& baseline, const Placement& placement) {
  return Equal(baseline, DeepseekMaps{placement.physical_to_logical_map(), placement.replica_rank(),
                                      placement.logical_replica_count()});
}

// Prints one line; false when outputs differ or the time is too long.
bool Measure(const Row& row) {
  const TopologyOptions& s = row.shape;
  const Load load = bench::MakeLoad(s.num_layers, s.num_experts);
  const FloatMatrix weight = *load.ToFloat();
  const Topology topology = *Topology::Make(s);
  const auto policy = MakeDeepseekPolicy({.tie_break = row.tie_break});
  BaselineMaps plain = {WideMatrix(s.num_layers, s.num_slots),
                        WideMatrix(s.num_layers, s.num_slots),
                        WideMatrix(s.num_layers, s.num_experts)};
  DeepseekMaps ours;
  absl::StatusOr<Placement> placement = absl::InternalError("not solved yet");
  std::vector<double> plain_times;
  std::vector<double> our_times;
  std::vector<double> policy_times;
  for (int repetition = 0; repetition < kRepetitions; ++repetition) {
    plain_times.push_back(Milliseconds([&] {
      (void)eplb_run(s.num_layers, s.num_experts, s.num_slots, s.num_groups, s.num_nodes,
                     s.num_gpus, weight.data(), plain.physical_to_logical.data(),
                     plain.replica_rank.data(), plain.counts.data(),
                     row.tie_break == TieBreak::kCompat ? 1 : 0);
    }));
    our_times.push_back(Milliseconds([&] {
      ours = *RebalanceExperts(weight, {s.num_slots, s.num_groups, s.num_nodes, s.num_gpus},
                               row.tie_break);
    }));
    policy_times.push_back(
        Milliseconds([&] { placement = policy->Solve({.load = load, .topology = topology}); }));
  }
  const double plain_ms = Median(plain_times);
  const double our_ms = Median(our_times);
  const double policy_ms = Median(policy_times);
  const bool equal = Equal(plain, ours) && placement.ok() && Equal(plain, *placement);
  absl::PrintF(
      "%-32s %-7s baseline %8.3f ms  ours %8.3f ms  ratio %.3f  policy %8.3f ms  ratio "
      "%.3f  %s\n",
      row.name, row.tie_break == TieBreak::kCompat ? "compat" : "stable", plain_ms, our_ms,
      our_ms / plain_ms, policy_ms, policy_ms / plain_ms, equal ? "equal" : "DIFFERENT");
  return equal && std::max(our_ms, policy_ms) <= kMaxRatio * plain_ms;
}

int Run() {
  constexpr TopologyOptions kHierarchical = {58, 256, 288, 32, 4, 8};
  constexpr TopologyOptions kGlobal = {58, 256, 288, 32, 1, 1};
  constexpr TopologyOptions kLarge = {60, 384, 512, 64, 1, 1};
  bool good = true;
  for (const TieBreak tie_break : {TieBreak::kStable, TieBreak::kCompat}) {
    good = Measure({"58x256->288/32 K=8 N=4", kHierarchical, tie_break}) && good;
    good = Measure({"58x256->288/32 K=1 N=1", kGlobal, tie_break}) && good;
    good = Measure({"60x384->512/64 K=1 N=1", kLarge, tie_break}) && good;
  }
  if (!good) absl::FPrintF(stderr, "an output differs, or a ratio is above %.2f\n", kMaxRatio);
  return good ? 0 : 1;
}

}  // namespace
}  // namespace eplb

int main() { return eplb::Run(); }
