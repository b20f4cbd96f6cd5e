#include "server/standby_daemon.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include <memory>
#include <string>

#include "tests/server/etcd/etcd_process.h"

namespace eplb {
namespace {

using ::testing::HasSubstr;

constexpr int kMostTurns = 60;  // turns of 500 ms until a vacancy is noticed

class StandbyDaemonTest : public ::testing::Test {
 protected:
  void SetUp() override { EPLB_SKIP_WITHOUT_ETCD(); }

  DaemonConfig Config(const std::string& advertise) const {
    DaemonConfig config;
    config.keys.mutable_listen()->set_grpc("127.0.0.1:0");
    config.keys.mutable_listen()->set_http("127.0.0.1:0");
    config.keys.mutable_listen()->set_advertise(advertise);
    config.keys.mutable_store()->mutable_etcd()->set_endpoints(etcd::SharedEtcd()->endpoint());
    config.keys.mutable_store()->mutable_etcd()->set_prefix(prefix_);
    return config;
  }
  std::unique_ptr<StandbyDaemon> New(const std::string& advertise) const {
    return *StandbyDaemon::Start(Config(advertise));
  }
  static std::string Ready(const StandbyDaemon& standby) {
    httplib::Client client("127.0.0.1", standby.http_address().port);
    const httplib::Result result = client.Get("/readyz");
    return result ? std::to_string(result->status) + " " + result->body : "no answer";
  }

  const std::string prefix_ = etcd::NewPrefix();
};

TEST_F(StandbyDaemonTest, OneOfTwoLeadsAndTheOtherSaysWho) {
  const auto first = New("a:1");
  const auto second = New("b:1");
  EXPECT_TRUE(first->Turn(absl::ZeroDuration()));
  EXPECT_FALSE(second->Turn(absl::ZeroDuration()));
  EXPECT_THAT(Ready(*second), HasSubstr("503"));
  EXPECT_THAT(Ready(*second), HasSubstr("the one at a:1 leads"));
}

TEST_F(StandbyDaemonTest, AStandbyAnswersForNoJob) {
  const auto first = New("a:1");
  const auto second = New("b:1");
  ASSERT_TRUE(first->Turn(absl::ZeroDuration()));
  ASSERT_FALSE(second->Turn(absl::ZeroDuration()));
  httplib::Client client("127.0.0.1", second->http_address().port);
  for (const char* rest : {"", "/placement", "/load", "/windows", "/gpu_loads", "/traffic",
                           "/plans", "/plans?plan=1", "/events"}) {
    const httplib::Result result = client.Get("/api/v1/jobs/train" + std::string(rest));
    ASSERT_TRUE(result) << rest;
    EXPECT_EQ(result->status, 503) << rest << ": " << result->body;
    EXPECT_THAT(result->body, HasSubstr("the one at a:1 leads")) << rest;
  }
}

TEST_F(StandbyDaemonTest, WhatOneLeaderStoredTheNextOneReadsUnderAHigherTerm) {
  const auto first = New("a:1");
  const auto second = New("b:1");
  ASSERT_TRUE(first->Turn(absl::ZeroDuration()));
  const auto lost = [](const std::string& why) { ADD_FAILURE() << why; };
  auto store = first->Lead(lost, nullptr);
  ASSERT_TRUE(store.ok()) << store.status();
  const int64_t term = *(*store)->ReadTerm() + 1;
  ASSERT_TRUE((*store)->WriteTerm(term).ok());
  (*store)->Close();
  first->Resign();

  int turns = 0;
  while (!second->Turn(absl::Milliseconds(500)) && turns < kMostTurns) ++turns;
  ASSERT_LT(turns, kMostTurns);
  auto next = second->Lead(lost, nullptr);
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_GE(*(*next)->ReadTerm(), term);
  (*next)->Close();
  second->Resign();
}

TEST_F(StandbyDaemonTest, ALeaderLeavesItsAddressesToTheDaemon) {
  const auto first = New("a:1");
  ASSERT_TRUE(first->Turn(absl::ZeroDuration()));
  ASSERT_TRUE(first->Lead([](const std::string& why) { ADD_FAILURE() << why; }, nullptr).ok());
  DaemonConfig same = Config("b:1");
  same.keys.mutable_listen()->set_grpc(first->grpc_address().Text());
  same.keys.mutable_listen()->set_http(first->http_address().Text());
  EXPECT_TRUE(StandbyDaemon::Start(same).ok());
  first->Resign();
}

TEST_F(StandbyDaemonTest, AnEtcdThatDoesNotAnswerIsWaitedFor) {
  DaemonConfig config = Config("a:1");
  config.keys.mutable_store()->mutable_etcd()->set_endpoints("http://127.0.0.1:1");
  config.keys.mutable_store()->mutable_etcd()->set_timeout_seconds(0.1);
  const auto standby = StandbyDaemon::Start(config);
  ASSERT_TRUE(standby.ok()) << standby.status();
  EXPECT_FALSE((*standby)->Turn(absl::ZeroDuration()));
  EXPECT_THAT(Ready(**standby), HasSubstr("etcd: unreachable since "));
}

}  // namespace
}  // namespace eplb
