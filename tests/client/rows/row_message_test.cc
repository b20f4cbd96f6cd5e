#include "client/rows/row_message.h"

#include <gtest/gtest.h>

#include "base/monotonic_clock.h"
#include "tests/client/rows/stubborn_queue.h"

namespace eplb {

namespace {

TEST(BatchesTest, ABatchIsLookedAtUntilItHasEnded) {
  StubbornQueue queue({.looks_per_transfer = 3});
  const auto batch = queue.Transfer({});
  ASSERT_TRUE(batch.ok()) << batch.status();
  EXPECT_TRUE(AwaitBatch(queue, *batch, absl::InfiniteFuture()).ok());
  EXPECT_EQ(queue.num_under_way(), 0U);
}

TEST(BatchesTest, ABatchThatHasEndedIsSeenAlsoPastTheDeadline) {
  StubbornQueue queue({});
  const auto batch = queue.Transfer({});
  ASSERT_TRUE(batch.ok()) << batch.status();
  EXPECT_TRUE(AwaitBatch(queue, *batch, absl::InfinitePast()).ok());
}

TEST(BatchesTest, TheDeadlineEndsTheWait) {
  StubbornQueue queue({.looks_per_transfer = 1 << 30});
  const auto batch = queue.Transfer({});
  ASSERT_TRUE(batch.ok()) << batch.status();
  const absl::Time deadline = MonotonicNow() + absl::Milliseconds(20);
  EXPECT_TRUE(absl::IsDeadlineExceeded(AwaitBatch(queue, *batch, deadline)));
  EXPECT_GE(MonotonicNow(), deadline);
}

TEST(BatchesTest, ABatchThatWasNeverAddedIsAnError) {
  StubbornQueue queue({});
  EXPECT_TRUE(absl::IsInvalidArgument(AwaitBatch(queue, 7, absl::InfiniteFuture())));
}

}  // namespace

}  // namespace eplb
