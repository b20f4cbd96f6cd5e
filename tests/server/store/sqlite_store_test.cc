#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <memory>
#include <span>

#include "absl/strings/str_cat.h"

#include "server/store/keys.h"
#include "server/store/sqlite.h"
#include "server/store/sqlite_rows.h"
#include "tests/server/store/folder.h"
#include "tests/server/store/store_contract.h"

namespace eplb {
namespace {

using ::testing::HasSubstr;

INSTANTIATE_TEST_SUITE_P(Sqlite, StoreContractTest, ::testing::Values(StoreContract{[] {
                           static Folder folder;
                           static int count = 0;
                           const std::string path = folder.File(absl::StrCat(count++, ".db"));
                           return *MakeSqliteStore(path, kContractLimits);
                         }}));

INSTANTIATE_TEST_SUITE_P(Memory, StoreContractTest, ::testing::Values(StoreContract{[] {
                           return MakeMemoryStore(kContractLimits);
                         }}));

absl::Status OpenStatus(const std::string& path) { return MakeSqliteStore(path).status(); }

using SqliteStoreTest = DatabaseTest;

TEST_F(SqliteStoreTest, ADatabaseOfAnotherProgramIsLeftAlone) {
  const Folder folder;
  const std::string path = folder.File("other.db");
  ASSERT_TRUE(sqlite::Connection::Open(path, false)->Execute("CREATE TABLE t(x)").ok());
  const absl::Status status = OpenStatus(path);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("another program"));
  sqlite::Connection other = *sqlite::Connection::Open(path, false);
  EXPECT_EQ(*other.FirstText("PRAGMA journal_mode"), "delete");
}

TEST_F(SqliteStoreTest, ANewerSchemaIsFailedPrecondition) {
  ASSERT_TRUE(OpenStatus(path_).ok());
  ASSERT_TRUE(sqlite::Connection::Open(path_, false)
                  ->Execute("PRAGMA user_version=99; DELETE FROM rows WHERE key = 'file_schema'")
                  .ok());
  const absl::Status status = OpenStatus(path_);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("schema 99, this one knows 3"));
}

// Returns each old table's number of rows that became rows of today.
std::map<std::string, std::string> RowsOfOldStore(const std::string& path) {
  const std::pair<const char*, const char*> tables[] = {
      {"jobs", "job/%/record"},  {"placements", "job/%/placement/%"},
      {"plans", "job/%/plan/%"}, {"requests", "job/%/request/%"},
      {"events", "event/%"},     {"windows", "window/%"}};
  std::map<std::string, std::string> counts;
  sqlite::Connection connection = *sqlite::Connection::Open(path, true);
  const bool is_old = *connection.FirstText("PRAGMA user_version") != "3";
  for (const auto& [table, keys] : tables) {
    const std::string from = is_old ? table : absl::StrCat("rows WHERE key LIKE '", keys, "'");
    counts[table] = connection.FirstText("SELECT count(*) FROM " + from).value_or("0");
  }
  return counts;
}

TEST_F(SqliteStoreTest, AStoreOfAnEarlierSchemaIsBroughtUpToDateWithAllThatIsInIt) {
  for (const auto& [release, schema] : {std::pair("0.1.0", "1"), std::pair("schema2", "2")}) {
    const std::string path = folder_.File(absl::StrCat(schema, ".db"));
    std::filesystem::copy_file(absl::StrCat(EPLB_DATA "/store/", release, "/eplbd.db"), path);
    ASSERT_EQ(*sqlite::Connection::Open(path, true)->FirstText("PRAGMA user_version"), schema);
    const std::map<std::string, std::string> before = RowsOfOldStore(path);
    core::StoredJob job;
    {
      const std::unique_ptr<Store> store = *MakeSqliteStore(path);
      EXPECT_EQ(store->opening_note(), "");
      job = store->ReadJobs()->at(0);
      EXPECT_TRUE(job.placement.has_value());
      EXPECT_FALSE(job.plans.empty());
      EXPECT_FALSE(store->ReadEvents(job.job, 10, 0)->empty());
      EXPECT_GT(*store->ReadTerm(), 0);
    }
    EXPECT_EQ(RowsOfOldStore(path), before);
    const std::unique_ptr<Store> store = *MakeSqliteStore(path);
    EXPECT_EQ(store->ReadJobs()->at(0).plans, job.plans);
    const uint64_t newest = store->ReadEvents(job.job, 1, 0)->at(0).sequence();
    ASSERT_TRUE(store->AppendEvent(absl::UnixEpoch(), EventOf(job.job, 9)).ok());
    EXPECT_GT(store->ReadEvents(job.job, 1, 0)->at(0).sequence(), newest);
  }
}

TEST_F(SqliteStoreTest, ADamagedWindowCostsTheWindowsAlone) {
  {
    const std::unique_ptr<Store> store = *MakeSqliteStore(path_);
    ASSERT_TRUE(store->WriteJob(JobOf("a", 4)).ok());
    ASSERT_TRUE(store->WriteWindows(std::vector{WindowOf("a", 1), WindowOf("a", 2)}).ok());
  }
  ASSERT_TRUE(sqlite::Connection::Open(path_, false)
                  ->Execute("UPDATE rows SET value = x'00' WHERE key LIKE 'window/%2'")
                  .ok());
  {
    const std::unique_ptr<Store> store = *MakeSqliteStore(path_);
    EXPECT_THAT(store->opening_note(), HasSubstr("past load windows were damaged and are deleted"));
    EXPECT_EQ(store->ReadJobs()->front().version, 4);
    EXPECT_TRUE(store->ReadWindows()->empty());
    ASSERT_TRUE(store->WriteWindows(std::vector{WindowOf("a", 3)}).ok());
  }
  EXPECT_EQ((*MakeSqliteStore(path_))->opening_note(), "");
}

TEST_F(SqliteStoreTest, DamagedTypicalLoadsCostNothingElse) {
  const TypicalLoad one{.load = std::make_shared<const Load>(
                            Load::FromCounts(LoadMatrix::Constant(2, 4, 3)).value())};
  // A row that was altered, and one of another format.
  const std::string other = sqlite::RowToBytes({std::string("a"), int64_t{2}});
  for (const std::string& value : {std::string(1, '\0'), other}) {
    std::unique_ptr<Store> written = *MakeSqliteStore(path_);
    ASSERT_TRUE(written->WriteJob(JobOf("a", 4)).ok());
    ASSERT_TRUE(written->WriteWindows(std::vector{WindowOf("a", value.size() + 1)}).ok());
    ASSERT_TRUE(written->WriteTypicalLoads("a", std::span(&one, 1)).ok());
    written.reset();
    absl::StatusOr<sqlite::Connection> file = sqlite::Connection::Open(path_, false);
    if (value == other) {
      ASSERT_TRUE(sqlite::PutRow(*file, PartKey(TypicalLoadsKey("a"), 1, 0), other).ok());
    } else {
      ASSERT_TRUE(
          file->Execute("UPDATE rows SET value = x'00' WHERE key LIKE 'typical_loads/%'").ok());
    }
    const std::unique_ptr<Store> store = *MakeSqliteStore(path_);
    EXPECT_THAT(store->opening_note(), HasSubstr("typical loads of jobs were damaged and"));
    EXPECT_EQ(store->ReadJobs()->front().version, 4);
    EXPECT_TRUE(store->ReadJobs()->front().typical_loads.empty());
    EXPECT_FALSE(store->ReadWindows()->empty());
  }
}

TEST_F(SqliteStoreTest, TypicalLoadsOfAWriteThatDidNotEndLeaveThoseBefore) {
  const TypicalLoad one{.load = std::make_shared<const Load>(
                            Load::FromCounts(LoadMatrix::Constant(2, 4, 3)).value())};
  {
    const std::unique_ptr<Store> store = *MakeSqliteStore(path_);
    ASSERT_TRUE(store->WriteJob(JobOf("a", 4)).ok());
    ASSERT_TRUE(store->WriteTypicalLoads("a", std::span(&one, 1)).ok());
  }
  sqlite::Connection file = *sqlite::Connection::Open(path_, false);
  ASSERT_TRUE(sqlite::PutRow(file, PartKey(TypicalLoadsKey("a"), 2, 0), "the first part").ok());
  const std::unique_ptr<Store> store = *MakeSqliteStore(path_);
  EXPECT_EQ(store->opening_note(), "");
  EXPECT_EQ(store->ReadJobs()->front().typical_loads.size(), 1u);
  ASSERT_TRUE(store->WriteTypicalLoads("a", std::vector{one, one}).ok());
  EXPECT_EQ(store->ReadJobs()->front().typical_loads.size(), 2u);
}

TEST_F(SqliteStoreTest, TypicalLoadsOfANewerDaemonStayInItsStore) {
  const std::string newer = sqlite::RowToBytes({std::string("a"), int64_t{2}});
  const std::string key = PartKey(TypicalLoadsKey("a"), 1, 0);
  {
    const std::unique_ptr<Store> store = *MakeSqliteStore(path_);
    ASSERT_TRUE(store->WriteJob(JobOf("a", 4)).ok());
  }
  sqlite::Connection file = *sqlite::Connection::Open(path_, false);
  ASSERT_TRUE(sqlite::PutRow(file, kSchemaKey, std::to_string(kKeysSchema + 1)).ok());
  ASSERT_TRUE(sqlite::PutRow(file, key, newer).ok());
  EXPECT_EQ(OpenStatus(path_).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(sqlite::ConnectionReader(&file).Get(key), newer);
}

TEST_F(SqliteStoreTest, AMissingFolderIsUnavailable) {
  const absl::Status status = OpenStatus("/nonexistent/folder/eplbd.db");
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/nonexistent/folder/eplbd.db"));
}

TEST_F(SqliteStoreTest, ClosingLeavesEverythingInTheDatabasesOwnFile) {
  const std::unique_ptr<Store> store = *MakeSqliteStore(path_);
  ASSERT_TRUE(store->WriteJob(JobOf("a", 4)).ok());
  ASSERT_TRUE(std::filesystem::exists(path_ + "-wal"));
  store->Close();
  EXPECT_FALSE(std::filesystem::exists(path_ + "-wal"));
  EXPECT_FALSE(std::filesystem::exists(path_ + "-shm"));
}

TEST_F(SqliteStoreTest, TheTableIsStrictAndWritesAreSynchronous) {
  ASSERT_TRUE(OpenStatus(path_).ok());
  sqlite::Connection connection = *sqlite::Connection::Open(path_, false);
  EXPECT_EQ(*connection.FirstText("PRAGMA journal_mode"), "wal");
  EXPECT_EQ(*connection.FirstText("SELECT count(*) FROM pragma_table_list WHERE strict = 1"), "1");
}

}  // namespace
}  // namespace eplb
