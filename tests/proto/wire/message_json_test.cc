#include "proto/wire/message_json.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "eplb/v1/query.pb.h"
#include <nlohmann/json.hpp>

namespace eplb::wire {
namespace {

TEST(MessageJsonTest, FieldsAreKeysAndWhatIsNotSetIsItsDefault) {
  v1::Refusal refusal;
  refusal.set_job("train");
  refusal.set_count(std::numeric_limits<uint64_t>::max());
  refusal.set_seconds_ago(std::numeric_limits<double>::infinity());
  EXPECT_EQ(ToJsonText(refusal),
            R"({"job":"train","reason":"","count":18446744073709551615,"seconds_ago":0.0})");
}

TEST(MessageJsonTest, AnOptionalFieldThatIsNotSetIsNull) {
  v1::Plan plan;
  EXPECT_TRUE(ToJson(plan)["received_bytes"].is_null());
  EXPECT_TRUE(ToJson(plan)["balancedness_seen"].is_null());
  EXPECT_EQ(ToJson(plan)["transfers"], 0);
  plan.set_received_bytes(0);
  EXPECT_EQ(ToJson(plan)["received_bytes"], 0);
  EXPECT_TRUE(ToJson(v1::JobStatus())["candidate"].is_null());
}

TEST(MessageJsonTest, ALayerWithoutTokensIsNull) {
  v1::JobStatus job;
  job.add_layer_balancedness(0.5);
  job.add_layer_balancedness(0);
  EXPECT_EQ(ToJson(job)["layer_balancedness"].dump(), "[0.5,null]");
}

TEST(MessageJsonTest, AnEnumIsItsNameWithoutThatOfItsType) {
  v1::JobStatus job;
  EXPECT_EQ(ToJson(job)["state"], "");
  EXPECT_EQ(ToJson(job)["ending"], "");
  job.set_state(v1::JOB_STATE_RECOVERING);
  job.set_ending(v1::RUN_ENDING_LOST);
  EXPECT_EQ(ToJson(job)["state"], "RECOVERING");
  EXPECT_EQ(ToJson(job)["ending"], "lost");
  v1::Plan plan;
  plan.set_result(static_cast<v1::PlanResult>(99));  // result of a newer daemon
  EXPECT_EQ(ToJson(plan)["result"], "99");
}

TEST(MessageJsonTest, ATimeIsReadable) {
  v1::JobEvent event;
  event.set_unix_micros(1'763'719'323'123'456);
  EXPECT_EQ(ToJson(event)["unix_micros"], 1'763'719'323'123'456);
  EXPECT_EQ(ToJson(event)["time"], "2025-11-21T10:02:03.123Z");
}

TEST(MessageJsonTest, AJobHasItsShapeBesideItsFieldsAndItsDigestInHex) {
  v1::JobStatus job;
  job.mutable_shape()->set_num_experts(256);
  job.set_digest(std::string("\x00\xff", 2));
  job.add_layer_balancedness(std::nan(""));
  job.add_model_layers(3);
  job.add_ranks()->mutable_transport()->add_settings()->set_name("NCCL_IB_TC");
  const nlohmann::ordered_json json = ToJson(job);
  EXPECT_EQ(json["num_logical_experts"], 256);
  EXPECT_FALSE(json.contains("shape"));
  EXPECT_EQ(json["digest"], "00ff");
  EXPECT_EQ(json["layer_balancedness"].dump(), "[null]");
  EXPECT_EQ(json["model_layers"].dump(), "[3]");
  EXPECT_EQ(json["ranks"][0]["transport"]["settings"].dump(), R"({"NCCL_IB_TC":""})");
  EXPECT_TRUE(json["ranks"][0]["transport"]["device"].is_null());
}

TEST(MessageJsonTest, BytesThatAreNotUtf8AreReplaced) {
  v1::Refusal refusal;
  refusal.set_reason("a\xff");
  EXPECT_NE(ToJsonText(refusal).find("a\uFFFD"), std::string::npos);
}

}  // namespace
}  // namespace eplb::wire
