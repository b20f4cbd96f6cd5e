// The keys of a store in a SQLite file, where they survive a kill and a power cut, and the opening
// of that file.
#include <mutex>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/status_macros.h"
#include "server/store/database_file.h"
#include "server/store/file_lock.h"
#include "server/store/keys.h"
#include "server/store/opening.h"
#include "server/store/sqlite.h"
#include "server/store/sqlite_rows.h"
#include "server/store/store.h"

namespace eplb {
namespace {

constexpr char kHasIt[] = "has this store open";

// A database that this process alone writes, or only reads while it cannot be written.
class SqliteKeyValues : public KeyValues {
 public:
  // lock: absent if no lock file can be made; the database is then only read.
  SqliteKeyValues(std::string path, std::optional<FileLock> lock)
      : path_(std::move(path)), lock_(std::move(lock)) {}

  // Opens the file to write, or to read if it cannot be written. errors: those of OpenToWrite.
  absl::Status Open() {
    EPLB_ASSIGN_OR_RETURN(file_, DatabaseFile::Open(path_));
    if (!lock_) return OpenReader();
    EPLB_RETURN_IF_ERROR(file_->Lock());
    RestrictToOwner(path_);
    const absl::Status opened = OpenWriter();
    return absl::IsUnavailable(opened) && OpenReader().ok() ? absl::OkStatus() : opened;
  }

  // Gives the damaged file a new name. Returns it.
  absl::StatusOr<std::string> MoveAside() {
    reader_.reset();
    writer_.reset();  // last, which puts its log into the file
    return eplb::MoveAside(path_);
  }

  const std::string& path() const { return path_; }
  bool can_write() const { return writer_.has_value(); }

  // Uses the reader's connection, so that a read never waits for a writer's fsync.
  absl::Status Read(const Reads& read) const override {
    const std::lock_guard lock(reader_mutex_);
    if (!reader_) return StoreClosed();
    return reader_->Transact(sqlite::kReadOnly, [&] {
      const sqlite::ConnectionReader reader(&*reader_);
      read(reader);
      return reader.status();
    });
  }

  absl::Status Write(const Makes& make) override {
    const std::lock_guard lock(writer_mutex_);
    EPLB_RETURN_IF_ERROR(EnsureWriter());
    return writer_->Transact(sqlite::kToWrite, [&]() -> absl::Status {
      const sqlite::ConnectionReader reader(&*writer_);
      const std::vector<Batch> batches = make(reader);
      EPLB_RETURN_IF_ERROR(reader.status());
      for (const Batch& batch : batches) EPLB_RETURN_IF_ERROR(sqlite::ApplyBatch(*writer_, batch));
      return absl::OkStatus();
    });
  }

  absl::Status Check() override {
    const std::lock_guard lock(writer_mutex_);
    return file_->CheckPath();
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
  absl::Status OpenReader() {
    EPLB_ASSIGN_OR_RETURN(sqlite::Connection reader, OpenToRead(path_));
    EPLB_ASSIGN_OR_RETURN(read_term_, TermIn(reader));
    reader_.emplace(std::move(reader));
    return absl::OkStatus();
  }

  // REQUIRES: both locks are held, and writer_mutex_ once the store is open.
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

  // Each write retries to open a database that could only be read. A lock that this store holds
  // still protects the database, because it was never given up. REQUIRES: writer_mutex_.
  absl::Status EnsureWriter() {
    if (closed_) return StoreClosed();
    EPLB_RETURN_IF_ERROR(file_->CheckPath());
    if (writer_) return absl::OkStatus();
    if (lock_) return OpenWriter();
    absl::StatusOr<FileLock> lock = FileLock::Acquire(path_, kHasIt);
    if (!lock.ok()) return Unavailable(lock.status().message());
    EPLB_RETURN_IF_ERROR(file_->Lock());
    if (absl::Status opened = OpenWriter(); !opened.ok()) {
      file_->Unlock();
      return opened;
    }
    lock_.emplace(*std::move(lock));
    return absl::OkStatus();
  }

  static absl::StatusOr<std::string> TermIn(sqlite::Connection& connection) {
    const sqlite::ConnectionReader reader(&connection);
    const std::optional<std::string> term = reader.Get(kTermKey);
    EPLB_RETURN_IF_ERROR(reader.status());
    return term.value_or("0");
  }

  // Without a lock another daemon may have written rows that this daemon has not read. It wrote its
  // term first.
  absl::Status CheckNobodyLed(sqlite::Connection& writer) const {
    EPLB_ASSIGN_OR_RETURN(const std::string now, TermIn(writer));
    if (now == read_term_) return absl::OkStatus();
    return Unavailable(path_, ": another eplbd led here since this one read it (term ", now,
                       ", was ", read_term_, "); restart this one");
  }

  const std::string path_;
  std::optional<FileLock> lock_;      // given up last; guarded by writer_mutex_
  std::optional<DatabaseFile> file_;  // closed after the connections
  std::string read_term_;             // term that was read without a lock
  std::mutex writer_mutex_;
  std::optional<sqlite::Connection> writer_;  // guarded by writer_mutex_
  bool closed_ = false;                       // guarded by writer_mutex_
  mutable std::mutex reader_mutex_;
  mutable std::optional<sqlite::Connection> reader_;  // guarded by reader_mutex_
};

// Opens the database and reads all of it. errors: DataLoss if anything but load windows and typical
// loads is damaged.
absl::Status OpenSound(SqliteKeyValues& rows, Store& store) {
  EPLB_RETURN_IF_ERROR(rows.Open());
  if (rows.can_write()) {
    EPLB_ASSIGN_OR_RETURN(const std::string dropped, store.DropDamagedHistory());
    if (!dropped.empty()) {
      store.set_opening_note(absl::StrCat(rows.path(), ": ", dropped,
                                          " were damaged and are deleted; nothing else is lost"));
    }
  }
  EPLB_ASSIGN_OR_RETURN(const std::vector<std::string> unreadable, store.Load());
  return unreadable.empty() ? absl::OkStatus() : DataLoss(unreadable.front());
}

}  // namespace

absl::StatusOr<std::unique_ptr<Store>> MakeSqliteStore(const std::string& given_path,
                                                       StoreLimits limits) {
  const std::string path = CanonicalPath(given_path);
  EPLB_RETURN_IF_ERROR(CheckNotForeign(path));
  absl::StatusOr<FileLock> lock = FileLock::Acquire(path, kHasIt);
  const bool no_lock = absl::IsPermissionDenied(lock.status());
  if (!no_lock) EPLB_RETURN_IF_ERROR(lock.status());
  auto owned = std::make_unique<SqliteKeyValues>(
      path, no_lock ? std::nullopt : std::optional(*std::move(lock)));
  SqliteKeyValues& rows = *owned;
  auto store = std::make_unique<Store>(std::move(owned),
                                       StoreOptions{.limits = limits, .where = path + ": row "});
  absl::Status opened = OpenSound(rows, *store);
  if (no_lock && absl::IsUnavailable(opened)) return Unavailable(lock.status().message());
  if (!no_lock && absl::IsDataLoss(opened)) {
    const std::string damage(opened.message());
    EPLB_ASSIGN_OR_RETURN(const std::string aside, rows.MoveAside());
    store->set_opening_note(
        absl::StrCat(damage, "; moved aside to ", aside,
                     ", the store starts empty and the ranks will report what runs"));
    opened = OpenSound(rows, *store);
  }
  EPLB_RETURN_IF_ERROR(opened);
  return store;
}

}  // namespace eplb
