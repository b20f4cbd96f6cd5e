#include "placement/search/replacement_trial.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/placement/search/random_domain.h"

namespace eplb {
namespace {

constexpr uint64_t kReplacementTrialSeed = 50;

// What a trial says is what doing it does, on every GPU.
TEST(ReplacementTrialTest, ATrialTellsWhatReplacingDoes) {
  testing::Random random(kReplacementTrialSeed);
  ReplacementTrial trial;  // one for all: nothing may be left of the trial before
  int trials = 0;
  for (int i = 0; i < 200; ++i) {
    SCOPED_TRACE(::testing::Message() << "seed " << kReplacementTrialSeed << " case " << i);
    const Domain domain = testing::RandomDomain(random, {.speeds = true, .duplicates = true});
    std::vector<int32_t> layout;
    layout.reserve(static_cast<size_t>(domain.num_slots()));
    for (int32_t slot = 0; slot < domain.num_slots(); ++slot) {
      layout.push_back(slot % domain.num_experts());
    }
    Arrangement arrangement(domain);
    arrangement.Assign(layout);
    for (int32_t slot = 0; slot < arrangement.num_slots(); ++slot) {
      const int32_t expert = testing::Pick(random, 0, domain.num_experts() - 1);
      const int32_t leaving = arrangement.expert_in(slot);
      if (arrangement.count(leaving) < 2 || expert == leaving) continue;
      std::vector<double> expected;
      expected.reserve(static_cast<size_t>(domain.num_gpus()));
      for (int32_t gpu = 0; gpu < domain.num_gpus(); ++gpu) {
        expected.push_back(arrangement.tokens(gpu));
      }
      const double peak = trial.PeakAfter(arrangement, slot, expert);
      std::vector<int32_t> touched;
      for (const ReplacementTrial::Change& change : trial.changes()) {
        expected[static_cast<size_t>(change.gpu)] += change.tokens;
        EXPECT_EQ(std::count(touched.begin(), touched.end(), change.gpu), 0);
        touched.push_back(change.gpu);
      }
      arrangement.Replace(slot, expert);
      double largest = 0;
      for (const int32_t gpu : touched) largest = std::max(largest, arrangement.load(gpu));
      const double rounding = 1e-9 * (1 + domain.total_load());
      EXPECT_NEAR(peak, largest, rounding);
      for (int32_t gpu = 0; gpu < domain.num_gpus(); ++gpu) {
        EXPECT_NEAR(arrangement.tokens(gpu), expected[static_cast<size_t>(gpu)], rounding);
      }
      ++trials;
    }
  }
  EXPECT_GT(trials, 500);
}

}  // namespace
}  // namespace eplb
