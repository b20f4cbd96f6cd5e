#include <gmock/gmock.h>

#include "client/cli/commands.h"
#include "tests/client/cli/explained_job.h"

namespace eplb::cli {

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class TopTest : public ExplainedJobTest {
 protected:
  std::string Screen() const { return TextOf(RunTop({.query = daemon_.Options()}, kPlain)); }
};

TEST_F(TopTest, TheMostImportantComesFirst) {
  const std::string text = Screen();
  EXPECT_THAT(
      text,
      StartsWith("train  PREPARING 12.0 s  ranks 7/8  step 12,345  version 3\n"
                 "time saved is not known\n"
                 "measured 0.7500 on steps 12200..12249 | without EPLB 0.6250 | static 0.6125"));
  EXPECT_THAT(text, HasSubstr("GPU loads, all layers, steps 400..449"));
  EXPECT_TRUE(FitsInto(text, 80)) << text;
}

// GPUs got 45, 65 and 70 tokens of 60 on average. The current placement would give 50, 70 and 60.
TEST_F(TopTest, BarsAreWhatTheGpusGot) {
  const std::string text = Screen();
  EXPECT_THAT(text, HasSubstr("measured"));
  for (const char* load : {"0.75x", "1.08x", "1.17x"}) EXPECT_THAT(text, HasSubstr(load));
}

TEST_F(TopTest, BarsThatNobodyMeasuredAreCalledComputed) {
  daemon_.load->clear_gpu_loads();
  daemon_.status.mutable_jobs(0)->clear_balancedness();
  const std::string text = Screen();
  EXPECT_THAT(text, Says("computed\n", "0.83x"));
  EXPECT_THAT(text, Not(HasSubstr("measured 0")));
}

TEST_F(TopTest, ARebalanceInFlightShowsItsChunkAndItsSlowestRank) {
  v1::JobStatus& job = *daemon_.status.mutable_jobs(0);
  job.clear_ranks();
  for (uint32_t rank = 0; rank < 8; ++rank) {
    v1::RankStatus& one = *job.add_ranks();
    one.set_rank(rank);
    one.set_answer(rank < 5 ? v1::RANK_ANSWER_PREPARED : v1::RANK_ANSWER_NONE);
    // Time of an earlier chunk if there is no answer yet.
    one.set_answer_seconds(rank == 3 ? 1.25 : 0.5);
  }
  job.mutable_ranks(7)->set_answer_seconds(9);
  v1::Plan plan;
  plan.set_plan(12);
  plan.set_result(v1::PLAN_RESULT_PROPOSED);
  plan.set_num_chunks(4);
  plan.set_first_version(3);
  plan.set_chunks_committed(1);
  daemon_.plans.insert(daemon_.plans.begin(), plan);
  EXPECT_THAT(Screen(), HasSubstr("\nin flight: decision 12, chunk 2 of 4, 5 of 8 ranks were "
                                  "PREPARED, rank 3 last,\n  after 1.2 s\n"));
  job.set_state(v1::JOB_STATE_VOTING);
  for (v1::RankStatus& one : *job.mutable_ranks()) one.set_answer(v1::RANK_ANSWER_PREPARED);
  job.mutable_ranks(0)->set_answer(v1::RANK_ANSWER_APPLIED);
  EXPECT_THAT(Screen(), AllOf(HasSubstr("8 of 8 ranks were PREPARED, rank 7 last,\n"),
                              HasSubstr("  after 9.0 s; 1 have switched\n")));
  job.set_state(v1::JOB_STATE_IDLE);
  EXPECT_THAT(Screen(), Not(HasSubstr("in flight")));
}

}  // namespace

}  // namespace eplb::cli
