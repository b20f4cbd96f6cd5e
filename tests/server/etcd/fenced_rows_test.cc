#include "server/etcd/fenced_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "base/monotonic_clock.h"
#include "base/status_macros.h"
#include "tests/server/etcd/elected_daemon.h"
#include "tests/server/etcd/etcd_process.h"

namespace eplb::etcd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

class FencedRowsTest : public ::testing::Test {
 protected:
  void SetUp() override { EPLB_SKIP_WITHOUT_ETCD(); }
  const std::string prefix_ = NewPrefix();
};

absl::StatusOr<Rows> AllOf(const FencedRows& rows) {
  Rows all;
  EPLB_RETURN_IF_ERROR(rows.Read([&all](const KeyReader& reader) {
    for (const char* prefix : {"a", "b", "c", "row/"}) {
      const KeyReader::Pairs found = reader.Find({.prefix = prefix});
      all.insert(found.begin(), found.end());
    }
  }));
  return all;
}

absl::Status WriteBatches(FencedRows& rows, const std::vector<Batch>& batches) {
  return rows.Write([&](const KeyReader&) { return batches; });
}

absl::Status PutRow(FencedRows& rows, const std::string& key, const std::string& value) {
  return WriteBatches(rows, {{.puts = {{key, value}}}});
}

TEST_F(FencedRowsTest, MemoryHoldsWhatEtcdHolds) {
  ElectedDaemon daemon(prefix_);
  FencedRows rows(daemon.RowsOptions());
  ASSERT_TRUE(rows.Load().ok());
  ASSERT_TRUE(WriteBatches(
                  rows, {{.puts = {{"a/1", "one"}, {"a/2", "two"}, {"ab", "stays"}, {"b", "goes"}}},
                         {.puts = {{"c", "new"}}, .deletes = {"b"}, .deleted_prefixes = {"a/"}}})
                  .ok());
  EXPECT_THAT(*AllOf(rows), ElementsAre(Pair("ab", "stays"), Pair("c", "new")));
  EXPECT_THAT(daemon.Rows("a"), ElementsAre(Pair("ab", "stays")));
  EXPECT_THAT(daemon.Rows("c"), ElementsAre(Pair("c", "new")));
  FencedRows next(daemon.RowsOptions());
  ASSERT_TRUE(next.Load().ok());
  EXPECT_EQ(*AllOf(next), *AllOf(rows));
}

// More rows than a page of a read.
TEST_F(FencedRowsTest, AllPagesAreRead) {
  ElectedDaemon daemon(prefix_);
  FencedRows rows(daemon.RowsOptions());
  ASSERT_TRUE(rows.Load().ok());
  Batch batch;
  for (size_t i = 0; i < kMaxOperations; ++i) batch.puts[absl::StrCat("row/", i)] = "x";
  ASSERT_TRUE(WriteBatches(rows, {batch}).ok());
  FencedRows next(daemon.RowsOptions());
  ASSERT_TRUE(next.Load().ok());
  EXPECT_EQ(AllOf(next)->size(), kMaxOperations);
}

// Two writers with one fence cannot be; a write of the other one is learnt before the next.
TEST_F(FencedRowsTest, AWriteThatIsNotKnownYetIsLearntAndTheNextOneMadeAnew) {
  ElectedDaemon daemon(prefix_);
  FencedRows rows(daemon.RowsOptions());
  FencedRows other(daemon.RowsOptions());
  ASSERT_TRUE(rows.Load().ok());
  ASSERT_TRUE(other.Load().ok());
  ASSERT_TRUE(PutRow(other, "count", "1").ok());
  int made = 0;
  ASSERT_TRUE(rows.Write([&](const KeyReader& reader) {
                    ++made;
                    const bool known = reader.Get("count").has_value();
                    return std::vector<Batch>{{.puts = {{"count", known ? "2" : "1"}}}};
                  })
                  .ok());
  EXPECT_EQ(made, 2);
  EXPECT_THAT(daemon.Rows("count"), ElementsAre(Pair("count", "2")));
  EXPECT_THAT(daemon.lost(), IsEmpty());
}

TEST_F(FencedRowsTest, WithoutTheLeadNothingIsWrittenAndTheReasonIsTold) {
  ElectedDaemon daemon(prefix_);
  FencedRows rows(daemon.RowsOptions());
  ASSERT_TRUE(rows.Load().ok());
  daemon.election().Resign();
  EXPECT_FALSE(PutRow(rows, "a", "late").ok());
  EXPECT_THAT(daemon.lost(), ElementsAre("etcd refused a write: no daemon leads any more"));
  EXPECT_THAT(daemon.Rows("a"), IsEmpty());
  EXPECT_THAT(*AllOf(rows), IsEmpty());
}

TEST_F(FencedRowsTest, AfterCloseNothingIsReadOrWritten) {
  ElectedDaemon daemon(prefix_);
  FencedRows rows(daemon.RowsOptions());
  ASSERT_TRUE(rows.Load().ok());
  rows.Close();
  EXPECT_EQ(AllOf(rows).status(), absl::UnavailableError("the store is closed"));
  EXPECT_EQ(PutRow(rows, "a", "x"), absl::UnavailableError("the store is closed"));
  EXPECT_THAT(daemon.Rows("a"), IsEmpty());
}

TEST_F(FencedRowsTest, AReadDoesNotWaitForAWriteThatEtcdHoldsUp) {
  const auto etcd = EtcdProcess::Start();
  ElectedDaemon daemon(prefix_, etcd->NewClient(absl::Seconds(2)));
  FencedRows rows(daemon.RowsOptions());
  ASSERT_TRUE(rows.Load().ok());
  ASSERT_TRUE(PutRow(rows, "a", "old").ok());
  etcd->Freeze();
  std::thread writer([&] { EXPECT_TRUE(PutRow(rows, "a", "new").ok()); });
  absl::SleepFor(absl::Milliseconds(100));
  const absl::Time begin = MonotonicNow();
  EXPECT_THAT(*AllOf(rows), ElementsAre(Pair("a", "old")));
  EXPECT_LT(MonotonicNow() - begin, absl::Seconds(1));
  etcd->Thaw();
  writer.join();
  EXPECT_THAT(*AllOf(rows), ElementsAre(Pair("a", "new")));
}

}  // namespace
}  // namespace eplb::etcd
