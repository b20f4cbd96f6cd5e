// The store in one SQLite file: what was written survives a kill and a power cut.
#include <algorithm>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "placement/digest.h"
#include "server/store/file_lock.h"
#include "server/store/opening.h"
#include "server/store/sqlite.h"
#include "server/store/store.h"
#include "server/store/value_rows.h"

namespace eplb {
namespace {

constexpr char kHasIt[] = "has this store open";

// Removes the rows of a job beyond the newest `keep` in the order of `column`.
absl::Status Trim(sqlite::Connection& connection, const std::string& table,
                  const std::string& column, const std::string& job, int32_t keep) {
  EPLB_ASSIGN_OR_RETURN(
      sqlite::Statement statement,
      connection.Prepare(absl::StrCat(
          "DELETE FROM ", table, " WHERE job = ?1 AND ", column, " <= (SELECT ", column, " FROM ",
          table, " WHERE job = ?1 ORDER BY ", column, " DESC LIMIT 1 OFFSET ?2)")));
  return statement.BindText(job).Bind(keep).Run();
}

// Of a job's events those of operators and the others are kept apart.
absl::Status TrimEvents(sqlite::Connection& connection, const core::JobEvent& event, int32_t keep) {
  EPLB_ASSIGN_OR_RETURN(
      sqlite::Statement statement,
      connection.Prepare("DELETE FROM events WHERE job = ?1 AND by_operator = ?2 AND sequence <= "
                         "(SELECT sequence FROM events WHERE job = ?1 AND by_operator = ?2 "
                         "ORDER BY sequence DESC LIMIT 1 OFFSET ?3)"));
  return statement.BindText(event.job).Bind(int64_t{!event.actor.empty()}).Bind(keep).Run();
}

// The audit log of jobs that are not known (any more) has one bound for all of them.
absl::Status TrimOrphans(sqlite::Connection& connection, bool of_operators, int32_t keep) {
  EPLB_ASSIGN_OR_RETURN(
      sqlite::Statement statement,
      connection.Prepare(
          "DELETE FROM events WHERE job NOT IN (SELECT job FROM jobs) AND by_operator = ?1 AND "
          "sequence <= (SELECT sequence FROM events WHERE job NOT IN (SELECT job FROM jobs) AND "
          "by_operator = ?1 ORDER BY sequence DESC LIMIT 1 OFFSET ?2)"));
  return statement.Bind(int64_t{of_operators}).Bind(keep).Run();
}

// Removes the oldest windows of all jobs beyond the newest `keep`.
absl::Status TrimWindowsOfAll(sqlite::Connection& connection, int32_t keep) {
  EPLB_ASSIGN_OR_RETURN(
      sqlite::Statement statement,
      connection.Prepare("DELETE FROM windows WHERE window IN (SELECT window FROM windows ORDER BY "
                         "window LIMIT max(0, (SELECT count(*) FROM windows) - ?))"));
  return statement.Bind(keep).Run();
}

struct Connections {
  std::optional<sqlite::Connection> writer =
      {};  // none for a database that can only be read by now
  sqlite::Connection reader;
};

class SqliteStore : public Store {
 public:
  // lock: none where none can be made.
  SqliteStore(std::string path, std::optional<FileLock> lock, DatabaseFile file,
              Connections connections, StoreLimits limits, std::string note)
      : path_(std::move(path)),
        lock_(std::move(lock)),
        file_(std::move(file)),
        limits_(limits),
        note_(std::move(note)),
        writer_(std::move(connections.writer)),
        reader_(std::move(connections.reader)) {
    if (writer_) file_.NoteLog();
  }

  // A database that can only be read, where no lock can be made. term: the one in it.
  SqliteStore(std::string path, DatabaseFile file, sqlite::Connection reader, int64_t term,
              StoreLimits limits)
      : path_(std::move(path)),
        unlocked_term_(term),
        file_(std::move(file)),
        limits_(limits),
        reader_(std::move(reader)) {}

  absl::StatusOr<int64_t> ReadTerm() override {
    const std::lock_guard lock(reader_mutex_);
    if (!reader_) return Closed();
    EPLB_ASSIGN_OR_RETURN(const Leadership leadership, ReadLeadership(*reader_));
    return leadership.term;
  }

  absl::Status WriteTerm(int64_t term) override {
    const std::lock_guard lock(writer_mutex_);
    EPLB_RETURN_IF_ERROR(EnsureWriter());
    EPLB_ASSIGN_OR_RETURN(sqlite::Transaction transaction, sqlite::Transaction::Begin(&*writer_));
    EPLB_ASSIGN_OR_RETURN(Leadership leadership, ReadLeadership(*writer_));
    if (term > leadership.term) leadership.term = term;
    EPLB_RETURN_IF_ERROR(InsertLeadership(*writer_, leadership));
    return transaction.Commit();
  }

  absl::StatusOr<std::optional<absl::Time>> ReadMovedAside() override {
    const std::lock_guard lock(reader_mutex_);
    if (!reader_) return Closed();
    EPLB_ASSIGN_OR_RETURN(const Leadership leadership, ReadLeadership(*reader_));
    return leadership.moved_aside;
  }

  absl::StatusOr<std::vector<core::StoredJob>> ReadJobs() override {
    const std::lock_guard lock(reader_mutex_);
    if (!reader_) return Closed();
    return ReadAllJobs(*reader_);
  }

  absl::Status WriteJob(const core::StoredJob& job) override {
    const std::lock_guard lock(writer_mutex_);
    EPLB_RETURN_IF_ERROR(EnsureWriter());
    EPLB_ASSIGN_OR_RETURN(sqlite::Transaction transaction, sqlite::Transaction::Begin(&*writer_));
    if (job.placement) EPLB_RETURN_IF_ERROR(WritePlacement(job));
    EPLB_RETURN_IF_ERROR(InsertJob(*writer_, job));
    if (job.done) {
      EPLB_RETURN_IF_ERROR(InsertRequest(*writer_, job.job, *job.done));
      EPLB_RETURN_IF_ERROR(Trim(*writer_, "requests", "sequence", job.job, limits_.max_requests));
    }
    return transaction.Commit();
  }

  absl::Status WritePlan(const std::string& job, const core::Plan& plan) override {
    const std::lock_guard lock(writer_mutex_);
    EPLB_RETURN_IF_ERROR(EnsureWriter());
    EPLB_ASSIGN_OR_RETURN(sqlite::Transaction transaction, sqlite::Transaction::Begin(&*writer_));
    EPLB_RETURN_IF_ERROR(InsertPlan(*writer_, job, plan));
    EPLB_RETURN_IF_ERROR(Trim(*writer_, "plans", "plan", job, limits_.max_plans));
    return transaction.Commit();
  }

  absl::Status ForgetJob(const std::string& job) override {
    const std::lock_guard lock(writer_mutex_);
    EPLB_RETURN_IF_ERROR(EnsureWriter());
    EPLB_ASSIGN_OR_RETURN(sqlite::Transaction transaction, sqlite::Transaction::Begin(&*writer_));
    for (const char* table : {"jobs", "placements", "plans", "requests", "windows"}) {
      EPLB_ASSIGN_OR_RETURN(
          sqlite::Statement statement,
          writer_->Prepare(absl::StrCat("DELETE FROM ", table, " WHERE job = ?")));
      EPLB_RETURN_IF_ERROR(statement.BindText(job).Run());
    }
    EPLB_RETURN_IF_ERROR(TrimOrphans(*writer_, false, limits_.max_events));
    EPLB_RETURN_IF_ERROR(TrimOrphans(*writer_, true, limits_.max_operator_events));
    return transaction.Commit();
  }

  bool KeepsWindows() const override { return true; }

  absl::Status WriteWindows(std::span<const StoredWindow> windows) override {
    const std::lock_guard lock(writer_mutex_);
    EPLB_RETURN_IF_ERROR(EnsureWriter());
    EPLB_ASSIGN_OR_RETURN(sqlite::Transaction transaction, sqlite::Transaction::Begin(&*writer_));
    std::set<std::string> jobs;
    for (const StoredWindow& window : windows) {
      EPLB_ASSIGN_OR_RETURN(sqlite::Statement known,
                            writer_->Prepare("SELECT 1 FROM jobs WHERE job = ?"));
      EPLB_ASSIGN_OR_RETURN(const bool is_known, known.BindText(window.job).Step());
      if (!is_known) continue;
      EPLB_RETURN_IF_ERROR(InsertWindow(*writer_, window));
      jobs.insert(window.job);
    }
    for (const std::string& job : jobs) {
      EPLB_RETURN_IF_ERROR(Trim(*writer_, "windows", "window", job, limits_.max_windows));
    }
    EPLB_RETURN_IF_ERROR(TrimWindowsOfAll(*writer_, limits_.max_windows_of_all));
    return transaction.Commit();
  }

  absl::StatusOr<std::vector<StoredWindow>> ReadWindows() override {
    const std::lock_guard lock(reader_mutex_);
    if (!reader_) return Closed();
    return ReadAllWindows(*reader_);
  }

  absl::StatusOr<Placement> ReadPlacement(const std::string& job, int64_t version) override {
    const std::lock_guard lock(reader_mutex_);
    if (!reader_) return Closed();
    return ReadOnePlacement(*reader_, job, version);
  }

  absl::Status AppendEvent(absl::Time time, const core::JobEvent& event) override {
    const std::lock_guard lock(writer_mutex_);
    EPLB_RETURN_IF_ERROR(EnsureWriter());
    EPLB_ASSIGN_OR_RETURN(sqlite::Transaction transaction, sqlite::Transaction::Begin(&*writer_));
    EPLB_RETURN_IF_ERROR(InsertEvent(*writer_, {.time = time, .event = event}));
    EPLB_RETURN_IF_ERROR(TrimEvents(
        *writer_, event, event.actor.empty() ? limits_.max_events : limits_.max_operator_events));
    return transaction.Commit();
  }

  // On a connection of its own, so that a reader never waits for a writer's fsync.
  absl::StatusOr<std::vector<StoredEvent>> ReadEvents(const std::string& job, int32_t limit,
                                                      int64_t after_sequence) override {
    const std::lock_guard lock(reader_mutex_);
    if (!reader_) return Closed();
    return ReadSomeEvents(*reader_, job, limit, after_sequence);
  }

  absl::StatusOr<std::vector<StoredEvent>> ReadEventsOfAll(std::optional<int64_t> after_sequence,
                                                           int32_t limit) override {
    const std::lock_guard lock(reader_mutex_);
    if (!reader_) return Closed();
    return ReadEventsOfAllJobs(*reader_, after_sequence, limit);
  }

  std::string opening_note() const override { return note_; }

  absl::Status CheckFile() override {
    const std::lock_guard lock(writer_mutex_);
    return file_.CheckPath();
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

  // A database that could only be read is tried again with every write. With a lock it is still
  // ours, for that was never given up. REQUIRES: writer_mutex_.
  absl::Status EnsureWriter() {
    if (closed_) return Closed();
    EPLB_RETURN_IF_ERROR(file_.CheckPath());
    if (writer_) return absl::OkStatus();
    if (lock_) return OpenWriter();
    absl::StatusOr<FileLock> lock = FileLock::Acquire(path_, kHasIt);
    if (!lock.ok()) return absl::UnavailableError(lock.status().message());
    EPLB_RETURN_IF_ERROR(file_.Lock());
    if (absl::Status opened = OpenWriter(); !opened.ok()) {
      file_.Unlock();
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
    file_.NoteLog();
    const std::lock_guard lock(reader_mutex_);
    reader_.emplace(std::move(reader));  // the one before may not look for changes
    return absl::OkStatus();
  }

  // Without a lock another daemon may have written what ours has not read. Its term came first.
  absl::Status CheckNobodyLed(sqlite::Connection& writer) const {
    EPLB_ASSIGN_OR_RETURN(const Leadership now, ReadLeadership(writer));
    if (now.term == unlocked_term_) return absl::OkStatus();
    return absl::UnavailableError(
        absl::StrCat(path_, ": another eplbd led here since this one read it (term ", now.term,
                     ", was ", unlocked_term_, "); restart this one"));
  }

  // REQUIRES: job.placement. Adds it to the history unless it is there, beside another one of the
  // same number if there is one. The one in force stays, however old.
  absl::Status WritePlacement(const core::StoredJob& job) {
    const Digest digest = DigestOf(*job.placement);
    EPLB_ASSIGN_OR_RETURN(
        sqlite::Statement known,
        writer_->Prepare("SELECT 1 FROM placements WHERE job = ? AND version = ? AND digest = ?"));
    known.BindText(job.job).Bind(job.version);
    known.BindBytes({digest.bytes.begin(), digest.bytes.end()});
    EPLB_ASSIGN_OR_RETURN(const bool there, known.Step());
    if (there) return absl::OkStatus();
    EPLB_ASSIGN_OR_RETURN(
        sqlite::Statement newest,
        writer_->Prepare("SELECT coalesce(max(written), 0) FROM placements WHERE job = ?"));
    EPLB_ASSIGN_OR_RETURN(const bool row, newest.BindText(job.job).Step());
    EPLB_RETURN_IF_ERROR(InsertPlacement(*writer_, job, row ? newest.Integer(0) + 1 : 1));
    return Trim(*writer_, "placements", "written", job.job, limits_.max_history);
  }

  const std::string path_;
  std::optional<FileLock> lock_;     // given up last; guarded by writer_mutex_
  const int64_t unlocked_term_ = 0;  // as it was read without a lock
  DatabaseFile file_;                // closed behind the connections
  const StoreLimits limits_;
  const std::string note_;
  std::mutex writer_mutex_;
  std::optional<sqlite::Connection> writer_;  // guarded by writer_mutex_
  bool closed_ = false;                       // guarded by writer_mutex_
  std::mutex reader_mutex_;
  std::optional<sqlite::Connection> reader_;  // guarded by reader_mutex_
};

// A database in a folder that takes no lock: only to be read. why: there is no lock.
absl::StatusOr<std::unique_ptr<Store>> OpenUnlocked(const std::string& path, StoreLimits limits,
                                                    const absl::Status& why) {
  absl::StatusOr<DatabaseFile> file = DatabaseFile::Open(path);
  if (!file.ok()) return absl::UnavailableError(why.message());
  absl::StatusOr<sqlite::Connection> reader = OpenToRead(path);
  if (absl::IsUnavailable(reader.status())) return absl::UnavailableError(why.message());
  EPLB_RETURN_IF_ERROR(reader.status());
  EPLB_ASSIGN_OR_RETURN(const Leadership leadership, ReadLeadership(*reader));
  return std::make_unique<SqliteStore>(path, *std::move(file), *std::move(reader), leadership.term,
                                       limits);
}

absl::StatusOr<DatabaseFile> HoldFile(const std::string& path) {
  EPLB_ASSIGN_OR_RETURN(DatabaseFile file, DatabaseFile::Open(path));
  EPLB_RETURN_IF_ERROR(file.Lock());
  RestrictToOwner(path);
  return file;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Store>> MakeSqliteStore(const std::string& given_path,
                                                       StoreLimits limits) {
  const std::string path = CanonicalPath(given_path);
  EPLB_RETURN_IF_ERROR(CheckNotForeign(path));
  absl::StatusOr<FileLock> lock = FileLock::Acquire(path, kHasIt);
  if (absl::IsPermissionDenied(lock.status())) return OpenUnlocked(path, limits, lock.status());
  EPLB_RETURN_IF_ERROR(lock.status());
  EPLB_ASSIGN_OR_RETURN(DatabaseFile file, HoldFile(path));
  std::string note;
  absl::StatusOr<sqlite::Connection> writer = OpenToWrite(path);
  if (absl::IsDataLoss(writer.status())) {
    const std::string damage(writer.status().message());
    EPLB_ASSIGN_OR_RETURN(const std::string aside, MoveAside(path));
    note = absl::StrCat(damage, "; moved aside to ", aside,
                        ", the store starts empty and the ranks will report what runs");
    EPLB_ASSIGN_OR_RETURN(file, HoldFile(path));
    writer = OpenToWrite(path);
  }
  if (absl::IsUnavailable(writer.status())) {
    absl::StatusOr<sqlite::Connection> reader = OpenToRead(path);
    if (!reader.ok()) return writer.status();
    return std::make_unique<SqliteStore>(path, *std::move(lock), std::move(file),
                                         Connections{.reader = *std::move(reader)}, limits,
                                         std::move(note));
  }
  EPLB_RETURN_IF_ERROR(writer.status());
  EPLB_ASSIGN_OR_RETURN(const bool dropped, DropDamagedWindows(*writer));
  if (dropped) {
    note = absl::StrCat(path,
                        ": the figures of past load windows were damaged and are deleted; "
                        "nothing else is lost");
  }
  EPLB_ASSIGN_OR_RETURN(sqlite::Connection reader, sqlite::Connection::Open(path, true));
  return std::make_unique<SqliteStore>(path, *std::move(lock), std::move(file),
                                       Connections{*std::move(writer), std::move(reader)}, limits,
                                       std::move(note));
}

}  // namespace eplb
