#include "server/rpc/balancer.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "tests/server/rpc/served_test.h"

namespace eplb {
namespace {

class BalancerTest : public ServedTest {
 protected:
  grpc::Status Reserve(const std::string& job, uint64_t* version) {
    grpc::ClientContext context;
    SetDeadline(&context);
    v1::ReserveVersionRequest request;
    request.set_job(job);
    v1::ReserveVersionResponse response;
    const grpc::Status status = balancer_->ReserveVersion(&context, request, &response);
    *version = response.version();
    return status;
  }
  grpc::Status Leader(const std::string& run_id, v1::GetLeaderResponse* response) {
    grpc::ClientContext context;
    SetDeadline(&context);
    v1::GetLeaderRequest request;
    request.set_job("job");
    request.set_run_id(run_id);
    return balancer_->GetLeader(&context, request, response);
  }
};

TEST_F(BalancerTest, EveryCallGetsANumberOfItsOwn) {
  Start();
  const std::unique_ptr<RankStream> ranks[] = {Join(0), Join(1)};
  ASSERT_TRUE(store_->WaitForEvent("released"));
  uint64_t first = 0;
  uint64_t second = 0;
  ASSERT_TRUE(Reserve("job", &first).ok());
  ASSERT_TRUE(Reserve("job", &second).ok());
  EXPECT_EQ(first, 1U);
  EXPECT_EQ(second, 2U);
  EXPECT_EQ(*runner_->NextVersion("job"), 3);
}

TEST_F(BalancerTest, OfAJobThatIsNotKnownEveryNumberIsFree) {
  Start();
  uint64_t version = 0;
  EXPECT_EQ(Reserve("other", &version).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(BalancerTest, TheLeaderOfARunTellsItsTermAndRanks) {
  Start();
  const std::unique_ptr<RankStream> rank = Join(0);
  v1::GetLeaderResponse response;
  ASSERT_TRUE(Leader(HelloOf(0, 100).run_id, &response).ok());
  EXPECT_EQ(response.term(), 1U);
  EXPECT_EQ(response.connected_ranks(), 1U);
  EXPECT_EQ(response.world_size(), 2U);
  EXPECT_EQ(Leader("another", &response).error_code(), grpc::StatusCode::NOT_FOUND);
}

}  // namespace
}  // namespace eplb
