// The store in SQLite: in one file, where it survives a kill and a power cut, or in memory.
#include <algorithm>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "placement/digest.h"
#include "server/store/checked_rows.h"
#include "server/store/database_file.h"
#include "server/store/file_lock.h"
#include "server/store/opening.h"
#include "server/store/sqlite.h"
#include "server/store/store.h"
#include "server/store/tables.h"
#include "server/store/value_rows.h"

namespace eplb {
namespace {

using sqlite::Row;

constexpr char kHasIt[] = "has this store open";
constexpr char kInMemory[] = ":memory:";  // SQLite's name of a database that ends with it

// Removes the rows of a job beyond the newest `keep` in the order of `column`.
absl::Status Trim(sqlite::Connection& connection, const std::string& table,
                  const std::string& column, const std::string& job, int32_t keep) {
  return connection.Run(
      absl::StrCat("DELETE FROM ", table, " WHERE job = ?1 AND ", column, " <= (SELECT ", column,
                   " FROM ", table, " WHERE job = ?1 ORDER BY ", column,
                   " DESC LIMIT 1 OFFSET ?2)"),
      {job, keep});
}

// Removes the oldest events of operators, or of the daemon and the ranks, beyond the newest `keep`.
// of: "job = ?1", or another condition on the events that count together.
absl::Status TrimEvents(sqlite::Connection& connection, const std::string& of,
                        const std::string& job, bool by_operator, int32_t keep) {
  const std::string events = absl::StrCat("events WHERE ", of, " AND by_operator = ?2");
  return connection.Run(
      absl::StrCat("DELETE FROM ", events, " AND sequence <= (SELECT sequence FROM ", events,
                   " ORDER BY sequence DESC LIMIT 1 OFFSET ?3)"),
      {job, int64_t{by_operator}, keep});
}

class SqliteStore : public Store {
 public:
  // A database that this process alone writes. writer: none while it can only be read.
  struct Opened {
    std::string path;
    // Absent if no lock file can be made. The database is then only read, and `unlocked_term` is
    // the term in it.
    std::optional<FileLock> lock = {};
    int64_t unlocked_term = 0;
    std::optional<DatabaseFile> file = {};  // absent in memory
    std::optional<sqlite::Connection> writer = {};
    std::optional<sqlite::Connection> reader = {};  // absent in memory: the writer reads
    std::string note = {};
  };
  SqliteStore(Opened opened, StoreLimits limits)
      : path_(std::move(opened.path)),
        lock_(std::move(opened.lock)),
        unlocked_term_(opened.unlocked_term),
        file_(std::move(opened.file)),
        limits_(limits),
        note_(std::move(opened.note)),
        writer_(std::move(opened.writer)),
        reader_(std::move(opened.reader)) {
    if (file_ && writer_) file_->NoteLog();
  }

  absl::StatusOr<int64_t> ReadTerm() override {
    return Read([](auto& connection) -> absl::StatusOr<int64_t> {
      EPLB_ASSIGN_OR_RETURN(const Leadership leadership, ReadLeadership(connection));
      return leadership.term;
    });
  }

  absl::Status WriteTerm(int64_t term) override {
    return Write([term](sqlite::Connection& writer) -> absl::Status {
      EPLB_ASSIGN_OR_RETURN(Leadership leadership, ReadLeadership(writer));
      leadership.term = std::max(leadership.term, term);
      return InsertLeadership(writer, leadership);
    });
  }

  absl::StatusOr<std::optional<absl::Time>> ReadMovedAside() override {
    return Read([](auto& connection) -> absl::StatusOr<std::optional<absl::Time>> {
      EPLB_ASSIGN_OR_RETURN(const Leadership leadership, ReadLeadership(connection));
      return leadership.moved_aside;
    });
  }

  absl::StatusOr<std::vector<core::StoredJob>> ReadJobs() override { return Read(&ReadAllJobs); }

  absl::Status WriteJob(const core::StoredJob& job) override {
    return Write([&](sqlite::Connection& writer) -> absl::Status {
      if (job.placement) EPLB_RETURN_IF_ERROR(WritePlacement(writer, job));
      EPLB_RETURN_IF_ERROR(Insert(writer, "jobs", "", RowOf(job)));
      if (!job.done) return absl::OkStatus();
      EPLB_RETURN_IF_ERROR(Insert(writer, "requests", "job, request_id, outcome, checksum",
                                  RowOf(job.job, *job.done)));
      return Trim(writer, "requests", "sequence", job.job, limits_.max_requests);
    });
  }

  absl::Status WritePlan(const std::string& job, const core::Plan& plan) override {
    return Write([&](sqlite::Connection& writer) -> absl::Status {
      EPLB_RETURN_IF_ERROR(Insert(writer, "plans", "", RowOf(job, plan)));
      return Trim(writer, "plans", "plan", job, limits_.max_plans);
    });
  }

  absl::Status ForgetJob(const std::string& job) override {
    return Write([&](sqlite::Connection& writer) -> absl::Status {
      for (const char* table : {"jobs", "placements", "plans", "requests", "windows"}) {
        EPLB_RETURN_IF_ERROR(
            writer.Run(absl::StrCat("DELETE FROM ", table, " WHERE job = ?"), {job}));
      }
      // The audit log of jobs that are not known (any more) has one bound for all of them.
      for (const bool by_operator : {false, true}) {
        EPLB_RETURN_IF_ERROR(TrimEvents(writer, "job NOT IN (SELECT job FROM jobs)", job,
                                        by_operator, KeptEvents(by_operator)));
      }
      return absl::OkStatus();
    });
  }

  bool KeepsWindows() const override { return true; }

  absl::Status WriteWindows(std::span<const StoredWindow> windows) override {
    return Write([&](sqlite::Connection& writer) -> absl::Status {
      std::set<std::string> jobs;
      for (const StoredWindow& window : windows) {
        EPLB_ASSIGN_OR_RETURN(
            const int64_t known,
            writer.FirstInteger("SELECT 1 FROM jobs WHERE job = ?", {window.job}));
        if (known == 0) continue;
        EPLB_RETURN_IF_ERROR(Insert(writer, "windows", "", RowOf(window)));
        jobs.insert(window.job);
      }
      for (const std::string& job : jobs) {
        EPLB_RETURN_IF_ERROR(Trim(writer, "windows", "window", job, limits_.max_windows));
      }
      return writer.Run(
          "DELETE FROM windows WHERE window IN (SELECT window FROM windows ORDER BY window LIMIT "
          "max(0, (SELECT count(*) FROM windows) - ?))",
          {limits_.max_windows_of_all});
    });
  }

  absl::StatusOr<std::vector<StoredWindow>> ReadWindows() override { return Read(&ReadAllWindows); }

  absl::StatusOr<Placement> ReadPlacement(const std::string& job, int64_t version) override {
    return Read([&](sqlite::Connection& connection) -> absl::StatusOr<Placement> {
      EPLB_ASSIGN_OR_RETURN(
          sqlite::Statement rows,
          connection.Prepare("SELECT * FROM placements WHERE job = ? AND version = ? "
                             "ORDER BY written LIMIT 1",
                             {job, version}));
      EPLB_ASSIGN_OR_RETURN(std::vector<PlacementRow> found,
                            Collect(std::move(rows), "placements", 0,
                                    [this](const Row& row) { return PlacementRowOf(row, path_); }));
      if (!found.empty()) return std::move(found.front().placement);
      return absl::NotFoundError(
          absl::StrCat("version ", version, " of job ", job, " is not kept"));
    });
  }

  absl::Status AppendEvent(absl::Time time, const core::JobEvent& event) override {
    return Write([&](sqlite::Connection& writer) -> absl::Status {
      Row row = RowOf(StoredEvent{.time = time, .event = event});
      // NULL lets SQLite choose the next sequence. The checksum does not cover it.
      row.front() = sqlite::Cell();
      EPLB_RETURN_IF_ERROR(Insert(writer, "events", "", row, 1));
      const bool by_operator = !event.actor.empty();
      return TrimEvents(writer, "job = ?1", event.job, by_operator, KeptEvents(by_operator));
    });
  }

  absl::StatusOr<std::vector<StoredEvent>> ReadEvents(const std::string& job, int32_t limit,
                                                      int64_t after_sequence) override {
    return ReadEventRows(
        after_sequence == 0
            ? "SELECT * FROM events WHERE job = ? AND sequence > ? ORDER BY sequence DESC LIMIT ?"
            : "SELECT * FROM (SELECT * FROM events WHERE job = ? AND sequence > ? ORDER BY "
              "sequence LIMIT ?) ORDER BY sequence DESC",
        {job, after_sequence, std::max(limit, 0)});
  }

  std::string opening_note() const override { return note_; }

  absl::Status CheckFile() override {
    const std::lock_guard lock(writer_mutex_);
    return CheckPath();
  }

  // The last connection that closes moves the write-ahead log into the database.
  void Close() override {
    {
      const std::lock_guard lock(reader_mutex_);
      reader_.reset();
    }
    const std::lock_guard lock(writer_mutex_);
    closed_ = true;
    writer_.reset();
  }

 private:
  static absl::Status Closed() { return absl::UnavailableError("the store is closed"); }

  int32_t KeptEvents(bool by_operator) const {
    return by_operator ? limits_.max_operator_events : limits_.max_events;
  }
  absl::Status CheckPath() const { return file_ ? file_->CheckPath() : absl::OkStatus(); }

  // Calls `read` with the reader's connection, so that a read of a file never waits for a writer's
  // fsync. In memory there is one connection.
  template <class F>
  auto Read(F read) -> decltype(read(std::declval<sqlite::Connection&>())) {
    const std::lock_guard lock(file_ ? reader_mutex_ : writer_mutex_);
    std::optional<sqlite::Connection>& connection = file_ ? reader_ : writer_;
    if (!connection) return Closed();
    return read(*connection);
  }

  // Calls `write` in a transaction: all of its changes last, or none.
  template <class F>
  absl::Status Write(F write) {
    const std::lock_guard lock(writer_mutex_);
    EPLB_RETURN_IF_ERROR(EnsureWriter());
    EPLB_ASSIGN_OR_RETURN(sqlite::Transaction transaction, sqlite::Transaction::Begin(&*writer_));
    EPLB_RETURN_IF_ERROR(write(*writer_));
    return transaction.Commit();
  }

  absl::StatusOr<std::vector<StoredEvent>> ReadEventRows(std::string_view query,
                                                         const Row& values) {
    return Read([&](auto& connection) -> absl::StatusOr<std::vector<StoredEvent>> {
      EPLB_ASSIGN_OR_RETURN(sqlite::Statement rows, connection.Prepare(query, values));
      return Collect(std::move(rows), "events", 1, &EventOf);
    });
  }

  // Each write retries to open a database that could only be read. A lock that this store holds
  // still protects the database, because it was never given up. REQUIRES: writer_mutex_.
  absl::Status EnsureWriter() {
    if (closed_) return Closed();
    EPLB_RETURN_IF_ERROR(CheckPath());
    if (writer_) return absl::OkStatus();
    if (lock_) return OpenWriter();
    absl::StatusOr<FileLock> lock = FileLock::Acquire(path_, kHasIt);
    if (!lock.ok()) return absl::UnavailableError(lock.status().message());
    EPLB_RETURN_IF_ERROR(file_->Lock());
    if (absl::Status opened = OpenWriter(); !opened.ok()) {
      file_->Unlock();
      return opened;
    }
    lock_.emplace(*std::move(lock));
    return absl::OkStatus();
  }

  // REQUIRES: writer_mutex_, and both locks are held.
  absl::Status OpenWriter() {
    EPLB_ASSIGN_OR_RETURN(sqlite::Connection writer, OpenToWrite(path_));
    if (!lock_) EPLB_RETURN_IF_ERROR(CheckNobodyLed(writer));
    EPLB_ASSIGN_OR_RETURN(sqlite::Connection reader, sqlite::Connection::Open(path_, true));
    writer_.emplace(std::move(writer));
    file_->NoteLog();
    const std::lock_guard lock(reader_mutex_);
    reader_.emplace(std::move(reader));  // the earlier one may not see changes
    return absl::OkStatus();
  }

  // Without a lock another daemon may have written rows that this daemon has not read. It wrote its
  // term first.
  absl::Status CheckNobodyLed(sqlite::Connection& writer) const {
    EPLB_ASSIGN_OR_RETURN(const Leadership now, ReadLeadership(writer));
    if (now.term == unlocked_term_) return absl::OkStatus();
    return absl::UnavailableError(
        absl::StrCat(path_, ": another eplbd led here since this one read it (term ", now.term,
                     ", was ", unlocked_term_, "); restart this one"));
  }

  // Adds the placement to the history unless it is there. Another placement of the same version
  // stays. REQUIRES: job.placement.
  absl::Status WritePlacement(sqlite::Connection& writer, const core::StoredJob& job) const {
    EPLB_ASSIGN_OR_RETURN(
        const int64_t known,
        writer.FirstInteger(
            "SELECT 1 FROM placements WHERE job = ? AND version = ? AND digest = ?",
            {job.job, job.version, sqlite::Bytes{BytesOf(DigestOf(*job.placement))}}));
    if (known != 0) return absl::OkStatus();
    EPLB_ASSIGN_OR_RETURN(
        const int64_t newest,
        writer.FirstInteger("SELECT coalesce(max(written), 0) FROM placements WHERE job = ?",
                            {job.job}));
    EPLB_RETURN_IF_ERROR(Insert(writer, "placements", "", PlacementRowOf(job, newest + 1)));
    return Trim(writer, "placements", "written", job.job, limits_.max_history);
  }

  const std::string path_;
  std::optional<FileLock> lock_;      // given up last; guarded by writer_mutex_
  const int64_t unlocked_term_;       // term that was read without a lock
  std::optional<DatabaseFile> file_;  // closed after the connections
  const StoreLimits limits_;
  const std::string note_;
  std::mutex writer_mutex_;
  std::optional<sqlite::Connection> writer_;  // guarded by writer_mutex_
  bool closed_ = false;                       // guarded by writer_mutex_
  std::mutex reader_mutex_;
  std::optional<sqlite::Connection> reader_;  // guarded by reader_mutex_
};

// Opens a database for reading in a folder that takes no lock. why: the reason.
absl::StatusOr<std::unique_ptr<Store>> OpenUnlocked(const std::string& path, StoreLimits limits,
                                                    const absl::Status& why) {
  absl::StatusOr<DatabaseFile> file = DatabaseFile::Open(path);
  if (!file.ok()) return absl::UnavailableError(why.message());
  absl::StatusOr<sqlite::Connection> reader = OpenToRead(path);
  if (absl::IsUnavailable(reader.status())) return absl::UnavailableError(why.message());
  EPLB_RETURN_IF_ERROR(reader.status());
  EPLB_ASSIGN_OR_RETURN(const Leadership leadership, ReadLeadership(*reader));
  return std::make_unique<SqliteStore>(SqliteStore::Opened{.path = path,
                                                           .unlocked_term = leadership.term,
                                                           .file = *std::move(file),
                                                           .reader = *std::move(reader)},
                                       limits);
}

absl::StatusOr<DatabaseFile> HoldFile(const std::string& path) {
  EPLB_ASSIGN_OR_RETURN(DatabaseFile file, DatabaseFile::Open(path));
  EPLB_RETURN_IF_ERROR(file.Lock());
  RestrictToOwner(path);
  return file;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Store>> MakeMemoryStore(StoreLimits limits) {
  EPLB_ASSIGN_OR_RETURN(sqlite::Connection writer, OpenToWrite(kInMemory));
  return std::make_unique<SqliteStore>(
      SqliteStore::Opened{.path = kInMemory, .writer = std::move(writer)}, limits);
}

absl::StatusOr<std::unique_ptr<Store>> MakeSqliteStore(const std::string& given_path,
                                                       StoreLimits limits) {
  SqliteStore::Opened opened{.path = CanonicalPath(given_path)};
  const std::string path = opened.path;
  EPLB_RETURN_IF_ERROR(CheckNotForeign(path));
  absl::StatusOr<FileLock> lock = FileLock::Acquire(path, kHasIt);
  if (absl::IsPermissionDenied(lock.status())) return OpenUnlocked(path, limits, lock.status());
  EPLB_RETURN_IF_ERROR(lock.status());
  opened.lock.emplace(*std::move(lock));
  EPLB_ASSIGN_OR_RETURN(opened.file, HoldFile(path));
  absl::StatusOr<sqlite::Connection> writer = OpenToWrite(path);
  if (absl::IsDataLoss(writer.status())) {
    const std::string damage(writer.status().message());
    EPLB_ASSIGN_OR_RETURN(const std::string aside, MoveAside(path));
    opened.note = absl::StrCat(damage, "; moved aside to ", aside,
                               ", the store starts empty and the ranks will report what runs");
    EPLB_ASSIGN_OR_RETURN(opened.file, HoldFile(path));
    writer = OpenToWrite(path);
  }
  if (absl::IsUnavailable(writer.status())) {
    absl::StatusOr<sqlite::Connection> reader = OpenToRead(path);
    if (!reader.ok()) return writer.status();
    opened.reader.emplace(*std::move(reader));
    return std::make_unique<SqliteStore>(std::move(opened), limits);
  }
  EPLB_RETURN_IF_ERROR(writer.status());
  EPLB_ASSIGN_OR_RETURN(const bool dropped, DropDamagedWindows(*writer));
  if (dropped) {
    opened.note = absl::StrCat(path,
                               ": the figures of past load windows were damaged and are deleted; "
                               "nothing else is lost");
  }
  EPLB_ASSIGN_OR_RETURN(opened.reader, sqlite::Connection::Open(path, true));
  opened.writer.emplace(*std::move(writer));
  return std::make_unique<SqliteStore>(std::move(opened), limits);
}

}  // namespace eplb
