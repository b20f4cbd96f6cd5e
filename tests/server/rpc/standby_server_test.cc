#include "server/rpc/standby_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include <grpcpp/grpcpp.h>

#include "proto/wire/status.h"

#include "eplb/v1/query.grpc.pb.h"
#include "eplb/v1/session.grpc.pb.h"

namespace eplb {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class StandbyServerTest : public ::testing::Test {
 protected:
  std::unique_ptr<StandbyServer> Start(int32_t port = 0) {
    return *StandbyServer::Start({.listen = {.host = "127.0.0.1", .port = port}, .leader = [this] {
                                    const std::lock_guard lock(mutex_);
                                    return leader_;
                                  }});
  }
  void SetLeader(const std::string& leader) {
    const std::lock_guard lock(mutex_);
    leader_ = leader;
  }
  static std::shared_ptr<grpc::Channel> ChannelTo(const StandbyServer& server) {
    return grpc::CreateChannel(server.address().Text(), grpc::InsecureChannelCredentials());
  }
  static absl::Status AskStatus(const StandbyServer& server) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    v1::GetStatusResponse response;
    const grpc::Status status =
        v1::Query::NewStub(ChannelTo(server))->GetStatus(&context, {}, &response);
    return wire::FromGrpc(status, context);
  }
  // Returns the refusal.
  static absl::Status SendHello(const std::shared_ptr<grpc::Channel>& channel,
                                const std::string& job) {
    const auto stub = v1::Balancer::NewStub(channel);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    const auto stream = stub->Session(&context);
    v1::Up hello;
    hello.mutable_hello()->set_job(job);
    EXPECT_TRUE(stream->Write(hello));
    v1::Down down;
    EXPECT_FALSE(stream->Read(&down));
    return wire::FromGrpc(stream->Finish(), context);
  }

 private:
  std::mutex mutex_;
  std::string leader_;  // guarded by mutex_
};

TEST_F(StandbyServerTest, ACallIsRefusedWithTheLeadersAddress) {
  const auto server = Start();
  SetLeader("head-1:29610");
  const absl::Status status = AskStatus(*server);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("NOT_LEADER"));
  EXPECT_EQ(wire::LeaderIn(status), "head-1:29610");
  EXPECT_THAT(server->TakeRefusedJobs(), IsEmpty());
}

TEST_F(StandbyServerTest, TheRefusalCarriesTheStandbysOwnTrouble) {
  const auto server = *StandbyServer::Start({.listen = {.host = "127.0.0.1", .port = 0},
                                             .leader = [] { return std::string(); },
                                             .trouble = [] { return std::string("etcd: gone"); }});
  const absl::Status status = AskStatus(*server);
  EXPECT_EQ(wire::LeaderIn(status), "");
  EXPECT_EQ(wire::TroubleIn(status), "etcd: gone");
  EXPECT_THAT(std::string(status.message()), HasSubstr("none leads at the moment; etcd: gone"));
  EXPECT_EQ(wire::TroubleIn(AskStatus(*Start())), "");
}

TEST_F(StandbyServerTest, AStreamOfARankIsRefusedAndItsJobKept) {
  const auto server = Start();
  SetLeader("head-1:29610");
  EXPECT_EQ(wire::LeaderIn(SendHello(ChannelTo(*server), "train")), "head-1:29610");
  EXPECT_THAT(server->TakeRefusedJobs(), ElementsAre("train"));
  EXPECT_THAT(server->TakeRefusedJobs(), IsEmpty());
}

TEST_F(StandbyServerTest, AStreamWithoutAHelloIsRefusedSoon) {
  const auto server = Start();
  const auto stub = v1::Balancer::NewStub(ChannelTo(*server));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  const auto stream = stub->Session(&context);
  v1::Down down;
  EXPECT_FALSE(stream->Read(&down));
  EXPECT_EQ(wire::LeaderIn(wire::FromGrpc(stream->Finish(), context)), "");
  EXPECT_THAT(server->TakeRefusedJobs(), IsEmpty());
}

TEST_F(StandbyServerTest, ADaemonIsReachedWhileItListens) {
  auto server = Start();
  const std::string address = server->address().Text();
  EXPECT_TRUE(Reaches(address, {}, absl::Seconds(20)));
  server.reset();
  EXPECT_FALSE(Reaches(address, {}, absl::Milliseconds(200)));
}

TEST_F(StandbyServerTest, TheAddressIsFreeOnceItHasEnded) {
  auto server = Start();
  const int32_t port = server->address().port;
  EXPECT_FALSE(AskStatus(*server).ok());
  server.reset();
  server = Start(port);
  SetLeader("b:1");
  EXPECT_EQ(wire::LeaderIn(AskStatus(*server)), "b:1");
}

// Not of a standby: nothing is read into it.
TEST(LeaderInTest, AnotherRefusalHasNoLeader) {
  EXPECT_EQ(wire::LeaderIn(absl::UnavailableError("NOT_LEADER: by another")), std::nullopt);
  EXPECT_EQ(wire::LeaderIn(absl::OkStatus()), std::nullopt);
}

}  // namespace
}  // namespace eplb
