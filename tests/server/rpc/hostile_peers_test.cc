// Slow, malformed and greedy peers: they are refused and counted, and a good client works on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include <grpcpp/generic/generic_stub.h>

#include "tests/server/rpc/secured_server.h"
#include "tests/support/raw_connection.h"

namespace eplb {
namespace {

using ::testing::HasSubstr;
using Code = grpc::StatusCode;

using HostilePeersTest = SecurityTest;

TEST_F(HostilePeersTest, SilentAndSlowConnectionsAreClosedAndHurtNobody) {
  StartWithTls();
  const auto good = OpenAs("URI:spiffe://x/train/0");
  std::vector<RawConnection> slow;
  for (int i = 0; i < 200; ++i) {
    slow.emplace_back(server_->address().port);
    if (i % 2 == 0) slow.back().Send("\x16");
    if (i % 20 == 0) {
      EXPECT_TRUE(Works(good));
    }
  }
  for (int i = 0; i < 200; i += 2) slow[static_cast<size_t>(i)].Send("\x03");
  EXPECT_TRUE(Works(OpenAs("URI:spiffe://x/train/0")));
  for (RawConnection& one : slow) EXPECT_TRUE(one.ReadToTheEnd());
  EXPECT_TRUE(Eventually([&] { return FailedHandshakesHere() >= 200; })) << FailedHandshakesHere();
}

TEST_F(HostilePeersTest, RandomBytesAfterThePrefaceHurtNobody) {
  Start({.handshake_deadline = absl::Seconds(1)});
  std::mt19937 random(7);
  std::vector<RawConnection> connections;
  for (int i = 0; i < 500; ++i) {
    connections.emplace_back(server_->address().port);
    std::string bytes = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    if (i % 2 == 0) bytes += std::string("\0\0\0\4\0\0\0\0\0", 9);  // empty settings
    bytes += '\xff';                                                // a frame of 16 MB
    for (int k = 0; k < 200; ++k) bytes += static_cast<char>(random());
    connections.back().Send(bytes);
  }
  for (RawConnection& one : connections) EXPECT_TRUE(one.ReadToTheEnd());
  EXPECT_TRUE(Works(OpenPlain()));
}

// 500 streams of the right method whose messages are no protobuf.
TEST_F(HostilePeersTest, MalformedMessagesAreRefusedAndCounted) {
  Start({});
  const auto channel = OpenPlain();
  grpc::GenericStub stub(channel);
  std::mt19937 random(11);
  for (int i = 0; i < 500; ++i) {
    std::string bytes(1 + random() % 64, '\xff');
    for (char& byte : bytes) byte = static_cast<char>(random() | 0x80);  // a varint without end
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kCallDeadline);
    grpc::CompletionQueue queue;
    const auto call = stub.PrepareCall(&context, "/eplb.v1.Balancer/Session", &queue);
    const auto wait = [&queue] {
      void* tag = nullptr;
      bool ok = false;
      return queue.Next(&tag, &ok) && ok;
    };
    call->StartCall(nullptr);
    ASSERT_TRUE(wait());
    const grpc::Slice slice(bytes);
    call->Write(grpc::ByteBuffer(&slice, 1), nullptr);
    (void)wait();
    grpc::Status status;
    call->Finish(&status, nullptr);
    (void)wait();
    ASSERT_TRUE(status.error_code() == Code::UNAVAILABLE ||
                status.error_code() == Code::INVALID_ARGUMENT)
        << status.error_message();
  }
  EXPECT_TRUE(Eventually([&] { return refusals(Refusal::kMalformed) >= 500; }))
      << refusals(Refusal::kMalformed);
  RankStream good(channel);
  EXPECT_TRUE(good.Welcomed(HelloOf(0, 1)));
}

TEST_F(HostilePeersTest, SessionsAndCallsOfOneAddressAreLimited) {
  Start({.peers = {.max_sessions = 1, .calls_per_second = 1}});
  RankStream first(OpenPlain());
  ASSERT_TRUE(first.Welcomed(HelloOf(0, 1)));
  RankStream second(OpenPlain());
  EXPECT_FALSE(second.Welcomed(HelloOf(1, 2)));
  EXPECT_EQ(second.End().error_code(), Code::RESOURCE_EXHAUSTED);
  const auto channel = OpenPlain();
  grpc::Status status;
  for (int i = 0; i < 3; ++i) status = AskJob(channel, "job");
  EXPECT_EQ(status.error_code(), Code::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("limits.calls_per_second"));
  EXPECT_GE(refusals(Refusal::kLimited), 2);
}

TEST_F(HostilePeersTest, AnOversizedMessageEndsItsStreamOnly) {
  Start({});
  RankStream good(OpenPlain());
  ASSERT_TRUE(good.Welcomed(HelloOf(0, 1)));
  RankStream large(OpenPlain());
  v1::Up up;
  up.mutable_load_report()->set_counts_u32(std::string(RpcServer::kMaxReceiveBytes, '\0'));
  (void)large.stream()->Write(up);
  EXPECT_EQ(large.End().error_code(), Code::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(Eventually([&] { return refusals(Refusal::kMalformed) == 1; }));
  EXPECT_TRUE(Works(OpenPlain()));
}

}  // namespace
}  // namespace eplb
