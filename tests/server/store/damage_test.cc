// Effects of a damaged, full or old database on the daemon's store.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "placement/digest.h"
#include "server/store/sqlite.h"
#include "tests/server/store/folder.h"
#include "tests/server/store/store_contract.h"

namespace eplb {
namespace {

using ::testing::HasSubstr;

constexpr int kFlips = 400;
constexpr int kTruncations = 40;
constexpr unsigned kSeed = 20260731;

std::string ReadFile(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

void WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

constexpr char kWindows[] = "\nwindow of ";

// Everything that the store serves, as text, windows last.
std::string ContentOf(Store& store) {
  const absl::StatusOr<int64_t> term = store.ReadTerm();
  const absl::StatusOr<std::vector<core::StoredJob>> jobs = store.ReadJobs();
  if (!term.ok() || !jobs.ok()) return "unreadable";
  std::string text = absl::StrCat("term ", *term);
  for (const core::StoredJob& job : *jobs) {
    absl::StrAppend(&text, "\njob ", job.job, " ", job.version, " ", job.next_version, " ",
                    job.memory.paused, job.memory.pause_reason, job.end.has_value(), " ",
                    DigestOf(job.placement.value()).Hex(),
                    wire::SettingsText(wire::Patched({}, job.memory.settings), {}));
    for (const core::DoneRequest& done : job.requests) {
      absl::StrAppend(&text, "\n", done.request_id, done.outcome);
    }
    for (const v1::Plan& plan : job.plans) {
      absl::StrAppend(&text, "\n", plan.plan(), " ", plan.reason(),
                      plan == PlanOf(static_cast<int64_t>(plan.plan())));
    }
    for (int64_t version = 1; version <= job.version; ++version) {
      const absl::StatusOr<Placement> placement = store.ReadPlacement(job.job, version);
      absl::StrAppend(&text, placement.ok() ? DigestOf(*placement).Hex() : "none");
    }
    for (const v1::JobEvent& stored :
         store.ReadEvents(job.job, 1000, 0).value_or(std::vector<v1::JobEvent>())) {
      absl::StrAppend(&text, "\n", stored.sequence(), " ", stored.unix_micros(), stored.name(),
                      stored.version(), stored.reason(), stored.actor());
    }
  }
  for (const StoredWindow& window : store.ReadWindows().value_or(std::vector<StoredWindow>())) {
    absl::StrAppend(&text, kWindows, window.job,
                    window == WindowOf(window.job, static_cast<int64_t>(window.figures.window())));
  }
  return text;
}

void Fill(Store& store) {
  ASSERT_TRUE(store.WriteTerm(41).ok());
  for (const char* name : {"a", "job-b"}) {
    for (int64_t version = 1; version <= 3; ++version) {
      core::StoredJob job = JobOf(name, version, static_cast<int32_t>(version));
      job.memory.settings["min_gain"] = 0.25;
      job.memory.settings["name"] = "balanced";
      job.memory.paused = true;
      job.memory.pause_reason = "for the night";
      job.done = core::DoneRequest{absl::StrCat("id-", version), "paused by ann"};
      ASSERT_TRUE(store.WriteJob(job).ok());
      ASSERT_TRUE(store.WritePlan(name, PlanOf(version)).ok());
      ASSERT_TRUE(store.AppendEvent(absl::FromUnixSeconds(version), EventOf(name, version)).ok());
      const int64_t number = 10 * version + (name == std::string("a") ? 1 : 100);
      ASSERT_TRUE(store.WriteWindows(std::vector{WindowOf(name, number)}).ok());
    }
  }
}

class DamageTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::unique_ptr<Store> store = *MakeSqliteStore(path_);
    Fill(*store);
    content_ = ContentOf(*store);
    store->Close();
    bytes_ = ReadFile(path_);
    ASSERT_FALSE(bytes_.empty());
    const std::unique_ptr<Store> fresh = *MakeSqliteStore(folder_.File("fresh.db"));
    empty_ = ContentOf(*fresh);
  }
  // Opens what `damaged` is; true when it was moved aside. Fails the test when anything but the
  // content or an empty store is served, and when the damaged bytes are lost.
  bool OpenDamaged(const std::string& damaged, const std::string& what) {
    WriteFile(path_, damaged);
    const absl::StatusOr<std::unique_ptr<Store>> store = MakeSqliteStore(path_);
    EXPECT_TRUE(store.ok()) << what << ": " << store.status();
    if (!store.ok()) return false;
    const bool moved = absl::StrContains((*store)->opening_note(), "moved aside");
    const bool lost_windows = !moved && !(*store)->opening_note().empty();
    const std::string content = content_.substr(0, lost_windows ? content_.find(kWindows) : -1);
    EXPECT_EQ(ContentOf(**store), moved ? empty_ : content) << what;
    (*store)->Close();
    const std::vector<std::string> aside = folder_.Matching("eplbd.db.corrupt-");
    EXPECT_EQ(aside.size(), moved ? 1 : 0) << what;
    for (const std::string& name : aside) std::filesystem::remove(folder_.File(name));
    std::filesystem::remove(path_);
    return moved;
  }

  const Folder folder_;
  const std::string path_ = folder_.File("eplbd.db");
  std::string content_;
  std::string empty_;
  std::string bytes_;
};

TEST_F(DamageTest, AFlippedByteIsHarmlessOrTheFileIsMovedAside) {
  std::mt19937 random(kSeed);
  int moved = 0;
  for (int i = 0; i < kFlips; ++i) {
    std::string damaged = bytes_;
    // Every byte of the header and of the schema's page once, then anywhere.
    const size_t offset = i < 100 ? static_cast<size_t>(i) : random() % bytes_.size();
    const int mask = 1 + static_cast<int>(random() % 255);
    damaged[offset] = static_cast<char>(damaged[offset] ^ mask);
    moved += OpenDamaged(damaged, absl::StrCat("byte ", offset, " ^ ", mask)) ? 1 : 0;
    if (HasFailure()) return;
  }
  EXPECT_GT(moved, kFlips / 20);
}

TEST_F(DamageTest, ATruncatedFileIsMovedAside) {
  std::mt19937 random(kSeed);
  for (int i = 0; i < kTruncations; ++i) {
    // An empty file is a new store: there is nothing to move.
    const size_t length = 1 + random() % (bytes_.size() - 1);
    EXPECT_TRUE(OpenDamaged(bytes_.substr(0, length), absl::StrCat("length ", length)));
    if (HasFailure()) return;
  }
}

TEST_F(DamageTest, AFileThatIsNoDatabaseIsMovedAsideWithItsBytesAndTheNoteSaysWhere) {
  const std::string text(8192, 'x');
  WriteFile(path_, text);
  const std::unique_ptr<Store> store = *MakeSqliteStore(path_);
  const std::vector<std::string> aside = folder_.Matching("eplbd.db.corrupt-2");
  ASSERT_EQ(aside.size(), 1);
  EXPECT_EQ(ReadFile(folder_.File(aside[0])), text);
  EXPECT_THAT(store->opening_note(), HasSubstr(aside[0]));
  EXPECT_THAT(store->opening_note(), HasSubstr("file is not a database"));
  ASSERT_TRUE(store->WriteTerm(3).ok());
}

TEST_F(DamageTest, TheWriteAheadLogOfADamagedDatabaseGoesWithIt) {
  WriteFile(path_, bytes_.substr(0, bytes_.size() / 2));
  WriteFile(path_ + "-wal", "log");
  const std::unique_ptr<Store> store = *MakeSqliteStore(path_);
  EXPECT_FALSE(store->opening_note().empty());
  EXPECT_EQ(ContentOf(*store), empty_);
}

TEST_F(DamageTest, AFlippedByteInTheLogLosesOnlyTheNewestWrites) {
  std::mt19937 random(kSeed);
  WriteFile(path_, bytes_);
  {
    const std::unique_ptr<Store> store = *MakeSqliteStore(path_);
    for (int64_t version = 4; version < 9; ++version) {
      ASSERT_TRUE(store->WriteJob(JobOf("a", version)).ok());
    }
    // A crash: the log stays as it is.
    std::filesystem::copy(path_, folder_.File("crashed.db"));
    std::filesystem::copy(path_ + "-wal", folder_.File("crashed.db-wal"));
  }
  const std::string log = ReadFile(folder_.File("crashed.db-wal"));
  ASSERT_GT(log.size(), 4096);
  for (int i = 0; i < 50; ++i) {
    const Folder folder;
    std::string damaged = log;
    damaged[random() % log.size()] ^= 0x10;
    WriteFile(folder.File("eplbd.db"), ReadFile(folder_.File("crashed.db")));
    WriteFile(folder.File("eplbd.db-wal"), damaged);
    const std::unique_ptr<Store> store = *MakeSqliteStore(folder.File("eplbd.db"));
    const std::vector<core::StoredJob> jobs = *store->ReadJobs();
    if (!store->opening_note().empty()) continue;
    ASSERT_EQ(jobs.size(), 2);
    EXPECT_GE(jobs[0].version, 3);
    EXPECT_LE(jobs[0].version, 8);
    EXPECT_EQ(jobs[0].next_version, jobs[0].version + 7);
  }
}

TEST_F(DamageTest, AnAlteredCellIsFoundByItsChecksum) {
  for (const char* sql :
       {"UPDATE rows SET value = x'00' WHERE key = 'job/a/record'",
        "UPDATE rows SET value = x'00' WHERE key LIKE 'job/a/placement/%1/%'",
        "UPDATE rows SET value = x'33' WHERE key = 'term'",
        "UPDATE rows SET value = x'00' WHERE key LIKE 'job/a/plan/%'",
        "UPDATE rows SET key = 'job/a/request/1' WHERE key LIKE 'job/a/request/%1'",
        "UPDATE rows SET key = key || '0' WHERE key LIKE 'event/a/%1'",
        "DELETE FROM rows WHERE key LIKE 'job/a/placement/%3/%'",
        "DELETE FROM rows WHERE key = 'file_schema'", "PRAGMA user_version = 99",
        "PRAGMA application_id = 1", "CREATE TABLE more(x)"}) {
    WriteFile(path_, bytes_);
    ASSERT_TRUE(sqlite::Connection::Open(path_, false)->Execute(sql).ok()) << sql;
    EXPECT_TRUE(OpenDamaged(ReadFile(path_), sql)) << sql;
  }
}

// No file of this process may grow beyond `bytes` while it lives.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) {
    (void)std::signal(SIGXFSZ, SIG_IGN);
    (void)getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit = {.rlim_cur = bytes, .rlim_max = before_.rlim_max};
    (void)setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FullDisk() { (void)setrlimit(RLIMIT_FSIZE, &before_); }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

 private:
  rlimit before_ = {};
};

TEST(FullDiskTest, WritesFailWholeReadsGoOnAndWritesComeBackWithTheSpace) {
  const Folder folder;
  const std::unique_ptr<Store> store = *MakeSqliteStore(folder.File("eplbd.db"));
  Fill(*store);
  const std::string before = ContentOf(*store);
  {
    const FullDisk full(std::filesystem::file_size(folder.File("eplbd.db-wal")));
    core::StoredJob job = JobOf("a", 9, 40);
    job.done = core::DoneRequest{"late", "done"};
    EXPECT_TRUE(absl::IsUnavailable(store->WriteJob(job)));
    EXPECT_TRUE(absl::IsUnavailable(store->AppendEvent(absl::UnixEpoch(), EventOf("a", 1))));
    EXPECT_EQ(ContentOf(*store), before);
  }
  EXPECT_EQ(ContentOf(*store), before);
  EXPECT_TRUE(store->WriteJob(JobOf("a", 9)).ok());
}

TEST(FullDiskTest, AStoreOpensOnAFullDisk) {
  const Folder folder;
  const std::string path = folder.File("eplbd.db");
  Fill(**MakeSqliteStore(path));
  const FullDisk full(std::filesystem::file_size(path));
  const absl::StatusOr<std::unique_ptr<Store>> store = MakeSqliteStore(path);
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_EQ((*store)->ReadJobs()->size(), 2);
  EXPECT_EQ(*(*store)->ReadTerm(), 41);
}

}  // namespace
}  // namespace eplb
