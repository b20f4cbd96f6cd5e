#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"

#include "server/store/sqlite.h"
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
                           return *MakeMemoryStore(kContractLimits);
                         }}));

absl::Status OpenStatus(const std::string& path) { return MakeSqliteStore(path).status(); }

TEST(SqliteStoreTest, EverythingIsThereAfterReopening) {
  const Folder folder;
  const std::string path = folder.File("eplbd.db");
  {
    const std::unique_ptr<Store> store = *MakeSqliteStore(path);
    ASSERT_TRUE(store->WriteTerm(9).ok());
    ASSERT_TRUE(store->WriteJob(JobOf("a", 4)).ok());
    ASSERT_TRUE(store->AppendEvent(absl::UnixEpoch(), EventOf("a", 4)).ok());
  }
  const std::unique_ptr<Store> store = *MakeSqliteStore(path);
  EXPECT_EQ(*store->ReadTerm(), 9);
  EXPECT_EQ(store->ReadJobs()->front().placement, ReversedPlacement(2));
  EXPECT_EQ(store->ReadEvents("a", 1, 0)->front().event.version, 4);
}

TEST(SqliteStoreTest, ASecondOpenerIsRefusedByName) {
  const Folder folder;
  const std::string path = folder.File("eplbd.db");
  const std::unique_ptr<Store> first = *MakeSqliteStore(path);
  const absl::Status status = OpenStatus(path);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr(path + ": another eplbd"));
}

TEST(SqliteStoreTest, ADatabaseOfAnotherProgramIsLeftAlone) {
  const Folder folder;
  const std::string path = folder.File("other.db");
  ASSERT_TRUE(sqlite::Connection::Open(path, false)->Execute("CREATE TABLE t(x)").ok());
  const absl::Status status = OpenStatus(path);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("another program"));
  sqlite::Connection other = *sqlite::Connection::Open(path, false);
  EXPECT_EQ(*other.FirstText("PRAGMA journal_mode"), "delete");
}

TEST(SqliteStoreTest, ANewerSchemaIsFailedPrecondition) {
  const Folder folder;
  const std::string path = folder.File("eplbd.db");
  ASSERT_TRUE(OpenStatus(path).ok());
  ASSERT_TRUE(sqlite::Connection::Open(path, false)
                  ->Execute("PRAGMA user_version=99; "
                            "UPDATE leadership SET schema = 99")
                  .ok());
  const absl::Status status = OpenStatus(path);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("schema 99, this one knows 2"));
}

TEST(SqliteStoreTest, AStoreOfAnEarlierReleaseIsBroughtUpToDateWithAllThatIsInIt) {
  const Folder folder;
  const std::string path = folder.File("eplbd.db");
  std::filesystem::copy_file(EPLB_DATA "/store/0.1.0/eplbd.db", path);
  ASSERT_EQ(*sqlite::Connection::Open(path, true)->FirstText("PRAGMA user_version"), "1");
  const std::string plans = "SELECT count(*) FROM plans";
  const std::string before = *sqlite::Connection::Open(path, true)->FirstText(plans);
  std::string job;
  {
    const std::unique_ptr<Store> store = *MakeSqliteStore(path);
    EXPECT_EQ(store->opening_note(), "");
    ASSERT_FALSE(store->ReadJobs()->empty());
    job = store->ReadJobs()->front().job;
    EXPECT_TRUE(store->ReadWindows()->empty());
    ASSERT_TRUE(store->WriteWindows(std::vector{WindowOf(job, 1)}).ok());
  }
  const std::unique_ptr<Store> store = *MakeSqliteStore(path);
  EXPECT_EQ(*store->ReadWindows(), std::vector{WindowOf(job, 1)});
  EXPECT_EQ(*sqlite::Connection::Open(path, true)->FirstText(plans), before);
  EXPECT_EQ(*sqlite::Connection::Open(path, true)->FirstText("PRAGMA user_version"), "2");
}

TEST(SqliteStoreTest, ADamagedWindowCostsTheWindowsAlone) {
  const Folder folder;
  const std::string path = folder.File("eplbd.db");
  {
    const std::unique_ptr<Store> store = *MakeSqliteStore(path);
    ASSERT_TRUE(store->WriteJob(JobOf("a", 4)).ok());
    ASSERT_TRUE(store->WriteWindows(std::vector{WindowOf("a", 1), WindowOf("a", 2)}).ok());
  }
  ASSERT_TRUE(sqlite::Connection::Open(path, false)
                  ->Execute("UPDATE windows SET record = x'00' WHERE window = 2")
                  .ok());
  {
    const std::unique_ptr<Store> store = *MakeSqliteStore(path);
    EXPECT_THAT(store->opening_note(), HasSubstr("past load windows were damaged and are deleted"));
    EXPECT_EQ(store->ReadJobs()->front().version, 4);
    EXPECT_TRUE(store->ReadWindows()->empty());
    ASSERT_TRUE(store->WriteWindows(std::vector{WindowOf("a", 3)}).ok());
  }
  EXPECT_EQ((*MakeSqliteStore(path))->opening_note(), "");
}

TEST(SqliteStoreTest, AMissingFolderIsUnavailable) {
  const absl::Status status = OpenStatus("/nonexistent/folder/eplbd.db");
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/nonexistent/folder/eplbd.db"));
}

TEST(SqliteStoreTest, ClosingLeavesEverythingInTheDatabasesOwnFile) {
  const Folder folder;
  const std::string path = folder.File("eplbd.db");
  const std::unique_ptr<Store> store = *MakeSqliteStore(path);
  ASSERT_TRUE(store->WriteJob(JobOf("a", 4)).ok());
  ASSERT_TRUE(std::filesystem::exists(path + "-wal"));
  store->Close();
  EXPECT_FALSE(std::filesystem::exists(path + "-wal"));
  EXPECT_FALSE(std::filesystem::exists(path + "-shm"));
}

TEST(SqliteStoreTest, TablesAreStrictAndWritesAreSynchronous) {
  const Folder folder;
  const std::string path = folder.File("eplbd.db");
  ASSERT_TRUE(OpenStatus(path).ok());
  sqlite::Connection connection = *sqlite::Connection::Open(path, false);
  EXPECT_EQ(*connection.FirstText("PRAGMA journal_mode"), "wal");
  EXPECT_EQ(*connection.FirstText("SELECT count(*) FROM pragma_table_list WHERE strict = 1"), "7");
}

}  // namespace
}  // namespace eplb
