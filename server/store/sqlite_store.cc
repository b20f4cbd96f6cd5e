// The store in one SQLite file: what was written survives a kill and a power cut.
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"

#include "placement/digest.h"
#include "placement/status_macros.h"
#include "server/store/placement_bytes.h"
#include "server/store/sqlite.h"
#include "server/store/store.h"

namespace eplb {
namespace {

constexpr int64_t kApplicationId = 0x45504c42;  // "EPLB"
constexpr int64_t kSchemaVersion = 1;

constexpr char kSchema[] = R"(
CREATE TABLE leadership(only INTEGER PRIMARY KEY CHECK (only = 0), term INTEGER NOT NULL) STRICT;
CREATE TABLE jobs(
  job TEXT PRIMARY KEY, version INTEGER NOT NULL, next_version INTEGER NOT NULL,
  placement BLOB NOT NULL, digest BLOB NOT NULL) STRICT;
CREATE TABLE events(
  sequence INTEGER PRIMARY KEY AUTOINCREMENT, unix_micros INTEGER NOT NULL, job TEXT NOT NULL,
  name TEXT NOT NULL, version INTEGER NOT NULL, reason TEXT NOT NULL) STRICT;
CREATE INDEX events_of_job ON events(job, sequence);
)";

// The exclusive right to one database among processes; given up when the process ends, however.
// A file of its own: SQLite's locks on the database would be lost when a second descriptor on the
// database is closed.
class FileLock {
 public:
  static absl::StatusOr<FileLock> Acquire(const std::string& database) {
    const std::string path = database + ".lock";
    const int descriptor = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (descriptor < 0) {
      return absl::UnavailableError(
          absl::StrCat(database, ": cannot open ", path, ": ", std::strerror(errno)));
    }
    FileLock lock(descriptor);
    if (flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
      return absl::UnavailableError(
          absl::StrCat(database, ": another eplbd has this store open (it holds ", path, ")"));
    }
    return lock;
  }
  FileLock(FileLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  FileLock& operator=(FileLock&&) = delete;
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;
  ~FileLock() {
    if (descriptor_ >= 0) (void)close(descriptor_);
  }

 private:
  explicit FileLock(int descriptor) : descriptor_(descriptor) {}
  int descriptor_;
};

absl::StatusOr<int64_t> ReadInteger(sqlite::Connection& connection, std::string_view sql) {
  EPLB_ASSIGN_OR_RETURN(sqlite::Statement statement, connection.Prepare(sql));
  EPLB_ASSIGN_OR_RETURN(const bool row, statement.Step());
  return row ? statement.Integer(0) : 0;
}

absl::Status CreateSchema(sqlite::Connection& connection) {
  return connection.Execute(absl::StrCat("BEGIN IMMEDIATE;", kSchema,
                                         "INSERT INTO leadership VALUES (0, 0);",
                                         "PRAGMA application_id=", kApplicationId,
                                         "; PRAGMA user_version=", kSchemaVersion, "; COMMIT;"));
}

// Makes an empty file ours, or checks that it is ours and sound.
absl::Status Prepare(sqlite::Connection& connection, const std::string& path) {
  EPLB_RETURN_IF_ERROR(
      connection.Execute("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; "
                         "PRAGMA foreign_keys=ON;"));
  EPLB_ASSIGN_OR_RETURN(const std::string check, connection.FirstText("PRAGMA quick_check(1)"));
  if (check != "ok") {
    return absl::DataLossError(absl::StrCat(path, ": the database is damaged: ", check));
  }
  EPLB_ASSIGN_OR_RETURN(const int64_t tables,
                        ReadInteger(connection, "SELECT count(*) FROM sqlite_schema"));
  EPLB_ASSIGN_OR_RETURN(const int64_t id, ReadInteger(connection, "PRAGMA application_id"));
  EPLB_ASSIGN_OR_RETURN(const int64_t version, ReadInteger(connection, "PRAGMA user_version"));
  if (tables == 0 && id == 0) return CreateSchema(connection);
  if (id != kApplicationId) {
    return absl::DataLossError(absl::StrCat(path, ": this is a database of another program"));
  }
  if (version > kSchemaVersion) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": written by a newer eplbd (schema ",
                                                      version, ", this one knows ", kSchemaVersion,
                                                      ")"));
  }
  return absl::OkStatus();
}

class SqliteStore : public Store {
 public:
  SqliteStore(FileLock lock, sqlite::Connection writer, sqlite::Connection reader, std::string path,
              int32_t max_events)
      : lock_(std::move(lock)),
        path_(std::move(path)),
        max_events_(max_events),
        writer_(std::move(writer)),
        reader_(std::move(reader)) {}

  absl::StatusOr<int64_t> ReadTerm() override {
    const std::lock_guard lock(writer_mutex_);
    return ReadInteger(writer_, "SELECT term FROM leadership");
  }

  absl::Status WriteTerm(int64_t term) override {
    const std::lock_guard lock(writer_mutex_);
    EPLB_ASSIGN_OR_RETURN(sqlite::Statement statement,
                          writer_.Prepare("UPDATE leadership SET term = max(term, ?)"));
    return statement.Bind(term).Run();
  }

  absl::StatusOr<std::vector<core::StoredJob>> ReadJobs() override {
    const std::lock_guard lock(writer_mutex_);
    EPLB_ASSIGN_OR_RETURN(
        sqlite::Statement rows,
        writer_.Prepare(
            "SELECT job, version, next_version, placement, digest FROM jobs ORDER BY job"));
    std::vector<core::StoredJob> jobs;
    for (;;) {
      EPLB_ASSIGN_OR_RETURN(const bool row, rows.Step());
      if (!row) return jobs;
      EPLB_ASSIGN_OR_RETURN(core::StoredJob job, JobOf(rows));
      jobs.push_back(std::move(job));
    }
  }

  absl::Status WriteJob(const core::StoredJob& job) override {
    const Digest digest = DigestOf(job.placement);
    const std::lock_guard lock(writer_mutex_);
    EPLB_ASSIGN_OR_RETURN(sqlite::Statement statement,
                          writer_.Prepare("INSERT OR REPLACE INTO jobs VALUES (?, ?, ?, ?, ?)"));
    statement.BindText(job.job).Bind(job.version).Bind(job.next_version);
    statement.BindBytes(PlacementToBytes(job.placement));
    statement.BindBytes({digest.bytes.begin(), digest.bytes.end()});
    return statement.Run();
  }

  absl::Status AppendEvent(absl::Time time, const core::JobEvent& event) override {
    const std::lock_guard lock(writer_mutex_);
    EPLB_RETURN_IF_ERROR(writer_.Execute("BEGIN IMMEDIATE"));
    absl::Status status = InsertEvent(time, event);
    if (status.ok()) status = writer_.Execute("COMMIT");
    if (!status.ok()) (void)writer_.Execute("ROLLBACK");
    return status;
  }

  // On a connection of its own, so that a reader never waits for a writer's fsync.
  absl::StatusOr<std::vector<StoredEvent>> ReadEvents(const std::string& job,
                                                      int32_t limit) override {
    const std::lock_guard lock(reader_mutex_);
    EPLB_ASSIGN_OR_RETURN(
        sqlite::Statement rows,
        reader_.Prepare("SELECT sequence, unix_micros, job, name, version, reason FROM events "
                        "WHERE job = ? ORDER BY sequence DESC LIMIT ?"));
    rows.BindText(job).Bind(std::max(limit, 0));
    std::vector<StoredEvent> events;
    for (;;) {
      EPLB_ASSIGN_OR_RETURN(const bool row, rows.Step());
      if (!row) return events;
      events.push_back({.sequence = rows.Integer(0),
                        .time = absl::FromUnixMicros(rows.Integer(1)),
                        .event = {.job = rows.Bytes(2),
                                  .name = rows.Bytes(3),
                                  .version = rows.Integer(4),
                                  .reason = rows.Bytes(5)}});
    }
  }

 private:
  absl::StatusOr<core::StoredJob> JobOf(const sqlite::Statement& row) const {
    const std::string job = row.Bytes(0);
    absl::StatusOr<Placement> placement = PlacementFromBytes(row.Bytes(3));
    if (!placement.ok()) {
      return absl::DataLossError(
          absl::StrCat(path_, ": job \"", job, "\": ", placement.status().message()));
    }
    const Digest digest = DigestOf(*placement);
    if (row.Bytes(4) != std::string(digest.bytes.begin(), digest.bytes.end())) {
      return absl::DataLossError(absl::StrCat(path_, ": job \"", job,
                                              "\": the stored placement's digest is not ",
                                              digest.Hex(), ", the digest of its maps"));
    }
    return core::StoredJob{.job = job,
                           .version = row.Integer(1),
                           .next_version = row.Integer(2),
                           .placement = *std::move(placement)};
  }

  absl::Status InsertEvent(absl::Time time, const core::JobEvent& event) {
    EPLB_ASSIGN_OR_RETURN(
        sqlite::Statement insert,
        writer_.Prepare("INSERT INTO events(unix_micros, job, name, version, reason) "
                        "VALUES (?, ?, ?, ?, ?)"));
    insert.Bind(absl::ToUnixMicros(time)).BindText(event.job).BindText(event.name);
    EPLB_RETURN_IF_ERROR(insert.Bind(event.version).BindText(event.reason).Run());
    EPLB_ASSIGN_OR_RETURN(
        sqlite::Statement trim,
        writer_.Prepare("DELETE FROM events WHERE job = ?1 AND sequence <= (SELECT sequence FROM "
                        "events WHERE job = ?1 ORDER BY sequence DESC LIMIT 1 OFFSET ?2)"));
    return trim.BindText(event.job).Bind(max_events_).Run();
  }

  const FileLock lock_;  // given up last
  const std::string path_;
  const int32_t max_events_;
  std::mutex writer_mutex_;
  sqlite::Connection writer_;  // guarded by writer_mutex_
  std::mutex reader_mutex_;
  sqlite::Connection reader_;  // guarded by reader_mutex_
};

}  // namespace

absl::StatusOr<std::unique_ptr<Store>> MakeSqliteStore(const std::string& path,
                                                       int32_t max_events) {
  EPLB_ASSIGN_OR_RETURN(FileLock lock, FileLock::Acquire(path));
  EPLB_ASSIGN_OR_RETURN(sqlite::Connection writer, sqlite::Connection::Open(path, false));
  EPLB_RETURN_IF_ERROR(Prepare(writer, path));
  // A file that can be read but not written is found here, not at the first commit.
  EPLB_RETURN_IF_ERROR(writer.Execute("UPDATE leadership SET term = term"));
  EPLB_ASSIGN_OR_RETURN(sqlite::Connection reader, sqlite::Connection::Open(path, true));
  return std::make_unique<SqliteStore>(std::move(lock), std::move(writer), std::move(reader), path,
                                       max_events);
}

}  // namespace eplb
