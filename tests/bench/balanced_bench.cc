// Times policy `balanced` at efforts fast and default, ending in a whole Placement, against
// plain_deepseek.cc: same process, same loads, repetitions interleaved, medians. Exit 1 when an
// effort takes more than its limit times the baseline's time, or its answer is below the
// baseline's.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <random>
#include <vector>

#include "absl/strings/str_format.h"

#include "placement/evaluate.h"
#include "placement/policies/balanced_policy.h"
#include "tests/bench/measure.h"
#include "tests/support/plain_deepseek.h"

namespace eplb {
namespace {

using bench::Median;
using bench::Milliseconds;

constexpr double kMaxFast = 2;      // times the baseline's time
constexpr double kMaxDefault = 25;  // aim: 10
constexpr int kRepetitions = 31;

struct Row {
  const char* name;
  TopologyOptions shape;
};

// The k-th most popular expert gets k^-1.2 of the tokens, another order in every layer.
Load ZipfLoad(int32_t num_layers, int32_t num_experts) {
  std::mt19937_64 random(20250325);
  LoadMatrix counts(num_layers, num_experts);
  std::vector<int64_t> popularity(static_cast<size_t>(num_experts));
  for (size_t rank = 0; rank < popularity.size(); ++rank) {
    popularity[rank] = std::llround(2e5 * std::pow(static_cast<double>(rank + 1), -1.2));
  }
  for (Eigen::Index layer = 0; layer < counts.rows(); ++layer) {
    std::shuffle(popularity.begin(), popularity.end(), random);
    std::copy(popularity.begin(), popularity.end(), counts.row(layer).begin());
  }
  return *Load::FromCounts(std::move(counts));
}

double Balancedness(const Load& load, const Topology& topology, Effort effort) {
  const auto placement =
      MakeBalancedPolicy({.effort = effort})->Solve({.load = load, .topology = topology});
  return *Evaluate(load, *placement)->mean_balancedness;
}

// Prints one line; false when a ratio is above its limit.
bool Measure(const Row& row, const char* load_name, const Load& load) {
  const TopologyOptions& s = row.shape;
  const FloatMatrix weight = *load.ToFloat();
  const Topology topology = *Topology::Make(s);
  const PolicyInput input = {.load = load, .topology = topology};
  const std::unique_ptr<Policy> fast = MakeBalancedPolicy({.effort = Effort::kFast});
  const std::unique_ptr<Policy> normal = MakeBalancedPolicy({});
  LoadMatrix slots(s.num_layers, s.num_slots);
  LoadMatrix ranks(s.num_layers, s.num_slots);
  LoadMatrix replicas(s.num_layers, s.num_experts);
  std::vector<double> plain_times;
  std::vector<double> fast_times;
  std::vector<double> default_times;
  for (int repetition = 0; repetition < kRepetitions; ++repetition) {
    plain_times.push_back(Milliseconds([&] {
      (void)eplb_run(s.num_layers, s.num_experts, s.num_slots, s.num_groups, s.num_nodes,
                     s.num_gpus, weight.data(), slots.data(), ranks.data(), replicas.data(), 0);
    }));
    fast_times.push_back(Milliseconds([&] { (void)fast->Solve(input); }));
    default_times.push_back(Milliseconds([&] { (void)normal->Solve(input); }));
  }
  const double plain = Median(plain_times);
  const double fast_ratio = Median(fast_times) / plain;
  const double default_ratio = Median(default_times) / plain;
  const IndexMatrix baseline_slots = slots.cast<int32_t>();
  const double baseline =
      *Evaluate(load, *Placement::FromSlots(topology, baseline_slots))->mean_balancedness;
  const double fast_found = Balancedness(load, topology, Effort::kFast);
  const double default_found = Balancedness(load, topology, Effort::kDefault);
  absl::PrintF(
      "%-24s %-5s baseline %7.3f ms %.4f  fast ratio %5.2f %.4f  default ratio %5.2f %.4f\n",
      row.name, load_name, plain, baseline, fast_ratio, fast_found, default_ratio, default_found);
  return fast_ratio <= kMaxFast && default_ratio <= kMaxDefault && default_found >= baseline - 1e-9;
}

int Run() {
  bool good = true;
  for (const Row& row : {Row{"58x256->288/32", {58, 256, 288, 32, 1, 1}},
                         Row{"60x384->512/64", {60, 384, 512, 64, 1, 1}},
                         Row{"58x256->288/32 K=8 N=4", {58, 256, 288, 32, 4, 8}}}) {
    const int32_t layers = row.shape.num_layers;
    const int32_t experts = row.shape.num_experts;
    good = Measure(row, "logn", bench::MakeLoad(layers, experts)) && good;
    good = Measure(row, "zipf", ZipfLoad(layers, experts)) && good;
  }
  if (!good) absl::FPrintF(stderr, "a ratio is above its limit, or an answer below the baseline\n");
  return good ? 0 : 1;
}

}  // namespace
}  // namespace eplb

int main() { return eplb::Run(); }
