#include "server/runner/change_desk.h"

#include <gtest/gtest.h>

#include <vector>

namespace eplb {
namespace {

class ChangeDeskTest : public ::testing::Test {
 protected:
  absl::StatusOr<int64_t> Take(ChangeDesk::Who who = ChangeDesk::Who::kOperator) {
    return desk_.Take(
        who,
        [this](const absl::StatusOr<core::ChangeOutcome>& out) {
          answers_.push_back(out.status());
        },
        now_);
  }

  ChangeDesk desk_;
  absl::Time now_ = absl::UnixEpoch();
  std::vector<absl::Status> answers_;
};

TEST_F(ChangeDeskTest, EveryChangeIsAnsweredOnce) {
  const int64_t first = *Take();
  const int64_t second = *Take();
  EXPECT_NE(first, second);
  desk_.Answer(second, core::ChangeOutcome{});
  desk_.Answer(second, absl::AbortedError("again"));
  ASSERT_EQ(answers_.size(), 1);
  EXPECT_TRUE(answers_[0].ok());
  EXPECT_TRUE(desk_.Drop(first));
  EXPECT_FALSE(desk_.Drop(first));
  desk_.Answer(first, core::ChangeOutcome{});
  EXPECT_EQ(answers_.size(), 1);
}

TEST_F(ChangeDeskTest, WhatWaitsTooLongIsToldToAskAgain) {
  ASSERT_TRUE(Take().ok());
  now_ += ChangeDesk::kDeadline / 2;
  ASSERT_TRUE(Take().ok());
  desk_.Expire(now_ + ChangeDesk::kDeadline / 2);
  ASSERT_EQ(answers_.size(), 1);
  EXPECT_EQ(answers_[0].code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(ChangeDeskTest, TheDeskIsBounded) {
  for (size_t i = 0; i < ChangeDesk::kMaxWaiting; ++i) ASSERT_TRUE(Take().ok());
  EXPECT_EQ(Take().status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(ChangeDeskTest, RanksThatReserveVersionsLeavePlacesForOperators) {
  for (size_t i = 0; i < ChangeDesk::kMaxOfRanks; ++i) {
    ASSERT_TRUE(Take(ChangeDesk::Who::kRank).ok());
  }
  EXPECT_EQ(Take(ChangeDesk::Who::kRank).status().message(),
            "32 reservations wait for the core already, retry later");
  EXPECT_TRUE(Take().ok());
  ASSERT_TRUE(desk_.Drop(1));
  EXPECT_TRUE(Take(ChangeDesk::Who::kRank).ok());
}

TEST_F(ChangeDeskTest, QuestionsOfEnginesHaveALimitOfTheirOwn) {
  ChangeDesk desk(2);
  const auto take = [&](ChangeDesk::Who who) {
    return std::string(desk.Take(
                               who, [](const auto&) {}, now_)
                           .status()
                           .message());
  };
  for (int i = 0; i < 2; ++i) EXPECT_EQ(take(ChangeDesk::Who::kEngine), "");
  EXPECT_EQ(take(ChangeDesk::Who::kEngine),
            "2 questions of engines wait for the core already, as many as "
            "limits.max_plan_questions allows");
  for (size_t i = 0; i < ChangeDesk::kMaxWaiting; ++i) {
    EXPECT_EQ(take(ChangeDesk::Who::kOperator), "");
  }
}

TEST_F(ChangeDeskTest, FailAllAnswersThoseThatWaitAndClosesTheDesk) {
  ASSERT_TRUE(Take().ok());
  desk_.FailAll(absl::UnavailableError("over"));
  ASSERT_EQ(answers_.size(), 1);
  EXPECT_EQ(answers_[0].message(), "over");
  EXPECT_EQ(Take().status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace eplb
