#include "placement/backtest/candidate.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>

#include "placement/policies/registry.h"

namespace eplb {
namespace {

SeenWindow Window(int64_t tokens, int64_t num_steps = 10) {
  return {
      std::make_shared<const Load>(Load::FromCounts(LoadMatrix::Constant(1, 2, tokens)).value()),
      num_steps};
}

TEST(CandidateTest, EveryPolicyThatIsTriedHasEveryEstimateAndCadence) {
  for (const SplitMode split : {SplitMode::kEqual, SplitMode::kBatch}) {
    const auto candidates = CandidatesFor(split);
    std::set<std::string> names;
    for (const Candidate& candidate : candidates) {
      EXPECT_FALSE(TraitsOf(candidate.policy).chooses);
      EXPECT_TRUE(names.insert(NameOf(candidate)).second) << NameOf(candidate);
    }
    EXPECT_EQ(candidates.size() % 9, 0u);
    EXPECT_GE(candidates.size(), 18u) << "two policies or more";
    const PolicyTraits first = TraitsOf(candidates.front().policy);
    EXPECT_EQ(split == SplitMode::kBatch ? first.tried_for_batch : first.tried_for_equal,
              TriedFor::kFirst);
  }
}

TEST(CandidateTest, NamesAreShortAndTextsAreSentences) {
  const Candidate candidate{"incremental", {4, 0.5}, 2};
  EXPECT_EQ(NameOf(candidate), "incremental/ema/2");
  EXPECT_EQ(TextOf(candidate),
            "incremental on an average that halves with each window, at every 2nd opportunity");
  EXPECT_EQ(NameOf(Candidate()), "none");
  EXPECT_EQ(TextOf(Candidate()), "do nothing");
}

TEST(CandidateTest, EstimatesLookAtTheNewestWindows) {
  const SeenWindow windows[] = {Window(100), Window(1), Window(2), Window(3), Window(8)};
  const auto cell = [&](const LoadEstimate& estimate) {
    return ExpectLoad(estimate, windows).value().load.ToDouble()(0, 0);
  };
  EXPECT_EQ(cell({1}), 8);
  EXPECT_EQ(cell({4}), 1 + 2 + 3 + 8);
  EXPECT_EQ(cell({4, 0.5}), ((1 * 0.5 + 2 * 0.5) * 0.5 + 3 * 0.5) * 0.5 + 8 * 0.5);
  EXPECT_EQ(ExpectLoad({4}, windows)->num_steps, 40);
  EXPECT_EQ(ExpectLoad({1}, windows)->recent.size(), 1u);
  const SeenWindow gap[] = {Window(10, 5), Window(10, 5), Window(200, 100)};
  EXPECT_EQ(ExpectLoad({4}, gap)->recent_steps, 110);
  EXPECT_EQ(ExpectLoad({1}, gap)->recent_steps, 100);
}

}  // namespace
}  // namespace eplb
