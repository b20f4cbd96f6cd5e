// Times BatchSplitter against Newton over a plain Dinic on adjacency lists, which finds the least
// maximum and no quotas: same process, same batches, repetitions interleaved, medians. The
// placement is that of `deepseek` on the experts' popularity; a batch is drawn around it. Exit 1
// when the two differ, or the ratio or the time of a layer misses its target.
#include <cstdint>
#include <cstdio>
#include <vector>

#include "absl/strings/str_format.h"

#include "placement/policies/deepseek_policy.h"
#include "placement/split/batch_split.h"
#include "tests/bench/measure.h"
#include "tests/support/integer_split_oracle.h"

namespace eplb {
namespace {

using bench::BatchAround;
using bench::Median;
using bench::Milliseconds;

constexpr double kMinRatio = 5;  // least ratio of the plain Dinic's time
constexpr int kRepetitions = 51;
constexpr int kLayers = 58;

struct Row {
  int32_t num_experts;
  int32_t num_slots;
  int32_t num_gpus;
  double drift;             // spread of a batch's log counts around the popularity
  double max_microseconds;  // a layer
};

IntegerSplitProblem ProblemOf(const Placement& placement, const LoadMatrix& counts, int32_t layer) {
  IntegerSplitProblem problem;
  problem.speeds.assign(static_cast<size_t>(placement.topology().num_gpus()), 1);
  for (int32_t expert = 0; expert < placement.topology().num_experts(); ++expert) {
    problem.tokens.push_back(counts(layer, expert));
    problem.gpus_of.emplace_back();
    for (const int32_t slot : placement.ReplicasOf(LayerId{layer}, ExpertId{expert})) {
      problem.gpus_of.back().push_back(placement.topology().GpuOf(SlotId{slot}).value);
    }
  }
  return problem;
}

bool Measure(const Row& row) {
  const Load popularity = bench::MakeLoad(kLayers, row.num_experts);
  const Topology topology = *Topology::Make({.num_layers = kLayers,
                                             .num_experts = row.num_experts,
                                             .num_slots = row.num_slots,
                                             .num_gpus = row.num_gpus});
  const Placement placement =
      *MakeDeepseekPolicy({})->Solve({.load = popularity, .topology = topology});
  const LoadMatrix counts = BatchAround(popularity, row.drift);
  std::vector<IntegerSplitProblem> problems;
  problems.reserve(kLayers);
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    problems.push_back(ProblemOf(placement, counts, layer));
  }
  const SplitGraph graph = *SplitGraph::Make(placement);
  BatchSplitter splitter(graph);
  std::vector<int64_t> quotas(static_cast<size_t>(row.num_slots));
  std::vector<double> plain_times;
  std::vector<double> times;
  bool equal = true;
  const auto batch_of = [&](int32_t layer) {
    return std::span(&counts(layer, 0), static_cast<size_t>(row.num_experts));
  };
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    const auto bound = splitter.Split(LayerId{layer}, batch_of(layer), quotas);
    const int64_t plain = LeastPeakByNewton(problems[static_cast<size_t>(layer)]);
    equal = equal && bound.ok() && bound->peak == SplitPeak{plain, 1};
  }
  int64_t sink = 0;
  for (int repetition = 0; repetition < kRepetitions; ++repetition) {
    plain_times.push_back(Milliseconds([&] {
      for (const IntegerSplitProblem& problem : problems) {
        sink += LeastPeakByNewton(problem);
      }
    }));
    times.push_back(Milliseconds([&] {
      for (int32_t layer = 0; layer < kLayers; ++layer) {
        sink += splitter.Split(LayerId{layer}, batch_of(layer), quotas).ok() ? quotas.front() : 0;
      }
    }));
  }
  const double plain = 1e3 * Median(plain_times) / kLayers;
  const double split = 1e3 * Median(times) / kLayers;
  const bool good = equal && split <= row.max_microseconds && plain >= kMinRatio * split;
  absl::PrintF(
      "%d experts, %d slots, %d GPUs, drift %.2f: %.2f us a layer (at most %.0f), plain "
      "%.2f us, ratio %.1f%s%s\n",
      row.num_experts, row.num_slots, row.num_gpus, row.drift, split, row.max_microseconds, plain,
      plain / split, equal ? "" : ", UNEQUAL", sink == 0 ? "." : "");
  return good;
}

int Run() {
  bool good = true;
  for (const double drift : {0.05, 0.2, 0.5}) {
    for (const Row& row : {Row{256, 288, 32, drift, 5}, Row{256, 384, 64, drift, 10}}) {
      good = Measure(row) && good;
    }
  }
  if (!good) absl::FPrintF(stderr, "a target is missed, or a result differs\n");
  return good ? 0 : 1;
}

}  // namespace
}  // namespace eplb

int main() { return eplb::Run(); }
