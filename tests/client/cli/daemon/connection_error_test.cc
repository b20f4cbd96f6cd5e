#include "client/cli/daemon/connection_error.h"

#include <gmock/gmock.h>

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

}  // namespace
}  // namespace eplb::cli
