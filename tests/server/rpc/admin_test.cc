#include "server/rpc/admin.h"

#include <gtest/gtest.h>

#include <chrono>
#include <limits>
#include <memory>
#include <string>

#include <grpcpp/grpcpp.h>

#include "placement/policies/registry.h"
#include "proto/wire/convert.h"
#include "server/rpc/rpc_server.h"
#include "tests/server/failing_store.h"
#include "tests/server/rpc/served_test.h"
#include "tests/server/test_stream.h"

#include "eplb/v1/admin.grpc.pb.h"
#include "eplb/v1/query.grpc.pb.h"
#include "eplb/v1/session.grpc.pb.h"

namespace eplb {

namespace {

constexpr auto kAdminDeadline = std::chrono::seconds(20);

// A daemon's gRPC side with one job of two ranks, and stubs to it.
class AdminTest : public ::testing::Test {
 protected:
  void SetUp() override {
    RunnerOptions options;
    options.core.settings.policy_name = kIncrementalPolicyName;
    options.core.settings.every_steps = kReportEvery;
    auto store = std::make_unique<FailingStore>();
    store_ = store.get();
    runner_ = *Runner::Start(options, std::move(store));
    server_ = *RpcServer::Start({.listen = {.host = "127.0.0.1"}, .runner = runner_.get()});
    const auto channel =
        grpc::CreateChannel(server_->address().Text(), grpc::InsecureChannelCredentials());
    balancer_ = v1::Balancer::NewStub(channel);
    admin_ = v1::Admin::NewStub(channel);
    query_ = v1::Query::NewStub(channel);
    for (int32_t rank = 0; rank < 2; ++rank) Join(rank);
    ASSERT_TRUE(store_->WaitForEvent("released"));
  }
  void TearDown() override {
    for (Rank& rank : ranks_) rank.context->TryCancel();
    server_->Shutdown(absl::ZeroDuration());
  }

  struct Rank {
    std::unique_ptr<grpc::ClientContext> context = std::make_unique<grpc::ClientContext>();
    std::unique_ptr<grpc::ClientReaderWriter<v1::Up, v1::Down>> stream = nullptr;
  };

  void Join(int32_t rank) {
    ranks_[rank].context->set_deadline(std::chrono::system_clock::now() + kAdminDeadline);
    ranks_[rank].stream = balancer_->Session(ranks_[rank].context.get());
    wire::Hello hello = HelloOf(rank, 100 + rank);
    hello.model_layers = {3};
    hello.library_version = "9.8";
    hello.transport.name = "nccl";
    hello.transport.settings = {{"NCCL_IB_TC", "106"}};
    Say(rank, hello);
  }
  void Say(int32_t rank, const wire::UpMessage& message) {
    v1::Up up;
    wire::ToProto(message, &up);
    ASSERT_TRUE(ranks_[rank].stream->Write(up));
  }
  template <class Request>
  Request Ask(const std::string& request_id, uint64_t expect_version = 0) {
    Request request;
    request.mutable_change()->set_job("job");
    request.mutable_change()->set_request_id(request_id);
    request.mutable_change()->set_expect_version(expect_version);
    request.mutable_change()->set_comment("night");
    return request;
  }
  // Calls `method` of a stub under the deadline.
  template <class Stub, class Method, class Request, class Response>
  grpc::Status Call(Stub& stub, Method method, const Request& request, Response* response) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kAdminDeadline);
    return (stub.*method)(&context, request, response);
  }
  v1::JobStatus Job() {
    v1::GetJobRequest request;
    request.set_job("job");
    v1::JobStatus job;
    EXPECT_TRUE(Call(*query_, &v1::Query::Stub::GetJob, request, &job).ok());
    return job;
  }

  FailingStore* store_ = nullptr;
  std::unique_ptr<Runner> runner_;
  std::unique_ptr<RpcServer> server_;
  std::unique_ptr<v1::Balancer::Stub> balancer_;
  std::unique_ptr<v1::Admin::Stub> admin_;
  std::unique_ptr<v1::Query::Stub> query_;
  Rank ranks_[2];
};

TEST_F(AdminTest, PauseAndResumeAreAnsweredAndShown) {
  v1::AdminResponse response;
  const grpc::Status status =
      Call(*admin_, &v1::Admin::Stub::Pause, Ask<v1::PauseRequest>("r1"), &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.state(), v1::JOB_STATE_IDLE);
  EXPECT_EQ(response.outcome(), "paused by local: night");
  EXPECT_TRUE(Job().paused());
  EXPECT_EQ(Job().pause_reason(), "paused by local: night");
  EXPECT_TRUE(
      Call(*admin_, &v1::Admin::Stub::Resume, Ask<v1::ResumeRequest>("r2"), &response).ok());
  EXPECT_FALSE(Job().paused());
  v1::ListEventsRequest events;
  events.set_job("job");
  events.set_limit(1);
  v1::ListEventsResponse list;
  ASSERT_TRUE(Call(*query_, &v1::Query::Stub::ListEvents, events, &list).ok());
  EXPECT_EQ(list.events(0).name(), "resume");
  EXPECT_EQ(list.events(0).actor(), "local");
  EXPECT_EQ(list.events(0).after(), "not paused");
  events.set_after_sequence(list.events(0).sequence());
  ASSERT_TRUE(Call(*query_, &v1::Query::Stub::ListEvents, events, &list).ok());
  EXPECT_EQ(list.events_size(), 0);
}

TEST_F(AdminTest, APreviewAnswersAsTheChangeAndLeavesItsRequestIdUnused) {
  v1::AdminResponse response;
  v1::PreviewRequest preview;
  EXPECT_EQ(Call(*admin_, &v1::Admin::Stub::Preview, preview, &response).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  *preview.mutable_pause() = Ask<v1::PauseRequest>("r1");
  const grpc::Status status = Call(*admin_, &v1::Admin::Stub::Preview, preview, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.outcome(), "paused by local: night");
  EXPECT_FALSE(Job().paused());
  EXPECT_TRUE(Call(*admin_, &v1::Admin::Stub::Pause, Ask<v1::PauseRequest>("r1"), &response).ok());
  *preview.mutable_set_policy() = Ask<v1::SetPolicyRequest>("r2");
  preview.mutable_set_policy()->mutable_settings()->set_min_gain(0.5);
  ASSERT_TRUE(Call(*admin_, &v1::Admin::Stub::Preview, preview, &response).ok());
  EXPECT_EQ(response.after(), "min_gain=0.5");
  preview.mutable_forget()->mutable_change()->set_job("other");
  EXPECT_EQ(Call(*admin_, &v1::Admin::Stub::Preview, preview, &response).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(AdminTest, WhoAsksOverTcpIsWhatTheCallerClaimsAndMarkedSo) {
  v1::AdminResponse response;
  v1::PauseRequest request = Ask<v1::PauseRequest>("r1");
  request.mutable_change()->set_claimed_by("alice@host");
  ASSERT_TRUE(Call(*admin_, &v1::Admin::Stub::Pause, request, &response).ok());
  EXPECT_EQ(Job().pause_reason(), "paused by alice@host (claimed): night");
}

TEST_F(AdminTest, ForgetIsRefusedWhileARankIsConnectedAndThenRemovesTheJob) {
  v1::AdminResponse response;
  const grpc::Status refused =
      Call(*admin_, &v1::Admin::Stub::Forget, Ask<v1::ForgetRequest>("f1"), &response);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  for (int32_t rank = 0; rank < 2; ++rank) Say(rank, wire::Goodbye{"", {}, false});
  ASSERT_TRUE(store_->WaitForEvent("run_ended"));
  EXPECT_EQ(Job().state(), v1::JOB_STATE_FINISHED);
  EXPECT_EQ(Job().ranks(0).state(), v1::RANK_STATE_FINISHED);
  const grpc::Status done =
      Call(*admin_, &v1::Admin::Stub::Forget, Ask<v1::ForgetRequest>("f2"), &response);
  EXPECT_TRUE(done.ok()) << done.error_message();
  v1::GetJobRequest request;
  request.set_job("job");
  v1::JobStatus job;
  EXPECT_EQ(Call(*query_, &v1::Query::Stub::GetJob, request, &job).error_code(),
            grpc::StatusCode::NOT_FOUND);
}

TEST_F(AdminTest, RefusalsHaveTheCodesOfTheProto) {
  v1::AdminResponse response;
  const auto pause = [this, &response](const v1::PauseRequest& request) {
    return Call(*admin_, &v1::Admin::Stub::Pause, request, &response).error_code();
  };
  v1::PauseRequest request = Ask<v1::PauseRequest>("r1");
  request.mutable_change()->set_job("other");
  EXPECT_EQ(pause(request), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(pause(Ask<v1::PauseRequest>("bad id")), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(pause(v1::PauseRequest()), grpc::StatusCode::INVALID_ARGUMENT);
  request = Ask<v1::PauseRequest>("r1");
  request.mutable_change()->clear_expect_version();
  EXPECT_EQ(pause(request), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(pause(Ask<v1::PauseRequest>("r1", std::numeric_limits<uint64_t>::max())),
            grpc::StatusCode::ABORTED);
  store_->fail_jobs = true;
  EXPECT_EQ(pause(Ask<v1::PauseRequest>("r1")), grpc::StatusCode::UNAVAILABLE);
  store_->fail_jobs = false;
  EXPECT_EQ(pause(Ask<v1::PauseRequest>("r1")), grpc::StatusCode::OK);
  EXPECT_EQ(pause(Ask<v1::PauseRequest>("r1")), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_EQ(Call(*admin_, &v1::Admin::Stub::Rebalance, Ask<v1::RebalanceRequest>("r3"), &response)
                .error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
}

TEST_F(AdminTest, SettingsAreSetAndTheOthersStay) {
  v1::SetPolicyRequest request = Ask<v1::SetPolicyRequest>("r1");
  request.mutable_settings()->set_mode("observe");
  request.mutable_settings()->set_max_pause_seconds(0.5);
  request.mutable_settings()->set_freeze_steps("3:9");
  v1::AdminResponse response;
  ASSERT_TRUE(Call(*admin_, &v1::Admin::Stub::SetPolicy, request, &response).ok());
  EXPECT_EQ(response.before(), "mode=apply freeze_steps=never max_pause=200ms");
  EXPECT_EQ(response.after(), "mode=observe freeze_steps=3:9 max_pause=500ms");
  const v1::PolicySettings policy = Job().policy();
  EXPECT_EQ(policy.name(), "incremental");
  EXPECT_EQ(policy.mode(), "observe");
  EXPECT_EQ(policy.every_steps(), kReportEvery);
  EXPECT_EQ(policy.max_pause_seconds(), 0.5);
  EXPECT_EQ(policy.freeze_steps(), "3:9");
  request = Ask<v1::SetPolicyRequest>("r2");
  request.mutable_settings()->set_every_steps(std::numeric_limits<uint32_t>::max());
  EXPECT_EQ(Call(*admin_, &v1::Admin::Stub::SetPolicy, request, &response).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  request = Ask<v1::SetPolicyRequest>("r2");
  request.mutable_settings()->set_max_pause_seconds(std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(Call(*admin_, &v1::Admin::Stub::SetPolicy, request, &response).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(AdminTest, ARebalanceIsShownAsAPlanAndRolledBack) {
  for (int32_t rank = 0; rank < 2; ++rank) Say(rank, ReportOf(0));
  ASSERT_TRUE(store_->WaitForEvent("proposed"));
  const wire::PlacementBody before = *runner_->PlacementInForce("job");
  for (int32_t rank = 0; rank < 2; ++rank) {
    v1::Down down;
    while (!down.has_propose()) ASSERT_TRUE(ranks_[rank].stream->Read(&down));
    wire::Prepared ready{.version = static_cast<int64_t>(down.propose().version())};
    ready.digest = std::get<wire::Propose>(*wire::FromProto(down)).digest;
    Say(rank, ready);
    Say(rank, wire::Applied{.version = ready.version,
                            .digest = ready.digest,
                            .step = 16,
                            .received_bytes = 70,
                            .pause_seconds = 0.125});
  }
  ASSERT_TRUE(store_->WaitForEvent("committed"));
  v1::ListPlansRequest plans;
  plans.set_job("job");
  v1::ListPlansResponse list;
  ASSERT_TRUE(Call(*query_, &v1::Query::Stub::ListPlans, plans, &list).ok());
  ASSERT_EQ(list.plans_size(), 1);
  EXPECT_EQ(list.plans(0).result(), v1::PLAN_RESULT_COMMITTED);
  EXPECT_EQ(list.plans(0).received_bytes(), 140);
  EXPECT_EQ(list.plans(0).pause_seconds(), 0.125);
  EXPECT_FALSE(list.plans(0).has_times());
  v1::GetPlanRequest one;
  one.set_job("job");
  one.set_plan(1);
  v1::Plan plan;
  ASSERT_TRUE(Call(*query_, &v1::Query::Stub::GetPlan, one, &plan).ok());
  ASSERT_EQ(plan.times().chunks_size(), 1);
  const v1::ChunkTimes& chunk = plan.times().chunks(0);
  EXPECT_TRUE(chunk.committed());
  EXPECT_EQ(chunk.timed_ranks(), 2U);
  EXPECT_LE(plan.times().window_began_unix_micros(), plan.times().window_complete_unix_micros());
  EXPECT_LE(plan.times().solve_began_unix_micros(), chunk.proposed_unix_micros());
  EXPECT_LE(chunk.proposed_unix_micros(), chunk.prepared_unix_micros());
  EXPECT_LE(chunk.prepared_unix_micros(), chunk.ended_unix_micros());
  EXPECT_GT(plan.times().window_began_unix_micros(), 0);
  EXPECT_GT(plan.times().solve_began_unix_micros(), 0);
  one.set_plan(2);
  const grpc::Status none = Call(*query_, &v1::Query::Stub::GetPlan, one, &plan);
  EXPECT_EQ(none.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(none.error_message(), "job job has no decision 2: 1..1 are kept");
  v1::AdminResponse response;
  v1::RollbackRequest rollback = Ask<v1::RollbackRequest>("r1", 1);
  const grpc::Status status = Call(*admin_, &v1::Admin::Stub::Rollback, rollback, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.state(), v1::JOB_STATE_PREPARING);
  EXPECT_TRUE(Job().paused());
  v1::GetPlacementRequest placement;
  placement.set_job("job");
  placement.set_version(0);
  v1::GetPlacementResponse body;
  ASSERT_TRUE(Call(*query_, &v1::Query::Stub::GetPlacement, placement, &body).ok());
  EXPECT_EQ(wire::FromProto(body.placement())->digest, before.digest);
  placement.set_version(99);
  EXPECT_EQ(Call(*query_, &v1::Query::Stub::GetPlacement, placement, &body).error_code(),
            grpc::StatusCode::NOT_FOUND);
}

TEST_F(AdminTest, TheNewestLoadAndTheRanksAreShown) {
  v1::GetLoadRequest request;
  request.set_job("job");
  v1::GetLoadResponse load;
  EXPECT_EQ(Call(*query_, &v1::Query::Stub::GetLoad, request, &load).error_code(),
            grpc::StatusCode::NOT_FOUND);
  for (int32_t rank = 0; rank < 2; ++rank) Say(rank, ReportOf(0));
  ASSERT_TRUE(store_->WaitForEvent("proposed"));
  ASSERT_TRUE(Call(*query_, &v1::Query::Stub::GetLoad, request, &load).ok());
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
  v1::AdminResponse response;
  EXPECT_EQ(
      Call(*admin_, &v1::Admin::Stub::Pause, Ask<v1::PauseRequest>("r1"), &response).error_code(),
      grpc::StatusCode::UNAVAILABLE);
}

}  // namespace

}  // namespace eplb
