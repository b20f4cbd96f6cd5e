#include "server/etcd/election.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <mutex>
#include <string>

#include "absl/time/clock.h"

#include "base/monotonic_clock.h"
#include "tests/server/etcd/etcd_process.h"
#include "tests/server/etcd/slow_path.h"

namespace eplb::etcd {
namespace {

using ::testing::HasSubstr;

constexpr std::chrono::seconds kPatience{30};

class ElectionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    EPLB_SKIP_WITHOUT_ETCD();
    client_ = SharedEtcd()->NewClient();
  }
  std::unique_ptr<Election> New(absl::Duration lease = absl::Seconds(60)) {
    return std::make_unique<Election>(client_.get(),
                                      ElectionOptions{.prefix = prefix_, .lease = lease});
  }

  const std::string prefix_ = NewPrefix();
  std::unique_ptr<Client> client_;
};

TEST_F(ElectionTest, OneOfTwoLeadsAndTheOtherKnowsIt) {
  const auto first = New();
  const auto second = New();
  EXPECT_TRUE(*first->TryToLead("a:1"));
  EXPECT_FALSE(*second->TryToLead("b:1"));
  EXPECT_EQ(second->leader().address, "a:1");
  EXPECT_EQ(second->leader().term, first->fence().create_revision);
  EXPECT_TRUE(first->MayWrite().ok());
  EXPECT_FALSE(second->MayWrite().ok());
}

TEST_F(ElectionTest, AnEtcdThatIsNotThereIsToldWithItsCause) {
  const auto client = *Client::Make({.endpoints = {"127.0.0.1:1"}, .timeout = absl::Seconds(1)});
  Election election(client.get(), {.prefix = prefix_, .lease = absl::Seconds(2)});
  EXPECT_TRUE(absl::IsUnavailable(election.TryToLead("a:1").status()));
  EXPECT_THAT(client->Trouble(), HasSubstr("connection refused"));
}

// Ranks come to a standby, and the leader has none.
TEST_F(ElectionTest, ALeaderThatRanksCannotReachGivesTheLeadUp) {
  const auto first = New(absl::Seconds(2));
  const auto second = New();
  ASSERT_TRUE(*first->TryToLead("a:1"));
  ASSERT_FALSE(*second->TryToLead("b:1"));
  std::promise<std::string> lost;
  auto reason = lost.get_future();
  bool done = false;
  first->Hold([&](const std::string& why) { lost.set_value(why); }, [] { return true; });
  for (const absl::Time end = MonotonicNow() + absl::Seconds(30); !done && MonotonicNow() < end;) {
    second->Knock("b:1");
    EXPECT_TRUE(second->AwaitVacancy(absl::Milliseconds(500)).ok());
    done = *second->TryToLead("b:1");
  }
  ASSERT_TRUE(done);
  ASSERT_EQ(reason.wait_for(kPatience), std::future_status::ready);
  EXPECT_EQ(reason.get(), "ranks reach the daemons that stand by, and not this one");
}

TEST_F(ElectionTest, AStandbyLeadsAsSoonAsTheLeaderResigns) {
  const auto first = New();
  const auto second = New();
  ASSERT_TRUE(*first->TryToLead("a:1"));
  ASSERT_FALSE(*second->TryToLead("b:1"));
  auto vacant = std::async(std::launch::async, [&] {
    EXPECT_TRUE(second->AwaitVacancy(absl::Minutes(1)).ok());
    return *second->TryToLead("b:1");
  });
  first->Resign();
  ASSERT_EQ(vacant.wait_for(kPatience), std::future_status::ready);
  EXPECT_TRUE(vacant.get());
  EXPECT_GT(second->fence().create_revision, first->fence().create_revision);
}

TEST_F(ElectionTest, TheLeaderLearnsThatItsKeyIsGone) {
  const auto first = New(absl::Seconds(2));
  ASSERT_TRUE(*first->TryToLead("a:1"));
  std::promise<std::string> lost;
  first->Hold([&](const std::string& why) { lost.set_value(why); });
  pb::TxnRequest request;
  request.add_success()->mutable_request_delete_range()->set_key(first->fence().key);
  ASSERT_TRUE(client_->Txn(request, MonotonicNow() + absl::Seconds(5)).ok());
  auto why = lost.get_future();
  ASSERT_EQ(why.wait_for(kPatience), std::future_status::ready);
  EXPECT_EQ(why.get(), "the leader's key is gone");
}

TEST_F(ElectionTest, ALeaderWhoseEtcdDoesNotAnswerStopsToWriteAndThenLoses) {
  const auto etcd = EtcdProcess::Start();
  const auto client = etcd->NewClient(absl::Milliseconds(300));
  Election election(client.get(), {.prefix = prefix_, .lease = absl::Seconds(3)});
  ASSERT_TRUE(*election.TryToLead("a:1"));
  std::promise<std::pair<std::string, absl::Status>> lost;
  election.Hold([&](const std::string& reason) { lost.set_value({reason, election.MayWrite()}); });
  etcd->Freeze();
  auto end = lost.get_future();
  ASSERT_EQ(end.wait_for(kPatience), std::future_status::ready);
  const auto [reason, may_write] = end.get();
  EXPECT_THAT(reason, HasSubstr("the lease could not be renewed for 3s: etcd at"));
  EXPECT_TRUE(absl::IsUnavailable(may_write));
  EXPECT_THAT(std::string(may_write.message()),
              HasSubstr("the lease of the lead was not renewed before its end"));
}

// etcd can make the move to a longer lease without answering it.
TEST_F(ElectionTest, AKeyThatMovedToAnotherLeaseIsRenewedThere) {
  constexpr int64_t kOther = 3;
  const auto first = New(absl::Seconds(2));
  ASSERT_TRUE(*first->TryToLead("a:1"));
  const absl::Time soon = MonotonicNow() + absl::Seconds(5);
  pb::TxnRequest request;
  pb::PutRequest& put = *request.add_success()->mutable_request_put();
  put.set_key(first->fence().key);
  put.set_value("a:1");
  put.set_lease(client_->Grant(kOther, soon)->id());
  ASSERT_TRUE(client_->Txn(request, soon).ok());
  first->Hold([&](const std::string& why) { ADD_FAILURE() << why; });
  absl::SleepFor(3 * absl::Seconds(kOther));
  EXPECT_TRUE(first->MayWrite().ok());
  EXPECT_FALSE(*New()->TryToLead("b:1"));
}

TEST_F(ElectionTest, ResigningDoesNotWaitForAnEtcdThatDoesNotAnswer) {
  const auto etcd = EtcdProcess::Start();
  const auto client = etcd->NewClient(absl::Seconds(10));
  Election election(client.get(), {.prefix = prefix_, .lease = absl::Seconds(10)});
  ASSERT_TRUE(*election.TryToLead("a:1"));
  election.Hold([&](const std::string& why) { ADD_FAILURE() << why; });
  etcd->Freeze();
  absl::SleepFor(absl::Seconds(3));  // a renewal, due after 2 s, waits for its answer
  const absl::Time begin = MonotonicNow();
  election.Resign();
  EXPECT_LT(MonotonicNow() - begin, absl::Seconds(4));
}

// The daemon starts while etcd is slow, so it has measured nothing and has no connection.
TEST_F(ElectionTest, ADaemonLeadsWhileACallTakesTwoSeconds) {
  SlowPath path(SharedEtcd()->port());
  path.SetDelay(absl::Seconds(2));
  const auto client = *Client::Make({.endpoints = {path.endpoint()}, .timeout = absl::Seconds(1)});
  Election election(client.get(), {.prefix = prefix_, .lease = absl::Seconds(2)});
  absl::StatusOr<bool> leads = false;
  for (const absl::Time end = MonotonicNow() + absl::Minutes(2); MonotonicNow() < end;) {
    const absl::Time begin = MonotonicNow();
    leads = election.TryToLead("a:1");
    EXPECT_LT(MonotonicNow() - begin, absl::Seconds(15));
    if (leads.ok() && *leads) break;
  }
  ASSERT_TRUE(leads.ok() && *leads) << leads.status();
  EXPECT_TRUE(election.MayWrite().ok());
}

TEST_F(ElectionTest, TheLeaseIsLongerOnlyWhileEtcdIsSlow) {
  SlowPath path(SharedEtcd()->port());
  const auto client = *Client::Make({.endpoints = {path.endpoint()}, .timeout = absl::Seconds(5)});
  std::mutex mutex;
  absl::Duration lease;  // guarded by mutex
  Election election(
      client.get(),
      {.prefix = prefix_, .lease = absl::Seconds(3), .lease_changed = [&](absl::Duration changed) {
         const std::lock_guard lock(mutex);
         lease = changed;
       }});
  const auto becomes = [&](const auto& is_right) {
    for (const absl::Time end = MonotonicNow() + absl::Seconds(40); MonotonicNow() < end;) {
      absl::SleepFor(absl::Milliseconds(50));
      const std::lock_guard lock(mutex);
      if (is_right(lease)) return true;
    }
    return false;
  };
  ASSERT_TRUE(*election.TryToLead("a:1"));
  election.Hold([&](const std::string& why) { ADD_FAILURE() << why; });
  path.SetDelay(absl::Milliseconds(400));
  EXPECT_TRUE(becomes([](absl::Duration now) { return now >= absl::Seconds(4); }));
  path.SetDelay(absl::ZeroDuration());
  EXPECT_TRUE(becomes([](absl::Duration now) { return now == absl::Seconds(3); }));
  EXPECT_TRUE(election.MayWrite().ok());
}

TEST_F(ElectionTest, AHeldLeadOutlivesItsLease) {
  const auto first = New(absl::Seconds(2));
  ASSERT_TRUE(*first->TryToLead("a:1"));
  std::promise<std::string> lost;
  first->Hold([&](const std::string& why) { lost.set_value(why); });
  const auto second = New();
  const absl::Time until = MonotonicNow() + absl::Seconds(5);
  while (MonotonicNow() < until) {
    EXPECT_TRUE(second->AwaitVacancy(absl::Seconds(1)).ok());
    ASSERT_FALSE(*second->TryToLead("b:1"));
  }
  EXPECT_TRUE(first->MayWrite().ok());
}

}  // namespace
}  // namespace eplb::etcd
