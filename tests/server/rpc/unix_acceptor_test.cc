#include "server/rpc/unix_acceptor.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <optional>
#include <string>

#include "absl/strings/str_cat.h"

#include "tests/server/rpc/served_test.h"

namespace eplb {
namespace {

TEST(UnixPeersTest, ACallsConnectionIsFoundByItsDescriptorAlone) {
  UnixPeers peers;
  peers.Note(12, 1000);
  EXPECT_EQ(peers.UserOf("fd:12"), 1000u);
  peers.Note(12, 1001);
  EXPECT_EQ(peers.UserOf("fd:12"), 1001u);
  for (const char* other : {"fd:1", "fd:", "fd:12x", "fd:123", "unix:", "ipv4:127.0.0.1:12", ""}) {
    EXPECT_EQ(peers.UserOf(other), std::nullopt) << other;
  }
}

TEST(UnixPeersTest, AUserIsNamedWithItsNumber) {
  EXPECT_EQ(DescribeUser(0), "uid 0 (root)");
  EXPECT_EQ(DescribeUser(4000000001U), "uid 4000000001");
}

// A daemon on a socket, with one job of two ranks.
class UnixAcceptorTest : public SocketServedTest {
 protected:
  // Starts the daemon, and returns once the job's ranks have registered.
  void StartJob(const Address& listen, RpcOptions options = {}) {
    Start(listen, std::move(options));
    for (int32_t rank = 0; rank < 2; ++rank) ranks_[rank] = Join(rank);
    ASSERT_TRUE(store_->WaitForEvent("released"));
  }
  // Pauses the job over a connection of its own.
  grpc::Status Pause(const std::string& request_id) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    const auto channel =
        grpc::CreateCustomChannel("unix:" + path_, grpc::InsecureChannelCredentials(), arguments);
    const auto stub = v1::Admin::NewStub(channel);
    auto request = ChangeOf<v1::PauseRequest>(request_id);
    request.mutable_change()->clear_comment();
    request.mutable_change()->set_claimed_by("root@elsewhere");
    return Call(*stub, &v1::Admin::Stub::Pause, request).status;
  }
  std::string PausedBy() const { return runner_->Job("job")->pause_reason(); }

  std::unique_ptr<RankStream> ranks_[2];
};

TEST_F(UnixAcceptorTest, WhoAsksIsWhomTheKernelNamesWhateverTheCallerClaims) {
  StartJob({.unix_path = path_});
  const grpc::Status status = Pause("r1");
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(PausedBy(), "paused by " + DescribeUser(getuid()));
  EXPECT_EQ(runner_->Events("job", 1)->front().actor(), DescribeUser(getuid()));
}

TEST_F(UnixAcceptorTest, TheSocketBesideAnAddressNamesItsUsersToo) {
  StartJob({.host = "127.0.0.1"}, {.unix_socket = path_});
  ASSERT_TRUE(Pause("r1").ok());
  EXPECT_EQ(PausedBy(), "paused by " + DescribeUser(getuid()));
}

// More connections than there are numbers for them, one after the other.
TEST_F(UnixAcceptorTest, ConnectionsComeAndGoWithoutEnd) {
  StartJob({.unix_path = path_});
  for (int i = 0; i < 600; ++i) {
    const grpc::Status status = Pause(absl::StrCat("r", i));
    ASSERT_TRUE(status.ok()) << i << ": " << status.error_message();
  }
}

TEST_F(UnixAcceptorTest, AStreamThatIsOpenAtTheEndIsEndedAndTheSocketRemoved) {
  Start({.unix_path = path_});
  const auto rank = Join(0);
  server_->Shutdown(absl::Seconds(5));
  EXPECT_EQ(rank->End().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(runner_->sessions().count(), 0);
  struct stat info {};
  EXPECT_NE(stat(path_.c_str(), &info), 0);
}

TEST_F(UnixAcceptorTest, AFolderThatTakesNoSocketIsNamedWithTheReason) {
  const std::string path = folder_.File("none/eplbd.sock");
  RpcOptions options;
  options.listen.unix_path = path;
  EXPECT_EQ(RpcServer::Start(options).status(),
            absl::UnavailableError(
                absl::StrCat("cannot listen on unix:", path, ": No such file or directory")));
}

}  // namespace
}  // namespace eplb
