#include "tests/server/store/store_contract.h"

#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"

#include "placement/digest.h"

namespace eplb {

Placement ReversedPlacement(int32_t num_layers) {
  const Topology topology =
      *Topology::Make({.num_layers = num_layers, .num_experts = 4, .num_slots = 6, .num_gpus = 2});
  IndexMatrix slots(num_layers, 6);
  IndexMatrix ranks(num_layers, 6);
  for (int32_t layer = 0; layer < num_layers; ++layer) {
    slots.row(layer) << 3, 2, 1, 0, 3, 2;
    ranks.row(layer) << 1, 0, 0, 0, 0, 1;
  }
  return *Placement::FromSlotsAndRanks(topology, slots, ranks);
}

core::StoredJob JobOf(const std::string& name, int64_t version, int32_t num_layers) {
  return {.job = name,
          .version = version,
          .next_version = version + 7,
          .placement = ReversedPlacement(num_layers)};
}

core::JobEvent EventOf(const std::string& job, int64_t version) {
  return {.job = job,
          .name = "committed",
          .version = version,
          .reason = absl::StrCat("commit ", version, " \"quoted\" \n and \xc3\xa9")};
}

TEST_P(StoreContractTest, ANewStoreIsEmpty) {
  EXPECT_EQ(*store_->ReadTerm(), 0);
  EXPECT_TRUE(store_->ReadJobs()->empty());
  EXPECT_TRUE(store_->ReadEvents("job", 10)->empty());
}

TEST_P(StoreContractTest, TermNeverFalls) {
  ASSERT_TRUE(store_->WriteTerm(5).ok());
  ASSERT_TRUE(store_->WriteTerm(3).ok());
  EXPECT_EQ(*store_->ReadTerm(), 5);
}

TEST_P(StoreContractTest, JobComesBackAsWritten) {
  ASSERT_TRUE(store_->WriteJob(JobOf("b", int64_t{1} << 62)).ok());
  ASSERT_TRUE(store_->WriteJob(JobOf("a", 2)).ok());
  const std::vector<core::StoredJob> jobs = *store_->ReadJobs();
  ASSERT_EQ(jobs.size(), 2);
  EXPECT_EQ(jobs[0].job, "a");
  EXPECT_EQ(jobs[1].version, int64_t{1} << 62);
  EXPECT_EQ(jobs[1].next_version, (int64_t{1} << 62) + 7);
  EXPECT_EQ(DigestOf(jobs[1].placement), DigestOf(ReversedPlacement(2)));
}

TEST_P(StoreContractTest, SecondWriteReplacesTheJob) {
  ASSERT_TRUE(store_->WriteJob(JobOf("a", 2)).ok());
  ASSERT_TRUE(store_->WriteJob(JobOf("a", 3, 4)).ok());
  const std::vector<core::StoredJob> jobs = *store_->ReadJobs();
  ASSERT_EQ(jobs.size(), 1);
  EXPECT_EQ(jobs[0].version, 3);
  EXPECT_EQ(jobs[0].placement.topology().num_layers(), 4);
}

TEST_P(StoreContractTest, EventsComeNewestFirstWithTimeAndText) {
  const absl::Time time = absl::FromUnixMicros(1'700'000'000'123'456);
  ASSERT_TRUE(store_->AppendEvent(time, EventOf("a", 1)).ok());
  ASSERT_TRUE(store_->AppendEvent(time + absl::Seconds(1), EventOf("b", 2)).ok());
  ASSERT_TRUE(store_->AppendEvent(time + absl::Seconds(2), EventOf("a", 3)).ok());
  const std::vector<StoredEvent> events = *store_->ReadEvents("a", 10);
  ASSERT_EQ(events.size(), 2);
  EXPECT_EQ(events[0].event.version, 3);
  EXPECT_EQ(events[1].time, time);
  EXPECT_EQ(events[1].event.reason, EventOf("a", 1).reason);
  EXPECT_EQ(events[1].event.name, "committed");
  EXPECT_GT(events[0].sequence, events[1].sequence);
}

TEST_P(StoreContractTest, OnlyTheNewestEventsOfEachJobAreKept) {
  for (int64_t version = 1; version <= kContractMaxEvents + 3; ++version) {
    ASSERT_TRUE(store_->AppendEvent(absl::UnixEpoch(), EventOf("a", version)).ok());
  }
  ASSERT_TRUE(store_->AppendEvent(absl::UnixEpoch(), EventOf("b", 1)).ok());
  const std::vector<StoredEvent> events = *store_->ReadEvents("a", 100);
  ASSERT_EQ(events.size(), kContractMaxEvents);
  EXPECT_EQ(events.front().event.version, kContractMaxEvents + 3);
  EXPECT_EQ(events.back().event.version, 4);
  EXPECT_EQ(store_->ReadEvents("b", 100)->size(), 1);
}

TEST_P(StoreContractTest, LimitBoundsTheAnswer) {
  for (int64_t version = 1; version <= 3; ++version) {
    ASSERT_TRUE(store_->AppendEvent(absl::UnixEpoch(), EventOf("a", version)).ok());
  }
  EXPECT_EQ(store_->ReadEvents("a", 2)->size(), 2);
  EXPECT_TRUE(store_->ReadEvents("a", 0)->empty());
  EXPECT_TRUE(store_->ReadEvents("a", -1)->empty());
}

TEST_P(StoreContractTest, WritersAndReadersMayBeThreads) {
  constexpr int64_t kWrites = 20;
  std::thread writer([this] {
    for (int64_t i = 1; i <= kWrites; ++i) {
      EXPECT_TRUE(store_->AppendEvent(absl::UnixEpoch(), EventOf("a", i)).ok());
    }
  });
  for (int64_t i = 1; i <= kWrites; ++i) {
    EXPECT_TRUE(store_->WriteJob(JobOf("a", i)).ok());
    EXPECT_TRUE(store_->ReadEvents("a", 10).ok());
  }
  writer.join();
  EXPECT_EQ(store_->ReadEvents("a", 10)->front().event.version, kWrites);
  EXPECT_EQ(store_->ReadJobs()->front().version, kWrites);
}

}  // namespace eplb
