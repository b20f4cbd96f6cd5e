#include "client/cli/query_client.h"

#include <gmock/gmock.h>

#include <string>

#include "client/cli/commands.h"
#include "tests/client/cli/scripted_query.h"

namespace eplb::cli {

namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kEndpoint[] = "127.0.0.1:29610";

std::string Message(const std::string& grpc, bool plaintext = true) {
  return std::string(ConnectionError(kEndpoint, grpc, plaintext).message());
}

TEST(ConnectionErrorTest, ARefusedConnectionIsCalledSo) {
  const std::string refused =
      "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:29610: Failed to "
      "connect to remote host: Connection refused";
  EXPECT_EQ(Message(refused), "cannot reach 127.0.0.1:29610: connection refused");
  EXPECT_TRUE(absl::IsUnavailable(ConnectionError(kEndpoint, refused, true)));
}

TEST(ConnectionErrorTest, ASocketThatMayNotBeOpenedIsDenied) {
  const absl::Status status = ConnectionError(
      "unix:/run/eplb/eplbd.sock",
      "failed to connect to all addresses; last error: UNKNOWN: unix:/run/eplb/eplbd.sock: Failed "
      "to connect to remote host: Permission denied",
      true);
  EXPECT_TRUE(absl::IsPermissionDenied(status));
  EXPECT_EQ(std::string(status.message()),
            "cannot reach unix:/run/eplb/eplbd.sock: this user may not open the socket");
}

TEST(ConnectionErrorTest, AnHttpServerIsToldFromADaemon) {
  const std::string message = Message(
      "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:29611: "
      "Trying to connect an http1.x server");
  EXPECT_THAT(message, HasSubstr("is that eplbd's --http address?"));
  EXPECT_THAT(message, Not(HasSubstr("UNKNOWN")));
}

TEST(ConnectionErrorTest, OtherWordsOfGrpcStayWithoutTheirPreamble) {
  EXPECT_EQ(Message("failed to connect to all addresses; last error: UNKNOWN: ipv4:1.2.3.4:1: odd"),
            "cannot reach 127.0.0.1:29610: UNKNOWN: ipv4:1.2.3.4:1: odd");
  EXPECT_EQ(Message("DNS resolution failed for nowhere:1"),
            "cannot reach 127.0.0.1:29610: DNS resolution failed for nowhere:1");
}

TEST(ConnectionErrorTest, ADaemonThatHangsUpMayWantTls) {
  EXPECT_THAT(Message("last error: UNKNOWN: Socket closed"), HasSubstr("does it want TLS?"));
  EXPECT_THAT(Message("last error: UNKNOWN: Socket closed", false), Not(HasSubstr("TLS")));
}

using QueryClientTest = ExampleJobTest;

TEST_F(QueryClientTest, WithoutJobTheOnlyOneIsMeantAndOfSeveralOneIsAskedFor) {
  daemon_.status.add_jobs()->set_job("other");
  const Output several = RunGetRanks({.query = daemon_.Options()}, kPlain);
  EXPECT_EQ(several.exit_code, kUsage);
  EXPECT_EQ(several.message, "--job is needed: the daemon has train, other");
  daemon_.status.clear_jobs();
  const Output none = RunGetRanks({.query = daemon_.Options()}, kPlain);
  EXPECT_EQ(none.exit_code, kNotFound);
  EXPECT_EQ(none.message, "the daemon has no job yet");
  daemon_.status.set_jobs_hidden(true);
  const Output hidden = RunGetRanks({.query = daemon_.Options()}, kPlain);
  EXPECT_EQ(hidden.exit_code, kNotFound);
  EXPECT_EQ(hidden.message, kNoVisibleJob);
}

TEST_F(QueryClientTest, WhatMayComeFromAnyServerNamesTheEndpoint) {
  for (const grpc::StatusCode code :
       {grpc::StatusCode::UNIMPLEMENTED, grpc::StatusCode::UNKNOWN, grpc::StatusCode::UNAVAILABLE,
        grpc::StatusCode::INTERNAL, grpc::StatusCode::RESOURCE_EXHAUSTED}) {
    daemon_.failure = {code, "Received http2 header with status: 404"};
    const Output output = RunGetRanks({.query = daemon_.Options(), .job = kJob}, kPlain);
    EXPECT_EQ(output.exit_code, kError) << code;
    EXPECT_EQ(output.message, daemon_.endpoint() + ": Received http2 header with status: 404")
        << code;
  }
  // The daemon's own words about the question.
  daemon_.failure = {grpc::StatusCode::NOT_FOUND, "no job train"};
  EXPECT_EQ(RunGetRanks({.query = daemon_.Options(), .job = kJob}, kPlain).message, "no job train");
}

TEST_F(QueryClientTest, AFailureWithoutWordsNamesItsCode) {
  daemon_.failure = {grpc::StatusCode::UNIMPLEMENTED, ""};
  EXPECT_EQ(RunGetRanks({.query = daemon_.Options(), .job = kJob}, kPlain).message,
            daemon_.endpoint() + " answers UNIMPLEMENTED and no message");
  daemon_.failure = {grpc::StatusCode::PERMISSION_DENIED, ""};
  const Output denied = RunGetRanks({.query = daemon_.Options(), .job = kJob}, kPlain);
  EXPECT_EQ(denied.exit_code, kDenied);
  EXPECT_EQ(denied.message, daemon_.endpoint() + " answers PERMISSION_DENIED and no message");
}

}  // namespace

}  // namespace eplb::cli
