// Times PlaceEvenly, which ends in a whole Placement and its shares, and SplitOptimally on the
// placement of the policy `deepseek`, against plain_deepseek.cc: same process, same load,
// repetitions interleaved, medians. Exit 1 if a GPU is above the mean, or PlaceEvenly takes more
// than kMaxRatio of the baseline's time.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <vector>

#include "absl/strings/str_format.h"

#include "placement/evaluate.h"
#include "placement/policies/deepseek_policy.h"
#include "placement/split/alias_placement.h"
#include "placement/split/token_split.h"
#include "tests/bench/measure.h"
#include "tests/support/plain_deepseek.h"

namespace eplb {
namespace {

using bench::Median;
using bench::Milliseconds;

constexpr double kMaxRatio = 0.5;  // part of the baseline's time
constexpr int kRepetitions = 101;

struct Row {
  const char* name;
  TopologyOptions shape;
};

// Expert groups on nodes in turn: which node a group is on does not change the work.
IndexMatrix NodeOfGroup(const TopologyOptions& shape) {
  IndexMatrix nodes(shape.num_layers, shape.num_groups);
  for (int32_t group = 0; group < shape.num_groups; ++group) {
    nodes.col(group) = group % shape.num_nodes;
  }
  return nodes;
}

// True if no GPU is above the mean of its domain: its node, or the whole topology.
bool IsEven(const Load& load, const EvenPlacement& even, const IndexMatrix* node_of_group) {
  const Topology& topology = even.placement.topology();
  const Evaluation evaluation = *Evaluate(load, even.placement, {.shares = &even.shares});
  const int32_t nodes = node_of_group == nullptr ? 1 : topology.num_nodes();
  const int32_t group_size = topology.num_experts() / topology.num_groups();
  for (int32_t layer = 0; layer < topology.num_layers(); ++layer) {
    std::vector<double> means(static_cast<size_t>(nodes));
    for (int32_t expert = 0; expert < topology.num_experts(); ++expert) {
      const int32_t node = nodes == 1 ? 0 : (*node_of_group)(layer, expert / group_size);
      means[static_cast<size_t>(node)] +=
          static_cast<double>(load.counts()(layer, expert)) * nodes / topology.num_gpus();
    }
    const double most = *std::max_element(means.begin(), means.end());
    if (evaluation.max_gpu_load[static_cast<size_t>(layer)] > most * (1 + 1e-9)) return false;
  }
  return true;
}

// Prints one line; false when a GPU has too much or the time is too long.
bool Measure(const Row& row) {
  const TopologyOptions& s = row.shape;
  const Load load = bench::MakeLoad(s.num_layers, s.num_experts);
  const FloatMatrix weight = *load.ToFloat();
  const Topology topology = *Topology::Make(s);
  const IndexMatrix nodes = NodeOfGroup(s);
  const IndexMatrix* const node_of_group = s.num_nodes == 1 ? nullptr : &nodes;
  const GpuSpeeds speeds = GpuSpeeds::Equal(s.num_gpus);
  const Placement deepseek = *MakeDeepseekPolicy({})->Solve({.load = load, .topology = topology});
  LoadMatrix slots(s.num_layers, s.num_slots);
  LoadMatrix ranks(s.num_layers, s.num_slots);
  LoadMatrix replicas(s.num_layers, s.num_experts);
  absl::StatusOr<std::optional<EvenPlacement>> alias = absl::InternalError("not solved yet");
  absl::StatusOr<RealMatrix> split = absl::InternalError("not solved yet");
  std::vector<double> plain_times;
  std::vector<double> alias_times;
  std::vector<double> split_times;
  for (int repetition = 0; repetition < kRepetitions; ++repetition) {
    plain_times.push_back(Milliseconds([&] {
      (void)eplb_run(s.num_layers, s.num_experts, s.num_slots, s.num_groups, s.num_nodes,
                     s.num_gpus, weight.data(), slots.data(), ranks.data(), replicas.data(), 0);
    }));
    alias_times.push_back(
        Milliseconds([&] { alias = PlaceEvenly(load, topology, speeds, node_of_group); }));
    split_times.push_back(Milliseconds([&] { split = SplitOptimally(load, deepseek); }));
  }
  const double plain_ms = Median(plain_times);
  const double alias_ms = Median(alias_times);
  const double split_ms = Median(split_times);
  const bool even =
      alias.ok() && alias->has_value() && split.ok() && IsEven(load, **alias, node_of_group);
  absl::PrintF(
      "%-24s baseline %7.3f ms  alias %7.3f ms  ratio %.3f  %s  split %7.3f ms  ratio %.3f  %.2f "
      "us a layer\n",
      row.name, plain_ms, alias_ms, alias_ms / plain_ms, even ? "even" : "UNEVEN", split_ms,
      split_ms / plain_ms, 1e3 * split_ms / s.num_layers);
  return even && alias_ms <= kMaxRatio * plain_ms;
}

int Run() {
  bool good = true;
  for (const Row& row : {Row{"58x256->288/32", {58, 256, 288, 32, 1, 1}},
                         Row{"58x256->320/64", {58, 256, 320, 64, 1, 1}},
                         Row{"60x384->512/64", {60, 384, 512, 64, 1, 1}},
                         Row{"58x256->288/32 K=8 N=4", {58, 256, 288, 32, 4, 8}}}) {
    good = Measure(row) && good;
  }
  if (!good) absl::FPrintF(stderr, "a GPU is uneven, or a ratio is above %.2f\n", kMaxRatio);
  return good ? 0 : 1;
}

}  // namespace
}  // namespace eplb

int main() { return eplb::Run(); }
