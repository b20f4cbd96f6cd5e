#include "server/etcd/etcd_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/monotonic_clock.h"
#include "placement/digest.h"
#include "tests/server/etcd/elected_daemon.h"
#include "tests/server/etcd/etcd_process.h"
#include "tests/server/store/store_contract.h"

namespace eplb {

// Without etcd there is nothing to instantiate.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(StoreContractTest);

namespace etcd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

class Lead : public ElectedDaemon {
 public:
  using ElectedDaemon::ElectedDaemon;
  EtcdStoreOptions Options(StoreLimits limits = kContractLimits) {
    return {.rows = RowsOptions(), .limits = limits};
  }
  std::unique_ptr<Store> Open(StoreLimits limits = kContractLimits) {
    return *OpenEtcdStore(Options(limits));
  }
};

// The contract's stores, whose leads outlive them.
std::unique_ptr<Store> NewStoreOfItsOwn() {
  static auto& leads = *new std::vector<std::unique_ptr<Lead>>();
  leads.push_back(std::make_unique<Lead>(NewPrefix()));
  return leads.back()->Open();
}

std::vector<StoreContract> Contracts() {
  if (SharedEtcd() == nullptr) return {};
  return {StoreContract{&NewStoreOfItsOwn}};
}

INSTANTIATE_TEST_SUITE_P(Etcd, StoreContractTest, ::testing::ValuesIn(Contracts()));

class EtcdStoreTest : public ::testing::Test {
 protected:
  void SetUp() override { EPLB_SKIP_WITHOUT_ETCD(); }
  const std::string prefix_ = NewPrefix();
};

TEST_F(EtcdStoreTest, TheNextLeaderReadsAllThatWasWritten) {
  Lead first(prefix_);
  {
    const auto store = first.Open();
    core::StoredJob job = JobOf("a", 7);
    job.done = core::DoneRequest{.request_id = "r1", .outcome = "paused"};
    ASSERT_TRUE(store->WriteTerm(9).ok());
    ASSERT_TRUE(store->WriteJob(job).ok());
    ASSERT_TRUE(store->WritePlan("a", PlanOf(3)).ok());
    ASSERT_TRUE(store->AppendEvent(absl::UnixEpoch(), EventOf("a", 7)).ok());
  }
  first.election().Resign();
  Lead second(prefix_);
  const auto store = second.Open();
  EXPECT_EQ(*store->ReadTerm(), 9);
  const std::vector<core::StoredJob> jobs = *store->ReadJobs();
  ASSERT_THAT(jobs, SizeIs(1));
  EXPECT_EQ(jobs[0].version, 7);
  EXPECT_EQ(jobs[0].next_version, 14);
  EXPECT_EQ(DigestOf(*jobs[0].placement), DigestOf(ReversedPlacement(2)));
  ASSERT_THAT(jobs[0].requests, SizeIs(1));
  EXPECT_EQ(jobs[0].requests[0].request_id, "r1");
  ASSERT_THAT(jobs[0].plans, SizeIs(1));
  EXPECT_EQ(jobs[0].plans[0], PlanOf(3));
  EXPECT_EQ(DigestOf(*store->ReadPlacement("a", 7)), DigestOf(ReversedPlacement(2)));
  // Events are numbered on.
  ASSERT_TRUE(store->AppendEvent(absl::UnixEpoch(), EventOf("a", 8)).ok());
  const std::vector<v1::JobEvent> events = *store->ReadEvents("a", 10, 0);
  ASSERT_THAT(events, SizeIs(2));
  EXPECT_EQ(events[0].sequence(), events[1].sequence() + 1);
}

TEST_F(EtcdStoreTest, AnOldLeadersWritesAreRefused) {
  Lead first(prefix_);
  const auto old_store = first.Open();
  ASSERT_TRUE(old_store->WriteJob(JobOf("a", 2)).ok());
  first.election().Resign();
  Lead second(prefix_);
  const auto store = second.Open();
  ASSERT_TRUE(store->WriteJob(JobOf("a", 3)).ok());
  const absl::Status refused = old_store->WriteJob(JobOf("a", 4));
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_THAT(first.lost(), ElementsAre("etcd refused a write: here:1 leads"));
  EXPECT_EQ(store->ReadJobs()->front().version, 3);
  EXPECT_EQ(second.Open()->ReadJobs()->front().version, 3);
}

TEST_F(EtcdStoreTest, WithoutALeadersKeyNothingIsWritten) {
  Lead lead(prefix_);
  const auto store = lead.Open();
  lead.election().Resign();
  EXPECT_FALSE(store->WriteTerm(5).ok());
  EXPECT_THAT(lead.lost(), ElementsAre("etcd refused a write: no daemon leads any more"));
  EXPECT_THAT(lead.Rows(""), IsEmpty());
}

TEST_F(EtcdStoreTest, ADaemonThatMayNotWriteDoesNotAskEtcd) {
  Lead lead(prefix_);
  EtcdStoreOptions options = lead.Options();
  options.rows.may_write = [] { return absl::UnavailableError("the lease is old"); };
  const auto store = *OpenEtcdStore(options);
  EXPECT_EQ(store->WriteTerm(5), absl::UnavailableError("the lease is old"));
  EXPECT_EQ(store->CheckFile(), absl::UnavailableError("the lease is old"));
  EXPECT_THAT(lead.Rows("term"), IsEmpty());
}

TEST_F(EtcdStoreTest, TheTermIsNeverBelowTheElections) {
  Lead lead(prefix_);
  EtcdStoreOptions options = lead.Options();
  options.least_term = 41;
  const auto store = *OpenEtcdStore(options);
  EXPECT_EQ(*store->ReadTerm(), 41);
  // An older etcd may be restored, whose revisions begin lower.
  ASSERT_TRUE(store->WriteTerm(99).ok());
  EXPECT_EQ(*store->ReadTerm(), 99);
}

// The placement needs several transactions.
TEST_F(EtcdStoreTest, ALargePlacementIsSplit) {
  Lead lead(prefix_);
  EtcdStoreOptions options = lead.Options();
  options.part_bytes = 100;
  const auto store = *OpenEtcdStore(options);
  ASSERT_TRUE(store->WriteJob(JobOf("a", 2, 8)).ok());
  EXPECT_GT(lead.Rows("job/a/placement/").size(), 3);
  EXPECT_EQ(DigestOf(*(*OpenEtcdStore(options))->ReadPlacement("a", 2)),
            DigestOf(ReversedPlacement(8)));
  for (int64_t version = 3; version < 10; ++version) {
    ASSERT_TRUE(store->WriteJob(JobOf("a", version, 1)).ok());
  }
  // The parts of the oldest are gone with it.
  EXPECT_TRUE(absl::IsNotFound(store->ReadPlacement("a", 2).status()));
  EXPECT_THAT((*OpenEtcdStore(options))->ReadJobs()->front().history, SizeIs(kContractMaxHistory));
}

// A daemon died between the transactions of one placement.
TEST_F(EtcdStoreTest, PartsOfAnUnfinishedPlacementAreNobodys) {
  Lead lead(prefix_);
  EtcdStoreOptions options = lead.Options();
  options.part_bytes = 100;
  {
    const auto store = *OpenEtcdStore(options);
    ASSERT_TRUE(store->WriteJob(JobOf("a", 2, 8)).ok());
  }
  lead.Put("job/a/placement/0000000000000002/0000", "half");
  const auto store = *OpenEtcdStore(options);
  EXPECT_EQ(store->ReadJobs()->front().version, 2);
  ASSERT_TRUE(store->WriteJob(JobOf("a", 3, 1)).ok());
  EXPECT_EQ((*OpenEtcdStore(options))->ReadJobs()->front().version, 3);
  EXPECT_THAT(lead.Rows("job/a/placement/0000000000000002"), IsEmpty());
}

TEST_F(EtcdStoreTest, RowsOfANewerDaemonAreNotTouched) {
  Lead lead(prefix_);
  ASSERT_TRUE(lead.Open()->WriteTerm(4).ok());
  EXPECT_THAT(lead.Rows("schema"), ElementsAre(Pair("schema", "1")));
  lead.Put("schema", "2");
  EXPECT_EQ(OpenEtcdStore(lead.Options()).status(),
            absl::FailedPreconditionError(absl::StrCat(
                "etcd key ", prefix_, "/schema is 2, of a newer eplbd; this one reads 1 at most")));
}

constexpr char kNonsense[] = "nonsense that is long enough";
constexpr char kFirstPlacement[] = "job/a/placement/0000000000000001/0000";

TEST_F(EtcdStoreTest, AJobWithADamagedRecordIsPausedAndOthersAreNot) {
  Lead lead(prefix_);
  {
    const auto store = lead.Open();
    ASSERT_TRUE(store->WriteJob(JobOf("a", 2)).ok());
    ASSERT_TRUE(store->WriteJob(JobOf("b", 5)).ok());
  }
  lead.Put("job/a/record", kNonsense);
  const std::string damage =
      absl::StrCat("etcd key ", prefix_, "/job/a/record does not fit its checksum");
  const auto store = lead.Open();
  EXPECT_EQ(store->opening_note(), absl::StrCat("job a is paused: ", damage));
  const std::vector<core::StoredJob> jobs = *store->ReadJobs();
  ASSERT_THAT(jobs, SizeIs(2));
  EXPECT_EQ(jobs[0].job, "a");
  EXPECT_TRUE(jobs[0].memory.paused);
  EXPECT_TRUE(jobs[0].memory.paused_by_lost_store);
  EXPECT_THAT(jobs[0].memory.pause_reason, HasSubstr(damage));
  EXPECT_EQ(jobs[0].next_version, 3);  // above the placements that are kept
  EXPECT_EQ(jobs[1].version, 5);
  EXPECT_FALSE(jobs[1].memory.paused);
  EXPECT_THAT(lead.Rows("job/a/record"), ElementsAre(Pair("job/a/record", kNonsense)));
}

TEST_F(EtcdStoreTest, AWriteThatReplacesADamagedRecordKeepsACopy) {
  Lead lead(prefix_);
  ASSERT_TRUE(lead.Open()->WriteJob(JobOf("a", 2)).ok());
  lead.Put("job/a/record", kNonsense);
  const auto store = lead.Open();
  ASSERT_TRUE(store->WriteJob(JobOf("a", 3)).ok());
  ASSERT_TRUE(store->WriteJob(JobOf("a", 4)).ok());
  EXPECT_THAT(lead.Rows("damaged/"), ElementsAre(Pair("damaged/job/a/record", kNonsense)));
  EXPECT_EQ(lead.Open()->opening_note(), "");
  ASSERT_TRUE(store->ForgetJob("a").ok());
  EXPECT_THAT(lead.Rows("damaged/"), IsEmpty());
}

TEST_F(EtcdStoreTest, AJobWhoseCurrentPlacementIsDamagedKeepsItsMemory) {
  Lead lead(prefix_);
  core::StoredJob job = JobOf("a", 2);
  job.memory.paused = true;
  job.memory.pause_reason = "paused by eve";
  ASSERT_TRUE(lead.Open()->WriteJob(job).ok());
  lead.Put(kFirstPlacement, kNonsense);
  const auto store = lead.Open();
  EXPECT_THAT(store->opening_note(),
              HasSubstr("version 2, the current one, is missing or damaged"));
  const core::StoredJob read = store->ReadJobs()->front();
  EXPECT_EQ(read.version, 2);
  EXPECT_FALSE(read.placement.has_value());
  EXPECT_THAT(read.memory.pause_reason, HasSubstr("before: paused by eve"));
  ASSERT_TRUE(store->WriteJob(JobOf("a", 3)).ok());
  EXPECT_THAT(lead.Rows("damaged/"),
              ElementsAre(Pair(absl::StrCat("damaged/", kFirstPlacement), kNonsense)));
}

// A write may end between its transactions.
TEST_F(EtcdStoreTest, ACopyOfADamagedRowIsMadeOnce) {
  Lead lead(prefix_);
  ASSERT_TRUE(lead.Open()->WriteJob(JobOf("a", 2)).ok());
  lead.Put("job/a/record", kNonsense);
  lead.Put("damaged/job/a/record", kNonsense);
  lead.Put(kFirstPlacement, kNonsense);
  lead.Put(absl::StrCat("damaged/", kFirstPlacement), "an older damage");
  ASSERT_TRUE(lead.Open()->WriteJob(JobOf("a", 3)).ok());
  EXPECT_EQ(lead.WritesOf("damaged/job/a/record"), 1);
  EXPECT_EQ(lead.WritesOf(absl::StrCat("damaged/", kFirstPlacement)), 2);
}

// The kinds of rows of which a daemon can do without one.
TEST_F(EtcdStoreTest, AnyOtherDamagedRowIsSkippedNamedAndKept) {
  Lead lead(prefix_);
  {
    const auto store = lead.Open();
    core::StoredJob job = JobOf("a", 2);
    job.done = core::DoneRequest{.request_id = "r1", .outcome = "paused"};
    ASSERT_TRUE(store->WriteTerm(4).ok());
    ASSERT_TRUE(store->WriteJob(job).ok());
    ASSERT_TRUE(store->WritePlan("a", PlanOf(3)).ok());
    ASSERT_TRUE(store->AppendEvent(absl::UnixEpoch(), EventOf("a", 2)).ok());
  }
  for (const char* below : {"job/a/plan/", "job/a/request/", "event/a/d/", "schema", "term"}) {
    const auto sound = lead.Rows(below);
    ASSERT_THAT(sound, SizeIs(1)) << below;
    lead.Put(sound[0].first, kNonsense);
    EtcdStoreOptions options = lead.Options();
    options.least_term = 1;
    const auto store = *OpenEtcdStore(options);
    EXPECT_THAT(store->opening_note(), HasSubstr(sound[0].first));
    ASSERT_THAT(*store->ReadJobs(), SizeIs(1)) << below;
    EXPECT_FALSE(store->ReadJobs()->front().memory.paused) << below;
    EXPECT_TRUE(store->ReadEvents("a", 10, 0).ok()) << below;
    EXPECT_TRUE(store->ReadTerm().ok()) << below;
    EXPECT_THAT(lead.Rows(below), ElementsAre(Pair(sound[0].first, kNonsense)));
    lead.Put(sound[0].first, sound[0].second);
  }
}

TEST_F(EtcdStoreTest, TheNoteOfManyDamagedRowsIsShort) {
  Lead lead(prefix_);
  for (int i = 0; i < 10; ++i) lead.Put(absl::StrCat("job/j", i, "/record"), kNonsense);
  EXPECT_THAT(lead.Open()->opening_note(), HasSubstr("; and 6 more unreadable rows"));
  EXPECT_THAT(*lead.Open()->ReadJobs(), SizeIs(10));
}

TEST_F(EtcdStoreTest, AForgottenJobLeavesItsAuditLog) {
  Lead lead(prefix_);
  const auto store = lead.Open();
  ASSERT_TRUE(store->WriteJob(JobOf("a", 2)).ok());
  ASSERT_TRUE(store->WriteJob(JobOf("ab", 2)).ok());
  ASSERT_TRUE(store->AppendEvent(absl::UnixEpoch(), EventOf("a", 2)).ok());
  ASSERT_TRUE(store->ForgetJob("a").ok());
  EXPECT_THAT(lead.Rows("job/a/"), IsEmpty());
  const auto next = lead.Open();
  ASSERT_THAT(*next->ReadJobs(), SizeIs(1));
  EXPECT_THAT(*next->ReadEvents("a", 10, 0), SizeIs(1));
}

// The write was not answered. Whether it happens later or not, none that follows it is undone.
TEST_F(EtcdStoreTest, AWriteThatWasNotAnsweredNeverComesBehindALaterOne) {
  const auto etcd = EtcdProcess::Start();
  Lead lead(prefix_, etcd->NewClient(absl::Milliseconds(300)));
  const auto store = lead.Open();
  ASSERT_TRUE(store->WriteJob(JobOf("a", 2)).ok());
  for (int64_t round = 0; round < 3; ++round) {
    etcd->Freeze();
    EXPECT_FALSE(store->WriteJob(JobOf("a", 100 + round)).ok());
    etcd->Thaw();
    const int64_t version = 10 + round;
    absl::Status written;
    for (const absl::Time end = MonotonicNow() + absl::Seconds(30); MonotonicNow() < end;) {
      written = store->WriteJob(JobOf("a", version));
      if (written.ok()) break;
    }
    ASSERT_TRUE(written.ok()) << written;
    EXPECT_EQ(store->ReadJobs()->front().version, version);
    EXPECT_EQ(lead.Open()->ReadJobs()->front().version, version);
  }
  EXPECT_THAT(lead.lost(), IsEmpty());
}

TEST_F(EtcdStoreTest, AnEventThatWasNotAnsweredKeepsItsNumberWhenItHappened) {
  const auto etcd = EtcdProcess::Start();
  Lead lead(prefix_, etcd->NewClient(absl::Milliseconds(300)));
  const auto store = lead.Open();
  for (int64_t round = 0; round < 3; ++round) {
    etcd->Freeze();
    EXPECT_FALSE(store->AppendEvent(absl::UnixEpoch(), EventOf("lost", round)).ok());
    etcd->Thaw();
    absl::Status written;
    for (const absl::Time end = MonotonicNow() + absl::Seconds(30); MonotonicNow() < end;) {
      written = store->AppendEvent(absl::UnixEpoch(), EventOf("answered", round));
      if (written.ok()) break;
    }
    ASSERT_TRUE(written.ok()) << written;
  }
  std::set<int64_t> sequences;
  size_t events = 0;
  for (const char* job : {"answered", "lost"}) {
    const std::vector<v1::JobEvent> read = *lead.Open()->ReadEvents(job, 100, 0);
    EXPECT_THAT(*store->ReadEvents(job, 100, 0), SizeIs(read.size())) << job;
    for (const v1::JobEvent& one : read) sequences.insert(one.sequence());
    events += read.size();
  }
  EXPECT_THAT(sequences, SizeIs(events)) << "no number is given twice";
  EXPECT_THAT(*store->ReadEvents("answered", 100, 0), SizeIs(3));
}

TEST_F(EtcdStoreTest, WhetherAJobIsStoredCanBeAskedByADaemonThatDoesNotLead) {
  Lead lead(prefix_);
  ASSERT_TRUE(lead.Open()->WriteJob(JobOf("a", 2)).ok());
  const absl::Time deadline = MonotonicNow() + absl::Seconds(10);
  EXPECT_TRUE(*IsAnyStored(lead.client(), prefix_, {"0", "a", "stranger"}, deadline));
  EXPECT_FALSE(*IsAnyStored(lead.client(), prefix_, {"0", "stranger"}, deadline));
}

TEST_F(EtcdStoreTest, LimitsInEtcdAreNeverAboveThose) {
  const StoreLimits limits = LimitsInEtcd({.max_events = 7, .max_history = 64});
  EXPECT_EQ(limits.max_events, 7);
  EXPECT_EQ(limits.max_history, kMostInEtcd.max_history);
}

}  // namespace
}  // namespace etcd
}  // namespace eplb
