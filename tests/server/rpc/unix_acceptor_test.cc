#include "server/rpc/unix_acceptor.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"

#include "tests/server/rpc/served_test.h"

#include "eplb/v1/admin.grpc.pb.h"

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
class UnixAcceptorTest : public ServedTest {
 protected:
  UnixAcceptorTest() {
    std::string folder = ::testing::TempDir() + "/eplb_acceptor_XXXXXX";
    EXPECT_NE(mkdtemp(folder.data()), nullptr);
    folder_ = folder;
    path_ = folder + "/eplbd.sock";
  }
  ~UnixAcceptorTest() override {
    server_.reset();
    std::filesystem::remove_all(folder_);
  }

  // Pauses the job over a connection of its own.
  grpc::Status Pause(const std::string& request_id) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    const auto channel =
        grpc::CreateCustomChannel("unix:" + path_, grpc::InsecureChannelCredentials(), arguments);
    grpc::ClientContext context;
    SetDeadline(&context);
    v1::PauseRequest request;
    request.mutable_change()->set_job("job");
    request.mutable_change()->set_request_id(request_id);
    request.mutable_change()->set_expect_version(0);
    request.mutable_change()->set_claimed_by("root@elsewhere");
    v1::AdminResponse response;
    return v1::Admin::NewStub(channel)->Pause(&context, request, &response);
  }
  std::string PausedBy() const { return runner_->Job("job")->pause_reason; }

  std::string folder_;
  std::string path_;
};

TEST_F(UnixAcceptorTest, WhoAsksIsWhomTheKernelNamesWhateverTheCallerClaims) {
  Start({.unix_path = path_});
  const auto first = Join(0);
  const auto second = Join(1);
  ASSERT_TRUE(store_->WaitForEvent("released"));
  const grpc::Status status = Pause("r1");
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(PausedBy(), "paused by " + DescribeUser(getuid()));
  EXPECT_EQ(runner_->Events("job", 1)->front().event.actor, DescribeUser(getuid()));
}

TEST_F(UnixAcceptorTest, TheSocketBesideAnAddressNamesItsUsersToo) {
  Start({.host = "127.0.0.1"}, {.unix_socket = path_});
  const auto first = Join(0);
  const auto second = Join(1);
  ASSERT_TRUE(store_->WaitForEvent("released"));
  ASSERT_TRUE(Pause("r1").ok());
  EXPECT_EQ(PausedBy(), "paused by " + DescribeUser(getuid()));
}

// More connections than there are numbers for them, one after the other.
TEST_F(UnixAcceptorTest, ConnectionsComeAndGoWithoutEnd) {
  Start({.unix_path = path_});
  const auto first = Join(0);
  const auto second = Join(1);
  ASSERT_TRUE(store_->WaitForEvent("released"));
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
  struct stat info {};
  EXPECT_NE(stat(path_.c_str(), &info), 0);
}

TEST_F(UnixAcceptorTest, AFolderThatTakesNoSocketIsNamedWithTheReason) {
  const std::string path = folder_ + "/none/eplbd.sock";
  RpcOptions options;
  options.listen.unix_path = path;
  EXPECT_EQ(RpcServer::Start(options).status(),
            absl::UnavailableError(
                absl::StrCat("cannot listen on unix:", path, ": No such file or directory")));
}

}  // namespace
}  // namespace eplb
