// Times EchoPlanner at 64 GPUs with 4 homes and 2 spare slots against a plain greedy, which always
// moves from the fullest GPU to the emptiest one: same process, same batches, repetitions
// interleaved, medians. Exit 1 when a batch has a GPU above 1.01 of the mean or more than 50
// replicas, or the time of a plan or its ratio misses its target.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <vector>

#include "absl/strings/str_format.h"

#include "placement/echo/echo_plan.h"
#include "tests/bench/measure.h"
#include "tests/support/echo_loads.h"

namespace eplb {
namespace {

using bench::Median;
using bench::Milliseconds;
using testing::EchoShape;
using testing::LoadWithImbalance;
using testing::Skew;

constexpr int32_t kSpareSlots = 2;
constexpr int32_t kMostReplicas = 50;
constexpr double kMostMicroseconds = 10;  // a plan
constexpr double kMinRatio = 1;           // time of the plain greedy to that of a plan
constexpr int kRepetitions = 51;
constexpr uint64_t kBatches = 64;

struct PlainEcho {
  std::vector<int64_t> gpu_load;
  int32_t num_replicas = 0;
};

// Moves from the fullest GPU what it has above the goal, from its heaviest expert, to the emptiest
// GPU that has a spare slot, as long as it can.
PlainEcho PlainGreedy(const EchoShape& shape, std::vector<int64_t> tokens, int64_t goal) {
  PlainEcho echo;
  for (size_t gpu = 0; gpu < static_cast<size_t>(shape.num_gpus); ++gpu) {
    const auto first = tokens.begin() + static_cast<ptrdiff_t>(gpu) * shape.homes;
    echo.gpu_load.push_back(std::accumulate(first, first + shape.homes, int64_t{0}));
  }
  std::vector<int32_t> spares(echo.gpu_load.size(), kSpareSlots);
  while (true) {
    const auto from = std::max_element(echo.gpu_load.begin(), echo.gpu_load.end());
    if (*from <= goal) return echo;
    size_t to = spares.size();
    for (size_t gpu = 0; gpu < spares.size(); ++gpu) {
      if (spares[gpu] == 0 || echo.gpu_load[gpu] >= goal) continue;
      if (to == spares.size() || echo.gpu_load[gpu] < echo.gpu_load[to]) to = gpu;
    }
    if (to == spares.size()) return echo;
    const auto first = tokens.begin() + (from - echo.gpu_load.begin()) * shape.homes;
    const auto heaviest = std::max_element(first, first + shape.homes);
    const int64_t moved = std::min({*from - goal, *heaviest, goal - echo.gpu_load[to]});
    *heaviest -= moved;
    *from -= moved;
    echo.gpu_load[to] += moved;
    --spares[to];
    ++echo.num_replicas;
  }
}

struct Row {
  const char* name;
  Skew skew;
  double imbalance;
};

// Prints one line; false when a figure misses its target.
bool Measure(const Row& row) {
  const EchoShape shape;
  const int32_t num_experts = shape.num_gpus * shape.homes;
  const Placement homes = Placement::Static(*Topology::Make({.num_layers = 1,
                                                             .num_experts = num_experts,
                                                             .num_slots = num_experts,
                                                             .num_gpus = shape.num_gpus}));
  EchoPlanner planner = *EchoPlanner::Make(homes, {.spare_slots = kSpareSlots});
  std::vector<std::vector<int64_t>> batches;
  for (uint64_t seed = 0; seed < kBatches; ++seed) {
    batches.push_back(LoadWithImbalance(shape, row.skew, row.imbalance, seed));
  }
  EchoPlan plan;
  int32_t most = 0;
  int32_t sum = 0;
  int32_t plain_most = 0;
  double highest = 0;
  std::vector<int64_t> goals;
  for (const std::vector<int64_t>& batch : batches) {
    if (!planner.Plan(LayerId{0}, batch, plan).ok()) return false;
    const auto tokens =
        static_cast<double>(std::accumulate(batch.begin(), batch.end(), int64_t{0}));
    highest = std::max(highest, static_cast<double>(plan.peak.peak) * shape.num_gpus / tokens);
    most = std::max(most, plan.peak.num_replicas);
    sum += plan.peak.num_replicas;
    goals.push_back(static_cast<int64_t>(1.01 * tokens / shape.num_gpus));
    plain_most = std::max(plain_most, PlainGreedy(shape, batch, goals.back()).num_replicas);
  }
  std::vector<double> plain_times;
  std::vector<double> times;
  int64_t sink = 0;
  for (int repetition = 0; repetition < kRepetitions; ++repetition) {
    plain_times.push_back(Milliseconds([&] {
      for (size_t i = 0; i < batches.size(); ++i) {
        sink += PlainGreedy(shape, batches[i], goals[i]).num_replicas;
      }
    }));
    times.push_back(Milliseconds([&] {
      for (const std::vector<int64_t>& batch : batches) {
        sink += planner.Plan(LayerId{0}, batch, plan).ok() ? plan.peak.num_replicas : 0;
      }
    }));
  }
  const double plain_us = 1e3 * Median(plain_times) / kBatches;
  const double us = 1e3 * Median(times) / kBatches;
  const bool good = highest <= 1.01 && most <= kMostReplicas && us <= kMostMicroseconds &&
                    plain_us >= kMinRatio * us && sink > 0;
  absl::PrintF(
      "%-18s %.2f -> %.4f  replicas %.1f, at most %d (plain %d)  %5.2f us a plan  plain %5.2f us  "
      "ratio %.1f%s\n",
      row.name, row.imbalance, highest, static_cast<double>(sum) / kBatches, most, plain_most, us,
      plain_us, plain_us / us, good ? "" : "  MISSED");
  return good;
}

int Run() {
  bool good = true;
  for (const double imbalance : {1.51, 2.01, 3.03}) {
    good = Measure({"Zipf", Skew::kZipf, imbalance}) && good;
    good = Measure({"one hot a GPU", Skew::kOneHotExpertEach, imbalance}) && good;
  }
  if (!good) {
    absl::FPrintF(
        stderr,
        "a GPU is above 1.01, more than %d replicas, above %.0f us, or a ratio below %.0f\n",
        kMostReplicas, kMostMicroseconds, kMinRatio);
  }
  return good ? 0 : 1;
}

}  // namespace
}  // namespace eplb

int main() { return eplb::Run(); }
