// Service Query, asked over gRPC.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "absl/time/clock.h"

#include "proto/wire/convert.h"
#include "tests/server/rpc/served_test.h"

namespace eplb {
namespace {

class QueryTest : public ServedTest {};

TEST_F(QueryTest, QueriesTellJobsPlacementAndEvents) {
  Start();
  const std::unique_ptr<RankStream> ranks[] = {Join(0), Join(1)};
  const auto [ended, status] = Call(*query_, &v1::Query::Stub::GetStatus, v1::GetStatusRequest());
  ASSERT_TRUE(ended.ok());
  EXPECT_EQ(status.server_version(), "test");
  EXPECT_EQ(status.term(), 1);
  EXPECT_TRUE(status.ready()) << status.not_ready_reason();
  ASSERT_EQ(status.jobs_size(), 1);
  EXPECT_EQ(status.jobs(0).connected_ranks(), 2);
  EXPECT_EQ(status.jobs(0).shape().num_slots(), 4);
  EXPECT_EQ(status.jobs(0).ranks_size(), 2);

  const auto placement =
      Call(*query_, &v1::Query::Stub::GetPlacement, About<v1::GetPlacementRequest>("job"));
  ASSERT_TRUE(placement.ok());
  EXPECT_EQ(wire::FromProto(placement.body.placement())->placement,
            Placement::Static(*Topology::Make(kSmallShape)));

  const auto events =
      Call(*query_, &v1::Query::Stub::ListEvents, About<v1::ListEventsRequest>("job"));
  ASSERT_TRUE(events.ok());
  ASSERT_GT(events.body.events_size(), 0);
  EXPECT_EQ(events.body.events(0).job(), "job");
  EXPECT_FALSE(events.body.events(0).reason().empty());
}

TEST_F(QueryTest, ATextThatIsNoUtf8HidesNoAnswer) {
  server_version_ = "te\xffst";
  Start();
  const std::unique_ptr<RankStream> rank = Join(0);
  const auto [ended, status] = Call(*query_, &v1::Query::Stub::GetStatus, v1::GetStatusRequest());
  ASSERT_TRUE(ended.ok()) << ended.error_message();
  EXPECT_EQ(status.server_version(), "te?st");
  EXPECT_EQ(status.jobs_size(), 1);
}

TEST_F(QueryTest, AStateThatLastsLongIsToldAsStuck) {
  prepare_deadline_ = absl::Milliseconds(1);
  Start();
  const std::unique_ptr<RankStream> rank = Join(0);  // RECOVERING: rank 1 is missing
  const absl::Time give_up = absl::Now() + absl::FromChrono(kCallDeadline);
  v1::JobStatus job;
  while (!(job.stuck_seconds() > 0) && absl::Now() < give_up) {
    const auto answered = Call(*query_, &v1::Query::Stub::GetJob, About<v1::GetJobRequest>("job"));
    ASSERT_TRUE(answered.ok());
    job = answered.body;
  }
  EXPECT_EQ(job.state(), v1::JOB_STATE_RECOVERING);
  EXPECT_GT(job.stuck_seconds(), 0.003);
  EXPECT_EQ(job.stuck_seconds(), job.state_seconds());
}

TEST_F(QueryTest, AWindowHasItsCountsRowByRow) {
  Start();
  const std::unique_ptr<RankStream> ranks[] = {Join(0), Join(1)};
  for (const auto& rank : ranks) rank->Say(ReportOf(0));
  ASSERT_TRUE(store_->WaitForEvent("proposed"));
  const v1::GetLoadResponse load =
      Call(*query_, &v1::Query::Stub::GetLoad, About<v1::GetLoadRequest>("job")).body;
  const core::WindowView window = *runner_->NewestWindow("job");
  const LoadMatrix& counts = window.load->counts();
  EXPECT_EQ(load.last_step(), window.last_step);
  EXPECT_EQ(load.num_layers(), counts.rows());
  EXPECT_EQ(load.num_experts(), counts.cols());
  std::vector<int64_t> cells(static_cast<size_t>(counts.size()));
  ASSERT_EQ(load.counts_u64().size(), cells.size() * sizeof(int64_t));
  std::memcpy(cells.data(), load.counts_u64().data(), load.counts_u64().size());
  size_t cell = 0;
  for (const auto& row : counts.rowwise()) {
    for (const int64_t count : row) EXPECT_EQ(cells[cell++], count);
  }
  EXPECT_EQ(load.gpu_loads_size(), window.on_gpus->loads.size());
  EXPECT_EQ(load.versions_size(), 1);
}

TEST_F(QueryTest, UnknownJobsAndAbsurdLimitsAreRefused) {
  Start();
  EXPECT_EQ(Call(*query_, &v1::Query::Stub::GetJob, About<v1::GetJobRequest>("nobody")).code(),
            grpc::StatusCode::NOT_FOUND);
  auto list = About<v1::ListEventsRequest>("nobody");
  list.set_limit(1001);
  EXPECT_EQ(Call(*query_, &v1::Query::Stub::ListEvents, list).code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

}  // namespace
}  // namespace eplb
