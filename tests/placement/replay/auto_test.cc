// Policy `auto` over whole runs: against each of its candidates as it would have been alone, and
// against doing nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "placement/policies/registry.h"
#include "placement/replay/replay.h"
#include "tests/placement/random_placement.h"
#include "tests/placement/recorded_trace.h"

namespace eplb {
namespace {

constexpr double kMostHarm = 0.005;   // part of the time without any move
constexpr double kMostBehind = 0.02;  // part of that time behind the best candidate alone
constexpr double kLeastHeld = 0.85;   // part of the predictions
constexpr int32_t kGpus = 8;

RealMatrix Drawn(Random& random, double spread) {
  RealMatrix cells(2, 32);
  for (double& cell : cells.reshaped()) cell = spread * Normal(random);
  return cells;
}

struct Windows {
  std::vector<Load> windows;
  std::vector<StepRange> steps;

  void Add(const LoadMatrix& counts, int64_t num_steps = 10) {
    const int64_t first = steps.empty() ? 0 : steps.back().last + 1;
    windows.push_back(Load::FromCounts(counts).value());
    steps.push_back({first, first + num_steps - 1});
  }
  // logarithms: of the experts' shares; with the noise of one window.
  void Add(Random& random, const RealMatrix& logarithms) {
    Add((2000 * (logarithms + Drawn(random, 0.03)).exp()).round().cast<int64_t>());
  }
};

// A run of windows of which each is drawn from what `next` gives.
template <class Next>
Windows MakeRun(uint64_t seed, int windows, const Next& next) {
  Random random(seed);
  Windows run;
  for (int t = 0; t < windows; ++t) run.Add(random, next(random, t));
  return run;
}

// Every row of a GPU moves in `windows` times the time of an even window.
ReplayOptions OptionsFor(const Windows& run, const Topology& topology, double windows) {
  ReplayOptions options{.min_gain = 0.01, .policy = {.effort = Effort::kFast}};
  double tokens = 0;
  for (const Load& load : run.windows) tokens += load.ToDouble().sum();
  tokens /= static_cast<double>(run.windows.size()) * topology.num_gpus();
  options.costs.token_seconds = 1e-7;
  options.costs.expert.weight_bytes = 1'000'000;
  options.costs.intra_bytes_per_s = 1e6 * topology.max_slots_per_gpu() * topology.num_layers() /
                                    (windows * tokens * options.costs.token_seconds);
  return options;
}

Topology Shape(const Windows& run, int32_t slots) {
  return Topology::Make({.num_layers = run.windows[0].num_layers(),
                         .num_experts = run.windows[0].num_experts(),
                         .num_slots = slots,
                         .num_gpus = kGpus})
      .value();
}

ReplayResult Auto(const Windows& run, int32_t slots, double windows,
                  const SwitchTime& switch_time = {}) {
  const Topology topology = Shape(run, slots);
  ReplayOptions options = OptionsFor(run, topology, windows);
  options.switch_time = switch_time;
  return Replay({run.windows, run.steps}, topology, "auto", options).value();
}

double NetOf(const ReplaySummary& summary) {
  const double replayed = summary.without_eplb_seconds - summary.seconds_saved;
  return (summary.static_seconds - replayed - summary.seconds_spent) / summary.static_seconds;
}

double BestOf(const ReplayResult& result) {
  double best = 0;
  for (const CandidateScore& one : result.candidates) best = std::max(best, one.total());
  return best / result.summary.static_seconds;
}

void ExpectAsGoodAsTheBest(const ReplayResult& result, const std::string& name) {
  EXPECT_GE(NetOf(result.summary), BestOf(result) - kMostBehind) << name;
  EXPECT_GE(NetOf(result.summary), -kMostHarm) << name;
  EXPECT_GE(static_cast<double>(result.summary.predictions_held),
            kLeastHeld * static_cast<double>(result.summary.predictions))
      << name;
}

TEST(AutoTest, DriftIsFollowedAsTheBestCandidateWould) {
  for (const double sigma : {0.05, 0.2}) {
    RealMatrix now = RealMatrix::Zero(2, 32);
    const Windows run = MakeRun(1, 64, [&](Random& random, int) {
      now += Drawn(random, sigma);
      return now;
    });
    for (const double price : {0.01, 0.1}) {
      const ReplayResult result = Auto(run, 40, price);
      ExpectAsGoodAsTheBest(result, absl::StrCat("sigma ", sigma, ", price ", price));
      EXPECT_GT(NetOf(result.summary), 0.05);
    }
  }
}

TEST(AutoTest, AShiftOfTheDomainIsFollowed) {
  Random random(2);
  const RealMatrix before = Drawn(random, 0.8);
  const RealMatrix after = Drawn(random, 0.8);
  const Windows run = MakeRun(3, 48, [&](Random&, int t) { return t < 24 ? before : after; });
  for (const double price : {0.01, 0.1, 1.0}) {
    const ReplayResult result = Auto(run, 40, price);
    ExpectAsGoodAsTheBest(result, absl::StrCat("price ", price));
    EXPECT_GT(result.rows[47].balancedness, result.rows[25].balancedness) << price;
  }
}

// No placement of the past is any good: what moving costs is lost.
TEST(AutoTest, ALoadThatIsDrawnAnewIsNotSlowedDown) {
  for (uint64_t seed = 10; seed < 13; ++seed) {
    const Windows run = MakeRun(seed, 60, [](Random& random, int) { return Drawn(random, 0.7); });
    for (const double price : {0.01, 0.1, 1.0}) {
      for (const double late : {0, 10}) {  // steps of a window
        const ReplayResult result = Auto(run, 40, price, {.decide_steps = late});
        EXPECT_GE(NetOf(result.summary), -kMostHarm)
            << "seed " << seed << ", price " << price << ", late " << late;
      }
    }
  }
}

// A placement that suits both pays many times over, although single windows lose.
TEST(AutoTest, TwoLoadsThatAlternateAreBalanced) {
  Random random(4);
  const RealMatrix one = Drawn(random, 0.8);
  const RealMatrix other = Drawn(random, 0.8);
  for (const int period : {1, 4}) {
    const Windows run =
        MakeRun(5, 64, [&](Random&, int t) { return t / period % 2 == 0 ? one : other; });
    for (const double price : {0.01, 0.1}) {
      const ReplayResult result = Auto(run, 40, price);
      // The windows differ so much that the proof takes some of them.
      EXPECT_GE(NetOf(result.summary), 0.7 * BestOf(result)) << period << ", " << price;
      EXPECT_GT(NetOf(result.summary), 0.2) << period << ", " << price;
    }
  }
}

TEST(AutoTest, PredictionsOfExactSplitsHoldToo) {
  RealMatrix now = RealMatrix::Zero(2, 32);
  const Windows run = MakeRun(9, 48, [&](Random& random, int) {
    now += Drawn(random, 0.1);
    return now;
  });
  for (const char* policy : {"auto", "incremental"}) {
    const Topology topology = Shape(run, 40);
    ReplayOptions options = OptionsFor(run, topology, 0.01);
    options.split = SplitMode::kBatch;
    options.switch_time = {.decide_steps = 10};
    const ReplaySummary summary =
        Replay({run.windows, run.steps}, topology, policy, options).value().summary;
    EXPECT_GE(summary.predictions, 10) << policy;
    EXPECT_GE(static_cast<double>(summary.predictions_held),
              kLeastHeld * static_cast<double>(summary.predictions))
        << policy;
  }
}

TEST(AutoTest, TheRecordedTraceIsBalancedAsTheBestCandidateWould) {
  Windows run;
  const std::vector<Load> recorded = RecordedWindows();
  for (size_t t = 0; t + 3 < recorded.size(); t += 4) {
    LoadMatrix sum = recorded[t].counts();
    for (size_t i = 1; i < 4; ++i) sum += recorded[t + i].counts();
    run.Add(sum, 20);
  }
  ASSERT_EQ(run.windows.size(), 60u);
  const ReplayResult result = Auto(run, 72, 0.03);
  ExpectAsGoodAsTheBest(result, "moe64_aux");
  EXPECT_GT(result.summary.balancedness_mean, 0.84);
}

}  // namespace
}  // namespace eplb
