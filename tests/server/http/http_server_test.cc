#include "server/http/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace eplb {
namespace {

class HttpServerTest : public ::testing::Test {
 protected:
  void Start() {
    server_ = *HttpServer::Start({.host = "127.0.0.1"}, {.alive = [this] { return alive_; },
                                                         .ready = [this] { return ready_; }});
  }
  // Status code and body.
  std::pair<int, std::string> Get(const std::string& path) {
    httplib::Client client("127.0.0.1", server_->address().port);
    const httplib::Result result = client.Get(path);
    if (!result) return {0, httplib::to_string(result.error())};
    return {result->status, result->body};
  }

  absl::Status alive_;
  absl::Status ready_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, PortZeroTellsTheRealPort) {
  Start();
  EXPECT_GT(server_->address().port, 0);
  EXPECT_EQ(server_->address().Text(), absl::StrCat("127.0.0.1:", server_->address().port));
}

TEST_F(HttpServerTest, BothProbesAnswer200WhenAllIsWell) {
  Start();
  EXPECT_EQ(Get("/livez"), std::pair(200, std::string("ok\n")));
  EXPECT_EQ(Get("/readyz"), std::pair(200, std::string("ok\n")));
}

TEST_F(HttpServerTest, ReadyzIs503WithTheReasonWhileLivezStays200) {
  ready_ = absl::UnavailableError("the store does not take writes");
  Start();
  EXPECT_EQ(Get("/readyz"), std::pair(503, std::string("the store does not take writes\n")));
  EXPECT_EQ(Get("/livez").first, 200);
}

TEST_F(HttpServerTest, LivezIs503WhenTheCoreStopped) {
  alive_ = absl::UnavailableError("stopped");
  Start();
  EXPECT_EQ(Get("/livez"), std::pair(503, std::string("stopped\n")));
}

TEST_F(HttpServerTest, OtherPathsAre404AndNothingCanBeWritten) {
  Start();
  EXPECT_EQ(Get("/nothing").first, 404);
  httplib::Client client("127.0.0.1", server_->address().port);
  EXPECT_EQ(client.Post("/livez", "x", "text/plain")->status, 404);
  EXPECT_EQ(client.Delete("/readyz")->status, 404);
}

TEST_F(HttpServerTest, APortInUseIsAnErrorThatSaysSo) {
  Start();
  const absl::Status status = HttpServer::Start(server_->address(), {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              ::testing::HasSubstr("cannot listen on " + server_->address().Text()));
}

TEST_F(HttpServerTest, AnAddressOfAnotherMachineAndASocketPathAreErrors) {
  EXPECT_FALSE(HttpServer::Start({.host = "192.0.2.1", .port = 80}, {}).ok());
  EXPECT_EQ(HttpServer::Start({.unix_path = "/tmp/x"}, {}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace eplb
