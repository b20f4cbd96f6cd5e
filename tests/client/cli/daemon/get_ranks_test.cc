#include "client/cli/daemon/get_ranks.h"

#include <gmock/gmock.h>

#include "proto/wire/json_value.h"
#include "tests/client/cli/daemon/scripted_query.h"

namespace eplb::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class GetRanksTest : public ::testing::Test {
 protected:
  GetRanksTest() { *daemon_.status.add_jobs() = ExampleJob(); }
  ScriptedQuery daemon_;
};

TEST_F(GetRanksTest, RanksTellWhatTheyRunAndAnswered) {
  v1::RankStatus& rank = *daemon_.status.mutable_jobs(0)->add_ranks();
  rank.set_rank(1);
  rank.set_away_seconds(12.5);
  rank.set_answer("ready");
  rank.set_ready_version(4);
  rank.set_dropped_steps(150);
  rank.set_step(123'456);
  rank.set_running_version(345);
  rank.set_answer_seconds(1.25);
  rank.set_pause_seconds(0.125);
  v1::TransportInfo& transport = *rank.mutable_transport();
  transport.set_name("nccl");
  transport.set_nccl_version("2.28.9");
  transport.set_device(3);
  v1::TransportInfo::Setting& setting = *transport.add_settings();
  setting.set_name("NCCL_IB_TC");
  setting.set_value("106");
  const Output output = RunGetRanks({.query = daemon_.Options(), .job = ""}, kPlain);
  EXPECT_EQ(output.exit_code, kOk) << output.message;
  for (const char* word : {"connected", "away 12", "ready", "150", "nccl"}) {
    EXPECT_THAT(output.out, HasSubstr(word));
  }
  EXPECT_TRUE(FitsInto(output.out, 80)) << output.out;
  EXPECT_THAT(output.out, HasSubstr("boundary"));  // an operator's pause is another thing
  const Output json = RunGetRanks({.query = daemon_.Options(Format::kJson), .job = kJob}, kPlain);
  EXPECT_TRUE(wire::ParseJson(json.out).ok());
  EXPECT_THAT(json.out, HasSubstr(R"("away_seconds":12.5)"));
  EXPECT_THAT(json.out, HasSubstr(R"("transport":{"name":"nccl","passed_over":"","device":3,)"));
  EXPECT_THAT(json.out, HasSubstr(R"("settings":{"NCCL_IB_TC":"106"})"));
  EXPECT_THAT(json.out, HasSubstr(R"("transport":{"name":"","passed_over":"","device":null,)"))
      << "of a client that does not say";
}

TEST_F(GetRanksTest, ARankThatHasEndedIsNotAway) {
  v1::RankStatus& rank = *daemon_.status.mutable_jobs(0)->mutable_ranks(0);
  rank.set_connected(false);
  rank.set_away_seconds(12.5);
  const auto table = [this] {
    return RunGetRanks({.query = daemon_.Options(), .job = ""}, kPlain).out;
  };
  EXPECT_THAT(table(), HasSubstr("away 12.5 s"));
  for (const char* state : {"finished", "failed", "lost", "expected"}) {
    rank.set_state(state);
    EXPECT_THAT(table(), HasSubstr(std::string("  ") + state + "  "));
    EXPECT_THAT(table(), Not(HasSubstr("away")));
  }
  rank.set_state("away");
  EXPECT_THAT(table(), HasSubstr("away 12.5 s"));
  EXPECT_THAT(RunGetRanks({.query = daemon_.Options(Format::kJson), .job = ""}, kPlain).out,
              HasSubstr(R"("state":"away")"));
}

}  // namespace
}  // namespace eplb::cli
