#include "server/store/database_file.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "tests/server/store/folder.h"
#include "tests/server/store/store_contract.h"

namespace eplb {
namespace {

using ::testing::HasSubstr;

mode_t ModeOf(const std::string& path) {
  struct stat found {};
  EXPECT_EQ(stat(path.c_str(), &found), 0) << path;
  return found.st_mode & 0777;
}

class Umask {
 public:
  explicit Umask(mode_t mask) : was_(umask(mask)) {}
  ~Umask() { umask(was_); }
  Umask(const Umask&) = delete;
  Umask& operator=(const Umask&) = delete;

 private:
  const mode_t was_;
};

TEST(DatabaseFileTest, ASymbolicLinkIsTheSameStore) {
  const Folder folder;
  const std::string path = folder.File("eplb.db");
  const std::unique_ptr<Store> store = *MakeSqliteStore(path);
  std::filesystem::create_symlink(path, folder.File("other.db"));
  EXPECT_THAT(std::string(MakeSqliteStore(folder.File("other.db")).status().message()),
              HasSubstr("another eplbd has this store open"));
  EXPECT_TRUE(store->WriteTerm(3).ok());
}

TEST(DatabaseFileTest, APathIsWholeAndFollowsLinks) {
  const Folder folder;
  std::filesystem::create_directory(folder.File("real"));
  std::filesystem::create_symlink("real", folder.File("link"));
  EXPECT_EQ(CanonicalPath(folder.File("link/none.db")), folder.File("real/none.db"));
  EXPECT_EQ(CanonicalPath("none.db"), (std::filesystem::current_path() / "none.db").string());
}

TEST(DatabaseFileTest, AHardLinkIsTheSameStore) {
  const Folder folder;
  const std::string path = folder.File("eplb.db");
  const std::unique_ptr<Store> store = *MakeSqliteStore(path);
  std::filesystem::create_hard_link(path, folder.File("other.db"));
  const absl::Status refused = MakeSqliteStore(folder.File("other.db")).status();
  EXPECT_TRUE(absl::IsUnavailable(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("by another name of the file"));
}

TEST(DatabaseFileTest, AStoreThatIsGivenUpCanBeOpenedByAnyName) {
  const Folder folder;
  const std::string path = folder.File("eplb.db");
  { ASSERT_TRUE((*MakeSqliteStore(path))->WriteTerm(7).ok()); }
  std::filesystem::create_hard_link(path, folder.File("other.db"));
  EXPECT_EQ(*(*MakeSqliteStore(folder.File("other.db")))->ReadTerm(), 7);
}

TEST(DatabaseFileTest, ADeletedDatabaseTakesNoWriteAndSaysWhatToDo) {
  const Folder folder;
  const std::string path = folder.File("eplb.db");
  const std::unique_ptr<Store> store = *MakeSqliteStore(path);
  ASSERT_TRUE(store->CheckFile().ok());
  std::filesystem::rename(path, folder.File("away"));
  for (const absl::Status& status :
       {store->CheckFile(), store->WriteTerm(3), store->WriteJob(JobOf("a", 1)),
        store->AppendEvent(absl::UnixEpoch(), EventOf("a", 1))}) {
    EXPECT_TRUE(absl::IsUnavailable(status));
    EXPECT_THAT(std::string(status.message()), HasSubstr("deleted or replaced under the daemon"));
  }
  std::filesystem::rename(folder.File("away"), path);
  EXPECT_TRUE(store->CheckFile().ok());
  EXPECT_TRUE(store->WriteTerm(3).ok());
}

TEST(DatabaseFileTest, ADatabaseCopiedOverTheLiveOneTakesNoWrite) {
  const Folder folder;
  const std::string path = folder.File("eplb.db");
  const std::unique_ptr<Store> store = *MakeSqliteStore(path);
  { ASSERT_TRUE(MakeSqliteStore(folder.File("backup.db")).ok()); }
  std::filesystem::rename(folder.File("backup.db"), path);
  EXPECT_TRUE(absl::IsUnavailable(store->CheckFile()));
  EXPECT_TRUE(absl::IsUnavailable(store->WriteTerm(3)));
}

TEST(DatabaseFileTest, ADeletedWriteAheadLogTakesNoWriteAndAStopSavesWhatItHeld) {
  const Folder folder;
  const std::string path = folder.File("eplb.db");
  {
    const std::unique_ptr<Store> store = *MakeSqliteStore(path);
    ASSERT_TRUE(store->WriteTerm(7).ok());
    std::filesystem::remove(path + "-wal");
    for (const absl::Status& status : {store->CheckFile(), store->WriteTerm(8)}) {
      EXPECT_TRUE(absl::IsUnavailable(status));
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr("eplb.db-wal: SQLite's write-ahead log was deleted or replaced"));
    }
    { std::ofstream another(path + "-wal"); }
    EXPECT_TRUE(absl::IsUnavailable(store->CheckFile()));
  }
  const std::unique_ptr<Store> after = *MakeSqliteStore(path);
  EXPECT_TRUE(after->CheckFile().ok());
  EXPECT_EQ(*after->ReadTerm(), 7);
}

TEST(DatabaseFileTest, NobodyElseReadsAFileOfTheStoreWhateverTheUmaskIs) {
  for (const mode_t mask : {mode_t{0}, mode_t{077}, mode_t{0777}}) {
    const Umask umask(mask);
    const Folder folder;
    std::filesystem::permissions(folder.File(""), std::filesystem::perms::owner_all);
    const std::string path = folder.File("eplb.db");
    const std::unique_ptr<Store> store = *MakeSqliteStore(path);
    ASSERT_TRUE(store->WriteJob(JobOf("a", 1)).ok());
    for (const char* suffix : {"", "-wal", "-shm", ".lock"}) {
      EXPECT_EQ(ModeOf(path + suffix) & 077, 0U) << suffix << " with umask " << mask;
    }
    EXPECT_EQ(ModeOf(path), 0600U) << "with umask " << mask;
  }
}

TEST(DatabaseFileTest, ADamagedDatabaseThatOthersCouldReadIsMovedAsideWithoutTheirRights) {
  const Folder folder;
  const std::string path = folder.File("eplb.db");
  { ASSERT_TRUE(MakeSqliteStore(path).ok()); }
  std::ofstream(path) << std::string(4096, 'x');
  ASSERT_EQ(chmod(path.c_str(), 0644), 0);
  const std::unique_ptr<Store> store = *MakeSqliteStore(path);
  const std::vector<std::string> copies = folder.Matching("eplb.db.corrupt-");
  ASSERT_EQ(copies.size(), 1U);
  EXPECT_EQ(ModeOf(folder.File(copies.front())), 0600U);
  EXPECT_EQ(ModeOf(path), 0600U);
  std::filesystem::create_hard_link(path, folder.File("other.db"));
  EXPECT_FALSE(MakeSqliteStore(folder.File("other.db")).ok()) << "the new file is locked, too";
}

TEST(DatabaseFileTest, AStoreRemembersThatADamagedOneWasMovedAside) {
  const Folder folder;
  const std::string path = folder.File("eplb.db");
  { EXPECT_EQ(*(*MakeSqliteStore(path))->ReadMovedAside(), std::nullopt); }
  std::ofstream(path) << std::string(4096, 'x');
  std::optional<absl::Time> moved_aside;
  {
    const std::unique_ptr<Store> store = *MakeSqliteStore(path);
    moved_aside = *store->ReadMovedAside();
    EXPECT_TRUE(moved_aside.has_value());
    ASSERT_TRUE(store->WriteTerm(9).ok());
  }
  EXPECT_EQ(*(*MakeSqliteStore(path))->ReadMovedAside(), moved_aside) << "after a restart";
}

}  // namespace
}  // namespace eplb
