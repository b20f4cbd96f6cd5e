#include "server/rpc/admin.h"

#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <optional>
#include <string>

#include "tests/server/rpc/served_test.h"

namespace eplb {

namespace {

// A daemon's gRPC side with one job of two ranks.
class AdminTest : public ServedTest {
 protected:
  void SetUp() override {
    Start();
    for (int32_t rank = 0; rank < 2; ++rank) {
      wire::Hello hello = HelloOf(rank, 100 + rank);
      hello.model_layers = {3};
      hello.library_version = "9.8";
      hello.transport.name = "nccl";
      hello.transport.settings = {{"NCCL_IB_TC", "106"}};
      ranks_[rank] = Connect();
      ASSERT_TRUE(ranks_[rank]->Say(hello));
    }
    ASSERT_TRUE(store_->WaitForEvent("released"));
  }
  v1::JobStatus Job() {
    const auto job = Call(*query_, &v1::Query::Stub::GetJob, About<v1::GetJobRequest>("job"));
    EXPECT_TRUE(job.ok());
    return job.body;
  }

  std::unique_ptr<RankStream> ranks_[2];
};

TEST_F(AdminTest, PauseAndResumeAreAnsweredAndShown) {
  const auto paused = Call(*admin_, &v1::Admin::Stub::Pause, ChangeOf<v1::PauseRequest>("r1"));
  ASSERT_TRUE(paused.ok()) << paused.status.error_message();
  EXPECT_EQ(paused.body.state(), v1::JOB_STATE_IDLE);
  EXPECT_EQ(paused.body.outcome(), "paused by local: night");
  EXPECT_TRUE(Job().paused());
  EXPECT_EQ(Job().pause_reason(), "paused by local: night");
  EXPECT_TRUE(Call(*admin_, &v1::Admin::Stub::Resume, ChangeOf<v1::ResumeRequest>("r2")).ok());
  EXPECT_FALSE(Job().paused());
  auto events = About<v1::ListEventsRequest>("job");
  events.set_limit(1);
  const v1::JobEvent newest = Call(*query_, &v1::Query::Stub::ListEvents, events).body.events(0);
  EXPECT_EQ(newest.name(), "resume");
  EXPECT_EQ(newest.actor(), "local");
  EXPECT_EQ(newest.after(), "not paused");
  events.set_after_sequence(newest.sequence());
  const auto later = Call(*query_, &v1::Query::Stub::ListEvents, events);
  ASSERT_TRUE(later.ok());
  EXPECT_EQ(later.body.events_size(), 0);
}

TEST_F(AdminTest, APreviewAnswersAsTheChangeAndLeavesItsRequestIdUnused) {
  const auto show = [this](const v1::PreviewRequest& preview) {
    return Call(*admin_, &v1::Admin::Stub::Preview, preview);
  };
  v1::PreviewRequest preview;
  EXPECT_EQ(show(preview).code(), grpc::StatusCode::INVALID_ARGUMENT);
  *preview.mutable_pause() = ChangeOf<v1::PauseRequest>("r1");
  EXPECT_EQ(show(preview).body.outcome(), "paused by local: night");
  EXPECT_FALSE(Job().paused());
  EXPECT_TRUE(Call(*admin_, &v1::Admin::Stub::Pause, preview.pause()).ok());
  *preview.mutable_set_policy() = ChangeOf<v1::SetPolicyRequest>("r2");
  preview.mutable_set_policy()->mutable_settings()->set_min_gain(0.5);
  EXPECT_EQ(show(preview).body.after(), "min_gain=0.5");
  preview.mutable_forget()->mutable_change()->set_job("other");
  EXPECT_EQ(show(preview).code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(AdminTest, ACallerOverTcpIsMarkedAsClaimed) {
  auto request = ChangeOf<v1::PauseRequest>("r1");
  request.mutable_change()->set_claimed_by("alice@host");
  ASSERT_TRUE(Call(*admin_, &v1::Admin::Stub::Pause, request).ok());
  EXPECT_EQ(Job().pause_reason(), "paused by alice@host (claimed): night");
}

TEST_F(AdminTest, ForgetIsRefusedWhileARankIsConnectedAndThenRemovesTheJob) {
  const auto forget = [this](const char* id) {
    return Call(*admin_, &v1::Admin::Stub::Forget, ChangeOf<v1::ForgetRequest>(id)).code();
  };
  EXPECT_EQ(forget("f1"), grpc::StatusCode::FAILED_PRECONDITION);
  for (const auto& rank : ranks_) rank->Say(wire::Goodbye{"", {}, false});
  ASSERT_TRUE(store_->WaitForEvent("run_ended"));
  EXPECT_EQ(Job().state(), v1::JOB_STATE_FINISHED);
  EXPECT_EQ(Job().ranks(0).state(), v1::RANK_STATE_FINISHED);
  EXPECT_EQ(forget("f2"), grpc::StatusCode::OK);
  EXPECT_EQ(Call(*query_, &v1::Query::Stub::GetJob, About<v1::GetJobRequest>("job")).code(),
            grpc::StatusCode::NOT_FOUND);
}

TEST_F(AdminTest, RefusalsHaveTheCodesOfTheProto) {
  const auto pause = [this](const v1::PauseRequest& request) {
    return Call(*admin_, &v1::Admin::Stub::Pause, request).code();
  };
  const auto request = ChangeOf<v1::PauseRequest>("r1");
  auto other = request;
  other.mutable_change()->set_job("other");
  EXPECT_EQ(pause(other), grpc::StatusCode::NOT_FOUND);
  auto any_version = request;
  any_version.mutable_change()->clear_expect_version();
  for (const v1::PauseRequest& bad :
       {ChangeOf<v1::PauseRequest>("bad id"), v1::PauseRequest(), any_version}) {
    EXPECT_EQ(pause(bad), grpc::StatusCode::INVALID_ARGUMENT);
  }
  EXPECT_EQ(pause(ChangeOf<v1::PauseRequest>("r1", std::numeric_limits<uint64_t>::max())),
            grpc::StatusCode::ABORTED);
  store_->fail_jobs = true;
  EXPECT_EQ(pause(request), grpc::StatusCode::UNAVAILABLE);
  store_->fail_jobs = false;
  EXPECT_EQ(pause(request), grpc::StatusCode::OK);
  EXPECT_EQ(pause(request), grpc::StatusCode::ALREADY_EXISTS);
  const auto rebalance = ChangeOf<v1::RebalanceRequest>("r3");
  EXPECT_EQ(Call(*admin_, &v1::Admin::Stub::Rebalance, rebalance).code(),
            grpc::StatusCode::FAILED_PRECONDITION);
}

TEST_F(AdminTest, SettingsAreSetAndTheOthersStay) {
  const auto set = [this](const v1::SetPolicyRequest& request) {
    return Call(*admin_, &v1::Admin::Stub::SetPolicy, request);
  };
  auto request = ChangeOf<v1::SetPolicyRequest>("r1");
  request.mutable_settings()->set_mode("observe");
  request.mutable_settings()->set_max_pause_seconds(0.5);
  request.mutable_settings()->set_freeze_steps("3:9");
  const v1::AdminResponse response = set(request).body;
  EXPECT_EQ(response.before(), "mode=apply freeze_steps=never max_pause=200ms");
  EXPECT_EQ(response.after(), "mode=observe freeze_steps=3:9 max_pause=500ms");
  const v1::PolicySettings policy = Job().policy();
  EXPECT_EQ(policy.name(), "incremental");
  EXPECT_EQ(policy.mode(), "observe");
  EXPECT_EQ(policy.every_steps(), kReportEvery);
  EXPECT_EQ(policy.max_pause_seconds(), 0.5);
  EXPECT_EQ(policy.freeze_steps(), "3:9");
  auto steps = ChangeOf<v1::SetPolicyRequest>("r2");
  steps.mutable_settings()->set_every_steps(std::numeric_limits<uint32_t>::max());
  auto pause = ChangeOf<v1::SetPolicyRequest>("r2");
  pause.mutable_settings()->set_max_pause_seconds(std::numeric_limits<double>::quiet_NaN());
  for (const v1::SetPolicyRequest& bad : {steps, pause}) {
    EXPECT_EQ(set(bad).code(), grpc::StatusCode::INVALID_ARGUMENT);
  }
}

TEST_F(AdminTest, ARebalanceIsShownAsAPlanAndRolledBack) {
  for (const auto& rank : ranks_) rank->Say(ReportOf(0));
  ASSERT_TRUE(store_->WaitForEvent("proposed"));
  const wire::PlacementBody before = *runner_->PlacementInForce("job");
  for (const auto& rank : ranks_) {
    const std::optional<wire::Propose> proposal = rank->Hear<wire::Propose>();
    ASSERT_TRUE(proposal.has_value());
    rank->Say(wire::Prepared{.version = proposal->version, .digest = proposal->digest});
    rank->Say(wire::Applied{.version = proposal->version,
                            .digest = proposal->digest,
                            .step = 16,
                            .received_bytes = 70,
                            .pause_seconds = 0.125});
  }
  ASSERT_TRUE(store_->WaitForEvent("committed"));
  const v1::ListPlansResponse list =
      Call(*query_, &v1::Query::Stub::ListPlans, About<v1::ListPlansRequest>("job")).body;
  ASSERT_EQ(list.plans_size(), 1);
  EXPECT_EQ(list.plans(0).result(), v1::PLAN_RESULT_COMMITTED);
  EXPECT_EQ(list.plans(0).received_bytes(), 140);
  EXPECT_EQ(list.plans(0).pause_seconds(), 0.125);
  EXPECT_FALSE(list.plans(0).has_times());
  auto one = About<v1::GetPlanRequest>("job");
  one.set_plan(1);
  const v1::Plan plan = Call(*query_, &v1::Query::Stub::GetPlan, one).body;
  ASSERT_EQ(plan.times().chunks_size(), 1);
  const v1::ChunkTimes& chunk = plan.times().chunks(0);
  EXPECT_TRUE(chunk.committed());
  EXPECT_EQ(chunk.timed_ranks(), 2U);
  EXPECT_GT(plan.times().window_began_unix_micros(), 0);
  EXPECT_LE(plan.times().window_began_unix_micros(), plan.times().window_complete_unix_micros());
  EXPECT_GT(plan.times().solve_began_unix_micros(), 0);
  EXPECT_LE(plan.times().solve_began_unix_micros(), chunk.proposed_unix_micros());
  EXPECT_LE(chunk.proposed_unix_micros(), chunk.prepared_unix_micros());
  EXPECT_LE(chunk.prepared_unix_micros(), chunk.ended_unix_micros());
  one.set_plan(2);
  const grpc::Status none = Call(*query_, &v1::Query::Stub::GetPlan, one).status;
  EXPECT_EQ(none.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(none.error_message(), "job job has no decision 2: 1..1 are kept");
  const auto rollback =
      Call(*admin_, &v1::Admin::Stub::Rollback, ChangeOf<v1::RollbackRequest>("r1", 1));
  ASSERT_TRUE(rollback.ok()) << rollback.status.error_message();
  EXPECT_EQ(rollback.body.state(), v1::JOB_STATE_PREPARING);
  EXPECT_TRUE(Job().paused());
  auto placement = About<v1::GetPlacementRequest>("job");
  placement.set_version(0);
  const auto body = Call(*query_, &v1::Query::Stub::GetPlacement, placement);
  ASSERT_TRUE(body.ok());
  EXPECT_EQ(wire::FromProto(body.body.placement())->digest, before.digest);
  placement.set_version(99);
  EXPECT_EQ(Call(*query_, &v1::Query::Stub::GetPlacement, placement).code(),
            grpc::StatusCode::NOT_FOUND);
}

TEST_F(AdminTest, TheNewestLoadAndTheRanksAreShown) {
  const auto request = About<v1::GetLoadRequest>("job");
  EXPECT_EQ(Call(*query_, &v1::Query::Stub::GetLoad, request).code(), grpc::StatusCode::NOT_FOUND);
  for (const auto& rank : ranks_) rank->Say(ReportOf(0));
  ASSERT_TRUE(store_->WaitForEvent("proposed"));
  const v1::GetLoadResponse load = Call(*query_, &v1::Query::Stub::GetLoad, request).body;
  EXPECT_EQ(load.last_step(), kReportEvery - 1);
  // Counts of both ranks; GPU 0 holds experts 0 and 1.
  ASSERT_EQ(load.gpu_loads_size(), 2);
  EXPECT_EQ(load.gpu_loads(0), 2 * 1900);
  EXPECT_EQ(load.gpu_loads(1), 2 * 30);
  ASSERT_EQ(load.versions_size(), 1);
  EXPECT_EQ(load.versions(0), 0);
  ASSERT_EQ(load.counts_u64().size(), 4 * sizeof(uint64_t));
  EXPECT_EQ(load.counts_u64().substr(0, 8), std::string("\xd0\x07\0\0\0\0\0\0", 8));  // 2000
  const v1::JobStatus job = Job();
  EXPECT_EQ(job.coverage(), 1);
  EXPECT_NEAR(job.balancedness(), 1930.0 / 2 / 1900, 1e-12);
  EXPECT_EQ(job.balancedness_static(), job.balancedness()) << "it ran under the static placement";
  EXPECT_EQ(job.layer_balancedness(0), job.balancedness());
  EXPECT_EQ(job.measured_last_step(), kReportEvery - 1);
  EXPECT_FALSE(job.has_balancedness_predicted()) << "nothing was switched yet";
  EXPECT_EQ(job.report_every(), kReportEvery);
  EXPECT_EQ(job.reduce(), "rank");
  ASSERT_EQ(job.model_layers_size(), 1);
  EXPECT_EQ(job.model_layers(0), 3);
  EXPECT_EQ(job.ranks(0).library_version(), "9.8");
  EXPECT_EQ(job.ranks(0).transport().name(), "nccl");
  EXPECT_FALSE(job.ranks(0).transport().has_device());
  ASSERT_EQ(job.ranks(0).transport().settings_size(), 1);
  EXPECT_EQ(job.ranks(0).transport().settings(0).value(), "106");
  EXPECT_EQ(job.ranks(0).answer(), v1::RANK_ANSWER_NONE);
}

TEST_F(AdminTest, CallsThatWaitEndWithTheServer) {
  runner_->Stop();
  EXPECT_EQ(Call(*admin_, &v1::Admin::Stub::Pause, ChangeOf<v1::PauseRequest>("r1")).code(),
            grpc::StatusCode::UNAVAILABLE);
}

}  // namespace

}  // namespace eplb
