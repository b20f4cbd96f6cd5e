// Service Query, asked over gRPC.
#include <gtest/gtest.h>

#include "absl/time/clock.h"

#include "proto/wire/convert.h"
#include "tests/server/rpc/served_test.h"

namespace eplb {
namespace {

class QueryTest : public ServedTest {};

TEST_F(QueryTest, QueriesTellJobsPlacementAndEvents) {
  Start();
  const std::unique_ptr<RankStream> ranks[] = {Join(0), Join(1)};
  v1::GetStatusResponse status;
  grpc::ClientContext first;
  SetDeadline(&first);
  ASSERT_TRUE(query_->GetStatus(&first, {}, &status).ok());
  EXPECT_EQ(status.server_version(), "test");
  EXPECT_EQ(status.term(), 1);
  EXPECT_TRUE(status.ready()) << status.not_ready_reason();
  ASSERT_EQ(status.jobs_size(), 1);
  EXPECT_EQ(status.jobs(0).connected_ranks(), 2);
  EXPECT_EQ(status.jobs(0).shape().num_slots(), 4);
  EXPECT_EQ(status.jobs(0).ranks_size(), 2);

  v1::GetPlacementRequest request;
  request.set_job("job");
  v1::GetPlacementResponse placement;
  grpc::ClientContext second;
  SetDeadline(&second);
  ASSERT_TRUE(query_->GetPlacement(&second, request, &placement).ok());
  EXPECT_EQ(wire::FromProto(placement.placement())->placement,
            Placement::Static(*Topology::Make(kSmallShape)));

  v1::ListEventsRequest list;
  list.set_job("job");
  v1::ListEventsResponse events;
  grpc::ClientContext third;
  SetDeadline(&third);
  ASSERT_TRUE(query_->ListEvents(&third, list, &events).ok());
  ASSERT_GT(events.events_size(), 0);
  EXPECT_EQ(events.events(0).job(), "job");
  EXPECT_FALSE(events.events(0).reason().empty());
}

TEST_F(QueryTest, AStateThatLastsLongIsToldAsStuck) {
  prepare_deadline_ = absl::Milliseconds(1);
  Start();
  const std::unique_ptr<RankStream> rank = Join(0);  // RECOVERING: rank 1 is missing
  v1::GetJobRequest request;
  request.set_job("job");
  const absl::Time give_up = absl::Now() + absl::FromChrono(kCallDeadline);
  v1::JobStatus job;
  while (!(job.stuck_seconds() > 0) && absl::Now() < give_up) {
    grpc::ClientContext context;
    SetDeadline(&context);
    ASSERT_TRUE(query_->GetJob(&context, request, &job).ok());
  }
  EXPECT_EQ(job.state(), v1::JOB_STATE_RECOVERING);
  EXPECT_GT(job.stuck_seconds(), 0.003);
  EXPECT_EQ(job.stuck_seconds(), job.state_seconds());
}

TEST_F(QueryTest, UnknownJobsAndAbsurdLimitsAreRefused) {
  Start();
  v1::GetJobRequest job;
  job.set_job("nobody");
  v1::JobStatus status;
  grpc::ClientContext first;
  SetDeadline(&first);
  EXPECT_EQ(query_->GetJob(&first, job, &status).error_code(), grpc::StatusCode::NOT_FOUND);
  v1::ListEventsRequest list;
  list.set_job("nobody");
  list.set_limit(1001);
  v1::ListEventsResponse events;
  grpc::ClientContext second;
  SetDeadline(&second);
  EXPECT_EQ(query_->ListEvents(&second, list, &events).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

}  // namespace
}  // namespace eplb
