#include "server/rpc/balancer.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "tests/server/rpc/served_test.h"

namespace eplb {
namespace {

class BalancerTest : public ServedTest {
 protected:
  Answered<v1::ReserveVersionResponse> Reserve(const std::string& job) {
    return Call(*balancer_, &v1::Balancer::Stub::ReserveVersion,
                About<v1::ReserveVersionRequest>(job));
  }
  Answered<v1::GetLeaderResponse> Leader(const std::string& run_id) {
    auto request = About<v1::GetLeaderRequest>("job");
    request.set_run_id(run_id);
    return Call(*balancer_, &v1::Balancer::Stub::GetLeader, request);
  }
};

TEST_F(BalancerTest, EveryReservationGetsANumberOfItsOwnAndTheLeaderIsKnown) {
  Start();
  const std::unique_ptr<RankStream> ranks[] = {Join(0), Join(1)};
  ASSERT_TRUE(store_->WaitForEvent("released"));
  EXPECT_EQ(Reserve("job").body.version(), 1U);
  EXPECT_EQ(Reserve("job").body.version(), 2U);
  EXPECT_EQ(*runner_->NextVersion("job"), 3);
  EXPECT_EQ(Reserve("other").code(), grpc::StatusCode::NOT_FOUND);
  const Answered<v1::GetLeaderResponse> leader = Leader(HelloOf(0, 100).run_id);
  ASSERT_TRUE(leader.ok());
  EXPECT_EQ(leader.body.term(), 1U);
  EXPECT_EQ(leader.body.connected_ranks(), 2U);
  EXPECT_EQ(leader.body.world_size(), 2U);
  EXPECT_EQ(Leader("another").code(), grpc::StatusCode::NOT_FOUND);
}

}  // namespace
}  // namespace eplb
