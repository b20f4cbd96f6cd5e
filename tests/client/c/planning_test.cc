// Questions of an engine by the C interface.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "client/c/eplb.h"
#include "client/c/eplb_plan.h"
#include "tests/client/session/planning_server.h"

namespace eplb {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Two experts in three slots on one GPU.
class PlanningTest : public ::testing::Test {
 protected:
  PlanningTest() {
    question_.struct_size = sizeof(question_);
    question_.job = "chat-1x2";
    question_.run_id = "run";
    question_.number = 1;
    question_.counts = counts_.data();
    question_.current = current_.data();
    question_.timeout_s = 20;
    question_.num_layers = question_.num_gpus = question_.num_nodes = question_.num_groups = 1;
    question_.num_experts = 2;
    question_.num_slots = 3;
    answer_.struct_size = sizeof(answer_);
  }
  int32_t AskOf(const PlanningServer& server) {
    endpoint_ = server.endpoint();
    question_.endpoint = endpoint_.c_str();
    return eplb_ask_plan(&question_, slots_.data(), &answer_);
  }

  std::vector<int64_t> counts_ = {7, 90}, current_ = {0, 1, 0}, slots_ = {-7, -7, -7};
  std::string endpoint_;
  eplb_plan_question question_ = {};
  eplb_plan_answer answer_ = {};
};

TEST_F(PlanningTest, AnAnswerIsTakenAndSettled) {
  PlanningServer server(AnswerOf({0, 1, 1}, 9));
  ASSERT_EQ(AskOf(server), EPLB_OK) << eplb_last_message();
  EXPECT_THAT(slots_, ElementsAre(0, 1, 1));
  EXPECT_EQ(answer_.changes, 1);
  EXPECT_EQ(answer_.version, 9);
  EXPECT_STREQ(answer_.reason, "a reason");
  EXPECT_EQ(answer_.endpoint, endpoint_);
  question_.endpoint = nullptr;  // the answer has that of the daemon
  ASSERT_EQ(eplb_settle_plan(&question_, &answer_, 1, nullptr), EPLB_OK) << eplb_last_message();
  EXPECT_EQ(server.settled().at(0).version(), 9);
  EXPECT_TRUE(server.settled().at(0).taken());
}

TEST_F(PlanningTest, AnAnswerThatKeepsWritesNoPlacement) {
  PlanningServer server(AnswerOf({}));
  ASSERT_EQ(AskOf(server), EPLB_OK) << eplb_last_message();
  EXPECT_THAT(slots_, ElementsAre(-7, -7, -7));
  EXPECT_EQ(answer_.changes, 0);
}

TEST_F(PlanningTest, WhatCannotBeAskedIsNamed) {
  PlanningServer server(AnswerOf({}));
  for (const auto& [number, expected] :
       {std::pair{int64_t{-1}, "expert 0"}, {std::numeric_limits<int64_t>::max(), "layer 0"}}) {
    counts_ = {number, 90};
    EXPECT_EQ(AskOf(server), EPLB_INVALID_ARGUMENT);
    EXPECT_THAT(eplb_last_message(), HasSubstr(expected));
  }
  counts_ = {7, 90};
  for (const int64_t expert : {int64_t{-1}, int64_t{2}, int64_t{1} << 32}) {
    current_ = {0, 1, expert};
    EXPECT_EQ(AskOf(server), EPLB_INVALID_ARGUMENT);
    EXPECT_THAT(eplb_last_message(), HasSubstr("slot 2"));
  }
  question_.current = nullptr;
  EXPECT_EQ(AskOf(server), EPLB_INVALID_ARGUMENT);
  EXPECT_STREQ(eplb_last_message(), "current is NULL");
  EXPECT_EQ(eplb_settle_plan(&question_, &answer_, 2, nullptr), EPLB_INVALID_ARGUMENT);
  EXPECT_STREQ(eplb_last_message(), "taken: 2, expected 0 or 1");
}

}  // namespace
}  // namespace eplb
