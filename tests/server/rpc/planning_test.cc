#include "server/rpc/planning.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/server/rpc/served_test.h"

#include "eplb/v1/planning.grpc.pb.h"

namespace eplb {
namespace {

using ::testing::HasSubstr;

template <class Number>
std::string BytesOf(const std::vector<Number>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(Number)};
}

class PlanningTest : public ServedTest {
 protected:
  void Begin(RpcOptions options = {}) {
    Start({.host = "127.0.0.1"}, std::move(options));
    planning_ = v1::Planning::NewStub(channel_);
  }
  // 1 layer, 4 experts on 4 slots of 2 GPUs, of which GPU 0 has all of the load.
  v1::PlanRequest Question() {
    auto request = About<v1::PlanRequest>("chat");
    request.set_run_id("run-1");
    request.set_engine("vLLM 0.33.0");
    request.set_question(++asked_);
    v1::Shape& shape = *request.mutable_shape();
    shape.set_num_layers(1);
    shape.set_num_experts(4);
    shape.set_num_slots(4);
    shape.set_num_gpus(2);
    shape.set_num_nodes(1);
    shape.set_num_groups(1);
    request.set_load(BytesOf<uint64_t>({1000, 1000, 1, 1}));
    request.set_physical_to_logical_map(BytesOf(current_));
    return request;
  }
  Answered<v1::PlanResponse> Ask(const v1::PlanRequest& question) {
    return Call(*planning_, &v1::Planning::Stub::Plan, question);
  }
  std::string Refused(const v1::PlanRequest& question) {
    const Answered<v1::PlanResponse> answer = Ask(question);
    EXPECT_EQ(answer.code(), grpc::StatusCode::INVALID_ARGUMENT);
    return answer.status.error_message();
  }

  std::vector<int32_t> current_ = {0, 1, 2, 3};
  uint64_t asked_ = 0;
  std::unique_ptr<v1::Planning::Stub> planning_;
};

TEST_F(PlanningTest, AnEngineGetsAPlacementTakesItAndKeepsItUnderTheSameLoad) {
  Begin();
  const Answered<v1::PlanResponse> answer = Ask(Question());
  ASSERT_TRUE(answer.ok()) << answer.status.error_message();
  ASSERT_EQ(answer.body.physical_to_logical_map().size(), 4 * sizeof(int32_t));
  std::memcpy(current_.data(), answer.body.physical_to_logical_map().data(), 4 * sizeof(int32_t));
  EXPECT_NE(current_[0] < 2, current_[1] < 2);  // one of the two busy experts on each GPU
  auto settle = About<v1::SettleRequest>("chat");
  settle.set_run_id("run-1");
  settle.set_version(answer.body.version());
  settle.set_taken(true);
  ASSERT_TRUE(Call(*planning_, &v1::Planning::Stub::Settle, settle).ok());
  EXPECT_EQ(runner_->PlacementInForce("chat")->version,
            static_cast<int64_t>(answer.body.version()));
  const Answered<v1::PlanResponse> kept = Ask(Question());
  ASSERT_TRUE(kept.ok()) << kept.status.error_message();
  EXPECT_EQ(kept.body.physical_to_logical_map(), "");
  EXPECT_EQ(kept.body.version(), answer.body.version());
  EXPECT_NE(kept.body.reason(), "");
}

TEST_F(PlanningTest, AQuestionThatDoesNotFitItsShapeIsRefusedByTheField) {
  Begin();
  v1::PlanRequest wrong = Question();
  wrong.set_load("12345678");
  EXPECT_EQ(Refused(wrong), "question: load has 8 bytes, the shape expects 32");
  wrong = Question();
  wrong.set_load(BytesOf<uint64_t>({1, 2, 3, uint64_t{1} << 63}));
  EXPECT_THAT(Refused(wrong), HasSubstr("question: load is -9223372036854775808, it must be in"));
  wrong = Question();
  wrong.set_physical_to_logical_map(BytesOf<int32_t>({0, 1, 2, 4}));
  EXPECT_THAT(Refused(wrong), HasSubstr("question: physical_to_logical_map: "));
  wrong = Question();
  wrong.mutable_shape()->set_num_gpus(0);
  EXPECT_THAT(Refused(wrong), HasSubstr("question: shape: "));
  wrong = Question();
  wrong.mutable_shape()->set_num_layers(1 << 19);
  EXPECT_EQ(Refused(wrong), "question: load has 32 bytes, the shape expects 16777216");
  wrong = Question();
  wrong.set_job("");
  EXPECT_EQ(Refused(wrong), "job is empty, expected its name");
  wrong = Question();
  wrong.clear_engine();
  EXPECT_EQ(Refused(wrong), "question: engine is empty");
  EXPECT_TRUE(Ask(Question()).ok());
}

TEST_F(PlanningTest, AfterTheRunnerStoppedAQuestionIsRefusedAtOnce) {
  Begin();
  runner_->Stop();
  EXPECT_EQ(Ask(Question()).code(), grpc::StatusCode::UNAVAILABLE);
}

}  // namespace
}  // namespace eplb
