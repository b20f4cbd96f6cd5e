#include "server/store/opening.h"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>

#include "server/store/database_file.h"
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

using DatabaseFileTest = DatabaseTest;

TEST_F(DatabaseFileTest, ASymbolicLinkIsTheSameStore) {
  const std::unique_ptr<Store> store = *MakeSqliteStore(path_);
  std::filesystem::create_symlink(path_, folder_.File("other.db"));
  EXPECT_THAT(std::string(MakeSqliteStore(folder_.File("other.db")).status().message()),
              HasSubstr("another eplbd has this store open"));
  EXPECT_TRUE(store->WriteTerm(3).ok());
}

TEST_F(DatabaseFileTest, APathIsWholeAndFollowsLinks) {
  const Folder folder;
  std::filesystem::create_directory(folder.File("real"));
  std::filesystem::create_symlink("real", folder.File("link"));
  EXPECT_EQ(CanonicalPath(folder.File("link/none.db")), folder.File("real/none.db"));
  EXPECT_EQ(CanonicalPath("none.db"), (std::filesystem::current_path() / "none.db").string());
}

TEST_F(DatabaseFileTest, AHardLinkIsTheSameStore) {
  const std::unique_ptr<Store> store = *MakeSqliteStore(path_);
  std::filesystem::create_hard_link(path_, folder_.File("other.db"));
  const absl::Status refused = MakeSqliteStore(folder_.File("other.db")).status();
  EXPECT_TRUE(absl::IsUnavailable(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("by another name of the file"));
}

TEST_F(DatabaseFileTest, AStoreThatIsGivenUpCanBeOpenedByAnyName) {
  { ASSERT_TRUE((*MakeSqliteStore(path_))->WriteTerm(7).ok()); }
  std::filesystem::create_hard_link(path_, folder_.File("other.db"));
  EXPECT_EQ(*(*MakeSqliteStore(folder_.File("other.db")))->ReadTerm(), 7);
}

TEST_F(DatabaseFileTest, ADeletedDatabaseTakesNoWriteAndSaysWhatToDo) {
  const std::unique_ptr<Store> store = *MakeSqliteStore(path_);
  ASSERT_TRUE(store->CheckFile().ok());
  std::filesystem::rename(path_, folder_.File("away"));
  for (const absl::Status& status :
       {store->CheckFile(), store->WriteTerm(3), store->WriteJob(JobOf("a", 1)),
        store->AppendEvent(absl::UnixEpoch(), EventOf("a", 1))}) {
    EXPECT_TRUE(absl::IsUnavailable(status));
    EXPECT_THAT(std::string(status.message()), HasSubstr("deleted or replaced under the daemon"));
  }
  std::filesystem::rename(folder_.File("away"), path_);
  EXPECT_TRUE(store->CheckFile().ok());
  EXPECT_TRUE(store->WriteTerm(3).ok());
}

TEST_F(DatabaseFileTest, ADatabaseCopiedOverTheLiveOneTakesNoWrite) {
  const std::unique_ptr<Store> store = *MakeSqliteStore(path_);
  { ASSERT_TRUE(MakeSqliteStore(folder_.File("backup.db")).ok()); }
  std::filesystem::rename(folder_.File("backup.db"), path_);
  EXPECT_TRUE(absl::IsUnavailable(store->CheckFile()));
  EXPECT_TRUE(absl::IsUnavailable(store->WriteTerm(3)));
}

TEST_F(DatabaseFileTest, ADeletedWriteAheadLogTakesNoWriteAndAStopSavesWhatItHeld) {
  {
    const std::unique_ptr<Store> store = *MakeSqliteStore(path_);
    ASSERT_TRUE(store->WriteTerm(7).ok());
    std::filesystem::remove(path_ + "-wal");
    for (const absl::Status& status : {store->CheckFile(), store->WriteTerm(8)}) {
      EXPECT_TRUE(absl::IsUnavailable(status));
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr("eplb.db-wal: SQLite's write-ahead log was deleted or replaced"));
    }
    { std::ofstream another(path_ + "-wal"); }
    EXPECT_TRUE(absl::IsUnavailable(store->CheckFile()));
  }
  const std::unique_ptr<Store> after = *MakeSqliteStore(path_);
  EXPECT_TRUE(after->CheckFile().ok());
  EXPECT_EQ(*after->ReadTerm(), 7);
}

TEST_F(DatabaseFileTest, NobodyElseReadsAFileOfTheStoreWhateverTheUmaskIs) {
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

TEST_F(DatabaseFileTest, ADamagedDatabaseThatOthersCouldReadIsMovedAsideWithoutTheirRights) {
  { ASSERT_TRUE(MakeSqliteStore(path_).ok()); }
  std::ofstream(path_) << std::string(4096, 'x');
  ASSERT_EQ(chmod(path_.c_str(), 0644), 0);
  const std::unique_ptr<Store> store = *MakeSqliteStore(path_);
  const std::vector<std::string> copies = folder_.Matching("eplb.db.corrupt-");
  ASSERT_EQ(copies.size(), 1U);
  EXPECT_EQ(ModeOf(folder_.File(copies.front())), 0600U);
  EXPECT_EQ(ModeOf(path_), 0600U);
  std::filesystem::create_hard_link(path_, folder_.File("other.db"));
  EXPECT_FALSE(MakeSqliteStore(folder_.File("other.db")).ok()) << "the new file is locked, too";
}

TEST_F(DatabaseFileTest, TheAgeOfAMovedDatabaseIsNeverNegative) {
  EXPECT_EQ(AgeOf(std::nullopt), std::nullopt);
  EXPECT_GE(*AgeOf(absl::Now() - absl::Hours(2)), absl::Hours(2));
  EXPECT_EQ(AgeOf(absl::Now() + absl::Hours(3)), absl::ZeroDuration()) << "the clock was set back";
}

TEST_F(DatabaseFileTest, AStoreRemembersThatADamagedOneWasMovedAside) {
  { EXPECT_EQ(*(*MakeSqliteStore(path_))->ReadMovedAside(), std::nullopt); }
  std::ofstream(path_) << std::string(4096, 'x');
  std::optional<absl::Time> moved_aside;
  {
    const std::unique_ptr<Store> store = *MakeSqliteStore(path_);
    moved_aside = *store->ReadMovedAside();
    EXPECT_TRUE(moved_aside.has_value());
    ASSERT_TRUE(store->WriteTerm(9).ok());
  }
  EXPECT_EQ(*(*MakeSqliteStore(path_))->ReadMovedAside(), moved_aside) << "after a restart";
}

using ::testing::SizeIs;
using ::testing::StartsWith;

// Root may write everything: it looks with another user's rights meanwhile.
class AnotherUser {
 public:
  AnotherUser() : was_(geteuid()) {
    if (was_ == 0) {
      EXPECT_EQ(seteuid(kNobody), 0);
    }
  }
  ~AnotherUser() { EXPECT_EQ(seteuid(was_), 0); }
  AnotherUser(const AnotherUser&) = delete;
  AnotherUser& operator=(const AnotherUser&) = delete;

 private:
  static constexpr uid_t kNobody = 65534;
  const uid_t was_;
};

void AllowWrites(const Folder& folder, bool allow) {
  for (const std::string& name : folder.Matching("eplb.db")) {
    ASSERT_EQ(chmod(folder.File(name).c_str(), allow ? 0644 : 0444), 0);
  }
  ASSERT_EQ(chmod(folder.File("").c_str(), allow ? 0755 : 0555), 0);
}

// Makes a database of term 7 in a folder that takes no lock. Returns its path.
std::string ReadOnlyDatabaseWithoutALock(const Folder& folder) {
  std::string path = folder.File("eplb.db");
  EXPECT_TRUE((*MakeSqliteStore(path))->WriteTerm(7).ok());
  std::filesystem::remove(path + ".lock");
  AllowWrites(folder, false);
  return path;
}

using OpeningTest = DatabaseTest;

TEST_F(OpeningTest, ADatabaseThatCannotBeWrittenIsReadUntilItCanBe) {
  {
    const std::unique_ptr<Store> store = *MakeSqliteStore(path_);
    ASSERT_TRUE(store->WriteTerm(7).ok());
    ASSERT_TRUE(store->WriteJob(JobOf("a", 4)).ok());
    ASSERT_TRUE(store->AppendEvent(absl::UnixEpoch(), EventOf("a", 1)).ok());
  }
  AllowWrites(folder_, false);
  std::unique_ptr<Store> store;
  {
    const AnotherUser other;
    store = MakeSqliteStore(path_).value();
    EXPECT_EQ(*store->ReadTerm(), 7);
    EXPECT_EQ(store->ReadJobs()->front().version, 4);
    EXPECT_EQ(*store->ReadPlacement("a", 4), JobOf("a", 4).placement);
    EXPECT_EQ(store->ReadEvents("a", 9, 0)->size(), 1U);
    EXPECT_TRUE(absl::IsUnavailable(store->WriteTerm(8)));
    EXPECT_TRUE(absl::IsUnavailable(store->AppendEvent(absl::UnixEpoch(), EventOf("a", 2))));
    EXPECT_THAT(std::string(MakeSqliteStore(path_).status().message()),
                HasSubstr("another eplbd has this store open"));
  }
  AllowWrites(folder_, true);
  EXPECT_EQ(*store->ReadTerm(), 7);
  ASSERT_TRUE(store->WriteTerm(8).ok());
  ASSERT_TRUE(store->WriteJob(JobOf("a", 5)).ok());
  EXPECT_EQ(*store->ReadTerm(), 8);
  EXPECT_EQ(store->ReadJobs()->front().version, 5);
  EXPECT_EQ(*store->ReadPlacement("a", 5), JobOf("a", 5).placement);
}

TEST_F(OpeningTest, AnEarlierSchemaThatCannotBeWrittenIsReadAndMigratedOnceItCanBe) {
  std::filesystem::copy_file(EPLB_DATA "/store/0.1.0/eplbd.db", path_);
  AllowWrites(folder_, false);
  std::unique_ptr<Store> store;
  std::string job;
  {
    const AnotherUser other;
    store = MakeSqliteStore(path_).value();
    ASSERT_FALSE(store->ReadJobs()->empty());
    job = store->ReadJobs()->front().job;
    EXPECT_TRUE(store->ReadWindows()->empty());
  }
  AllowWrites(folder_, true);
  ASSERT_TRUE(store->WriteTerm(*store->ReadTerm() + 1).ok());
  EXPECT_EQ(store->ReadJobs()->front().job, job);
  EXPECT_EQ(*sqlite::Connection::Open(path_, true)->FirstText("PRAGMA user_version"), "3");
}

TEST_F(OpeningTest, WithoutALockInAFolderThatTakesNoneADatabaseIsRead) {
  const Folder folder;
  const std::string path = ReadOnlyDatabaseWithoutALock(folder);
  std::unique_ptr<Store> store;
  {
    const AnotherUser other;
    store = MakeSqliteStore(path).value();
    EXPECT_EQ(*store->ReadTerm(), 7);
    const absl::Status refused = store->WriteTerm(8);
    EXPECT_TRUE(absl::IsUnavailable(refused));
    EXPECT_THAT(std::string(refused.message()), HasSubstr(".lock: Permission denied"));
  }
  AllowWrites(folder, true);
  {  // Another process comes first.
    const std::unique_ptr<Store> first = *MakeSqliteStore(path);
    EXPECT_THAT(std::string(store->WriteTerm(8).message()),
                HasSubstr("another eplbd has this store open"));
  }
  ASSERT_TRUE(store->WriteTerm(8).ok());
  EXPECT_EQ(*store->ReadTerm(), 8);
  EXPECT_THAT(std::string(MakeSqliteStore(path).status().message()),
              HasSubstr("another eplbd has this store open"));
}

TEST_F(OpeningTest, WithoutALockADatabaseThatAnotherDaemonWroteIsNotWritten) {
  const Folder folder;
  const std::string path = ReadOnlyDatabaseWithoutALock(folder);
  std::unique_ptr<Store> store;
  {
    const AnotherUser other;
    store = *MakeSqliteStore(path);
  }
  AllowWrites(folder, true);
  { ASSERT_TRUE((*MakeSqliteStore(path))->WriteTerm(8).ok()); }
  const absl::Status status = store->WriteTerm(8);
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("(term 8, was 7); restart this one"));
  EXPECT_TRUE(MakeSqliteStore(path).ok()) << "its lock is given up";
}

TEST_F(OpeningTest, AFolderThatTakesNoDatabaseIsToldWithTheTrueReason) {
  AllowWrites(folder_, false);
  {
    const AnotherUser other;
    const absl::Status status = MakeSqliteStore(path_).status();
    EXPECT_TRUE(absl::IsUnavailable(status));
    EXPECT_EQ(status.message(), path_ + ": cannot open " + path_ + ".lock: Permission denied");
  }
  AllowWrites(folder_, true);
}

TEST_F(OpeningTest, SomebodysTextIsNeitherMovedNorReplaced) {
  const Folder folder;
  const std::string path = folder.File("eplb.db.txt");
  for (const std::string& text : {std::string("buy milk"), std::string(8192, 'x')}) {
    std::ofstream(path) << text;
    const absl::Status status = MakeSqliteStore(path).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr("is not a database of eplbd"));
    EXPECT_EQ(std::filesystem::file_size(path), text.size());
    EXPECT_THAT(folder.Matching("eplb.db"), SizeIs(1));  // no lock either
  }
  std::ofstream(path, std::ios::trunc).close();
  EXPECT_TRUE(MakeSqliteStore(path).ok()) << "an empty file is a new store";
}

TEST_F(OpeningTest, ADatabaseThatCannotBeWrittenAndIsNoneIsRefused) {
  { ASSERT_TRUE(MakeSqliteStore(path_).ok()); }
  std::filesystem::resize_file(path_, 0);
  AllowWrites(folder_, false);
  {
    const AnotherUser other;
    EXPECT_TRUE(absl::IsUnavailable(MakeSqliteStore(path_).status()));
  }
  AllowWrites(folder_, true);
  EXPECT_TRUE(MakeSqliteStore(path_).ok());
}

TEST_F(OpeningTest, AMissingDatabaseIsMadeByAWriterOnly) {
  EXPECT_TRUE(absl::IsUnavailable(OpenToRead(path_).status()));
  EXPECT_FALSE(std::filesystem::exists(path_));
  EXPECT_TRUE(OpenToWrite(path_).ok());
  EXPECT_TRUE(OpenToRead(path_).ok());
}

TEST_F(OpeningTest, AReaderCannotWrite) {
  ASSERT_TRUE(OpenToWrite(path_).ok());
  absl::StatusOr<sqlite::Connection> reader = OpenToRead(path_);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_FALSE(reader->Execute("DELETE FROM rows").ok());
}

TEST_F(OpeningTest, AFileThatIsNoDatabaseIsDataLoss) {
  std::ofstream(path_) << std::string(4096, 'x');
  EXPECT_TRUE(absl::IsDataLoss(OpenToWrite(path_).status()));
  EXPECT_TRUE(absl::IsDataLoss(OpenToRead(path_).status()));
}

TEST_F(OpeningTest, FilesMovedAsideInOneSecondKeepTheirOwnNames) {
  for (const std::string text : {"first", "second", "third"}) {
    std::ofstream(path_) << text;
    std::ofstream(path_ + "-wal") << text;
    const absl::StatusOr<std::string> aside = MoveAside(path_);
    ASSERT_TRUE(aside.ok()) << aside.status();
    EXPECT_THAT(*aside, StartsWith(path_ + ".corrupt-"));
    std::string kept;
    std::ifstream(*aside + "-wal") >> kept;
    EXPECT_EQ(kept, text);
  }
  EXPECT_THAT(folder_.Matching("eplb.db.corrupt-"), SizeIs(6));
}

}  // namespace

}  // namespace eplb
