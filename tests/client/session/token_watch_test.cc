#include "client/session/token_watch.h"

#include <gtest/gtest.h>

#include <vector>

namespace eplb {
namespace {

// Report of 4 layers and 3 experts, with tokens in these layers.
wire::LoadReport Counted(int64_t first_step, const std::vector<int32_t>& counted) {
  wire::LoadReport window{
      .first_step = first_step, .last_step = first_step + 9, .counts = LoadMatrix::Zero(4, 3)};
  for (const int32_t layer : counted) window.counts(layer, 2) = 1;
  return window;
}

TEST(TokenWatchTest, ARankThatRecordsNothingIsToldAfterTwoWholeWindows) {
  TokenWatch watch(5, {0, 1, 2, 3}, 4);
  EXPECT_FALSE(watch.EndWindow(Counted(3, {}), /*is_whole=*/false));
  EXPECT_FALSE(watch.EndWindow(Counted(10, {}), true));
  EXPECT_EQ(watch.reason(), "");
  EXPECT_TRUE(watch.EndWindow(Counted(20, {}), true));
  EXPECT_EQ(watch.reason(),
            "NOT_COUNTING: rank 5 has counted no token since step 10; it did not record any layer "
            "(docs/symptoms.md)");
  EXPECT_FALSE(watch.EndWindow(Counted(30, {}), true)) << "it is told once";
  EXPECT_FALSE(watch.EndWindow(Counted(40, {0, 1, 2, 3}), true));
  EXPECT_EQ(watch.reason(), "");
}

TEST(TokenWatchTest, LayersAreNamedWithWhatWasRecordedOfThem) {
  TokenWatch watch(0, {0, 1, 2, 3}, 4);
  const auto train = [&watch](int64_t step) {
    watch.Recorded(0);
    watch.Recorded(2);
    return watch.EndWindow(Counted(step, {0}), true);
  };
  EXPECT_FALSE(train(0));
  EXPECT_TRUE(train(10));
  EXPECT_EQ(watch.reason(),
            "NOT_COUNTING: rank 0 has counted no token of layers 1..3 since step 0; it did not "
            "record layers 1, 3 and recorded only counts of 0 of the others (docs/symptoms.md)");
}

TEST(TokenWatchTest, LayersOfAnotherPipelineStageAreNotWatched) {
  TokenWatch watch(0, {1, 2}, 4);
  watch.Recorded(1);
  for (int64_t step = 0; step < 50; step += 10) {
    EXPECT_FALSE(watch.EndWindow(Counted(step, {1, 2}), true));
  }
  EXPECT_EQ(watch.reason(), "");
  watch.Recorded(1);
  watch.Recorded(2);
  EXPECT_FALSE(watch.EndWindow(Counted(50, {}), true));
  EXPECT_TRUE(watch.EndWindow(Counted(60, {}), true));
  EXPECT_EQ(watch.reason(),
            "NOT_COUNTING: rank 0 has counted no token since step 50; it recorded only counts of 0 "
            "(docs/symptoms.md)");
}

TEST(TokenWatchTest, ARankThatReportsNothingWatchesNothing) {
  TokenWatch watch;
  watch.Recorded(0);
  for (int64_t step = 0; step < 50; step += 10) {
    EXPECT_FALSE(watch.EndWindow(Counted(step, {}), true));
  }
}

}  // namespace
}  // namespace eplb
