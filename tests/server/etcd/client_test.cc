#include "server/etcd/client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "absl/time/clock.h"

#include "base/monotonic_clock.h"
#include "tests/server/etcd/etcd_process.h"
#include "tests/server/etcd/slow_path.h"

namespace eplb::etcd {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

absl::Time In(absl::Duration duration) { return MonotonicNow() + duration; }

pb::TxnRequest Put(const std::string& key, const std::string& value, int64_t lease = 0) {
  pb::TxnRequest request;
  pb::PutRequest& put = *request.add_success()->mutable_request_put();
  put.set_key(key);
  put.set_value(value);
  put.set_lease(lease);
  return request;
}

pb::RangeRequest Get(const std::string& key) {
  pb::RangeRequest request;
  request.set_key(key);
  return request;
}

TEST(EtcdClientTest, ReadsWhatATransactionPut) {
  EPLB_SKIP_WITHOUT_ETCD();
  const auto client = SharedEtcd()->NewClient();
  const std::string key = NewPrefix();
  const auto written = client->Txn(Put(key, "a"), In(absl::Seconds(5)));
  ASSERT_TRUE(written.ok()) << written.status();
  const auto read = client->Range(Get(key), In(absl::Seconds(5)));
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->kvs_size(), 1);
  EXPECT_EQ(read->kvs(0).value(), "a");
  EXPECT_EQ(read->kvs(0).create_revision(), written->header().revision());
}

TEST(EtcdClientTest, AMemberThatRefusesConnectionsIsPassedOver) {
  EPLB_SKIP_WITHOUT_ETCD();
  const auto client = *Client::Make(
      {.endpoints = {"127.0.0.1:1", SharedEtcd()->endpoint()}, .timeout = absl::Seconds(5)});
  EXPECT_TRUE(client->Range(Get("x"), In(absl::Seconds(5))).ok());
}

TEST(EtcdClientTest, TheErrorNamesTheMemberAndTheCause) {
  const auto client = *Client::Make({.endpoints = {"127.0.0.1:1"}, .timeout = absl::Seconds(1)});
  const auto read = client->Range(Get("x"), In(absl::Seconds(2)));
  EXPECT_TRUE(absl::IsUnavailable(read.status())) << read.status();
  EXPECT_THAT(std::string(read.status().message()),
              HasSubstr("etcd at 127.0.0.1:1: connection refused"));
}

TEST(EtcdClientTest, AFrozenMemberEndsACallAtItsDeadline) {
  const auto etcd = EtcdProcess::Start();
  if (etcd == nullptr) GTEST_SKIP() << "/usr/bin/etcd is missing: install the package etcd-server";
  const auto client = etcd->NewClient(absl::Seconds(1));
  ASSERT_TRUE(client->Range(Get("x"), In(absl::Seconds(5))).ok());
  etcd->Freeze();
  const auto written = client->Txn(Put("x", "y"), In(absl::Seconds(5)));
  EXPECT_TRUE(absl::IsDeadlineExceeded(written.status())) << written.status();
  etcd->Thaw();
  EXPECT_TRUE(client->Range(Get("x"), In(absl::Seconds(20))).ok());
}

TEST(EtcdClientTest, ACancelledCallEndsAtOnceAndTheNextOneIsMade) {
  const auto etcd = EtcdProcess::Start();
  if (etcd == nullptr) GTEST_SKIP() << "/usr/bin/etcd is missing: install the package etcd-server";
  const auto client = etcd->NewClient(absl::Seconds(20));
  ASSERT_TRUE(client->Range(Get("x"), In(absl::Seconds(20))).ok());
  etcd->Freeze();
  std::thread canceller([&] {
    absl::SleepFor(absl::Milliseconds(300));
    client->CancelCalls();
  });
  const absl::Time begin = MonotonicNow();
  EXPECT_TRUE(absl::IsCancelled(client->Range(Get("x"), In(absl::Seconds(20))).status()));
  EXPECT_LT(MonotonicNow() - begin, absl::Seconds(10));
  canceller.join();
  etcd->Thaw();
  EXPECT_TRUE(client->Range(Get("x"), In(absl::Seconds(20))).ok());
}

TEST(EtcdClientTest, CallsWaitLongerUntilAnAnswerArrives) {
  const auto etcd = EtcdProcess::Start();
  if (etcd == nullptr) GTEST_SKIP() << "/usr/bin/etcd is missing: install the package etcd-server";
  const auto client = etcd->NewClient(absl::Seconds(1));
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(client->Range(Get("x"), In(absl::Seconds(5))).ok());
  EXPECT_GT(client->round_trip(), absl::ZeroDuration());
  EXPECT_EQ(client->Trouble(), "");
  etcd->Freeze();
  for (const int factor : {2, 4}) {
    EXPECT_FALSE(client->Txn(Put("x", "y"), In(absl::Seconds(5))).ok());
    EXPECT_EQ(client->timeout(), factor * absl::Seconds(1));
    EXPECT_THAT(client->Trouble(), HasSubstr("etcd: unreachable since 2"));
  }
  etcd->Thaw();
  EXPECT_TRUE(client->Range(Get("x"), In(absl::Seconds(20))).ok());
  EXPECT_LT(client->timeout(), absl::Seconds(4));
  EXPECT_THAT(client->Trouble(), Not(HasSubstr("unreachable")));
}

TEST(EtcdClientTest, OnlySmallCallsOverAConnectionThatIsThereAreMeasured) {
  EPLB_SKIP_WITHOUT_ETCD();
  SlowPath path(SharedEtcd()->port());
  path.SetDelay(absl::Milliseconds(300));
  const auto client = *Client::Make({.endpoints = {path.endpoint()}, .timeout = absl::Seconds(5)});
  ASSERT_TRUE(client->Range(Get("x"), In(absl::Seconds(20))).ok());
  EXPECT_EQ(client->round_trip(), absl::ZeroDuration());
  ASSERT_TRUE(client->Range(Get("x"), In(absl::Seconds(20))).ok());
  const absl::Duration measured = client->round_trip();
  EXPECT_GE(measured, absl::Milliseconds(300));
  pb::RangeRequest page = Get("x");
  page.set_range_end("y");
  ASSERT_TRUE(client->Range(page, In(absl::Seconds(20))).ok());
  ASSERT_TRUE(client->Txn(Put(NewPrefix(), std::string(100'000, 'x')), In(absl::Seconds(20))).ok());
  EXPECT_EQ(client->round_trip(), measured);
}

TEST(EtcdClientTest, AKeyGoesWithItsLease) {
  EPLB_SKIP_WITHOUT_ETCD();
  const auto client = SharedEtcd()->NewClient();
  const std::string key = NewPrefix();
  const auto lease = client->Grant(60, In(absl::Seconds(5)));
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_EQ(*client->KeepAlive(lease->id(), In(absl::Seconds(5))), 60);
  const auto written = client->Txn(Put(key, "a", lease->id()), In(absl::Seconds(5)));
  ASSERT_TRUE(written.ok());
  absl::Status deleted;
  std::thread watcher([&] {
    deleted = client->WaitForDelete(key, written->header().revision(), In(absl::Seconds(30)));
  });
  EXPECT_TRUE(client->Revoke(lease->id(), In(absl::Seconds(5))).ok());
  watcher.join();
  EXPECT_TRUE(deleted.ok()) << deleted;
  EXPECT_EQ(client->Range(Get(key), In(absl::Seconds(5)))->kvs_size(), 0);
  EXPECT_EQ(*client->KeepAlive(lease->id(), In(absl::Seconds(5))), 0);
  EXPECT_TRUE(client->Revoke(lease->id(), In(absl::Seconds(5))).ok());
}

TEST(EtcdClientTest, AWatchEndsAtItsDeadline) {
  EPLB_SKIP_WITHOUT_ETCD();
  const auto client = SharedEtcd()->NewClient();
  const absl::Status status = client->WaitForDelete(NewPrefix(), 1, In(absl::Milliseconds(100)));
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
}

}  // namespace
}  // namespace eplb::etcd
