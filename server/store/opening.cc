#include "server/store/opening.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "base/status_macros.h"
#include "server/store/schema.h"
#include "server/store/value_rows.h"

namespace eplb {

namespace {

constexpr mode_t kOwnerOnly = 0600;
constexpr mode_t kRightsOfOthers = 077;
constexpr char kReplaced[] =
    ": the database was deleted or replaced under the daemon, so nothing is written any more; stop "
    "the daemon, put the right database there, then start it";

constexpr char kLogReplaced[] =
    ": SQLite's write-ahead log was deleted or replaced under the daemon, so nothing is written "
    "any "
    "more; stop the daemon with SIGTERM, which saves what that log held, then start it";

std::string LogPath(const std::string& path) { return path + "-wal"; }

std::optional<ino_t> InodeOf(const std::string& path) {
  struct stat found {};
  if (stat(path.c_str(), &found) != 0) return std::nullopt;
  return found.st_ino;
}

// The descriptor, or -1 with errno.
int OpenOrCreate(const std::string& path) {
  constexpr int kFlags = O_CLOEXEC | O_NONBLOCK;  // a pipe of this name must not block
  int descriptor = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | kFlags, kOwnerOnly);
  if (descriptor >= 0) {
    (void)fchmod(descriptor, kOwnerOnly);  // whatever the umask is
    return descriptor;
  }
  descriptor = open(path.c_str(), O_RDWR | kFlags);
  return descriptor >= 0 ? descriptor : open(path.c_str(), O_RDONLY | kFlags);
}

}  // namespace

std::string CanonicalPath(const std::string& path) {
  std::error_code error;
  const std::filesystem::path whole = std::filesystem::absolute(path, error);
  const std::filesystem::path canonical =
      error ? std::filesystem::path() : std::filesystem::weakly_canonical(whole, error);
  return error || canonical.empty() ? path : canonical.string();
}

void RestrictToOwner(const std::string& path) {
  for (const char* suffix : {"", "-wal", "-shm", ".lock"}) {
    const std::string name = path + suffix;
    struct stat found {};
    if (lstat(name.c_str(), &found) != 0 || !S_ISREG(found.st_mode)) continue;
    if ((found.st_mode & kRightsOfOthers) == 0) continue;
    (void)chmod(name.c_str(), found.st_mode & ~kRightsOfOthers & 07777);
  }
}

absl::StatusOr<DatabaseFile> DatabaseFile::Open(const std::string& path) {
  const int descriptor = OpenOrCreate(path);
  if (descriptor < 0) {
    return absl::UnavailableError(absl::StrCat(path, ": cannot be opened: ", std::strerror(errno)));
  }
  return DatabaseFile(descriptor, path);
}

DatabaseFile::DatabaseFile(DatabaseFile&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)),
      path_(std::move(other.path_)),
      log_(other.log_) {}

DatabaseFile& DatabaseFile::operator=(DatabaseFile&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(path_, other.path_);
  std::swap(log_, other.log_);
  return *this;
}

DatabaseFile::~DatabaseFile() {
  if (descriptor_ >= 0) (void)close(descriptor_);
}

absl::Status DatabaseFile::Lock() {
  if (flock(descriptor_, LOCK_EX | LOCK_NB) == 0) return absl::OkStatus();
  if (errno != EWOULDBLOCK) return absl::OkStatus();  // no such locks here: `path`.lock guards it
  return absl::UnavailableError(
      absl::StrCat(path_,
                   ": another eplbd has this store open by another name of the file, such as "
                   "a hard link; give each daemon a database of its own"));
}

void DatabaseFile::Unlock() { (void)flock(descriptor_, LOCK_UN); }

void DatabaseFile::NoteLog() { log_ = InodeOf(LogPath(path_)); }

absl::Status DatabaseFile::CheckPath() const {
  struct stat open_one {};
  struct stat named {};
  const bool is_ours = fstat(descriptor_, &open_one) == 0 && stat(path_.c_str(), &named) == 0 &&
                       open_one.st_dev == named.st_dev && open_one.st_ino == named.st_ino;
  if (!is_ours) return absl::UnavailableError(absl::StrCat(path_, kReplaced));
  if (log_ && InodeOf(LogPath(path_)) != log_) {
    return absl::UnavailableError(absl::StrCat(LogPath(path_), kLogReplaced));
  }
  return absl::OkStatus();
}

namespace {

constexpr int kMaxAside = 100;  // damaged files that one second may leave
constexpr char kCorrupt[] = ".corrupt-";
constexpr char kStamp[] = "%E4Y%m%dT%H%M%SZ";
constexpr size_t kStampLength = 16;

bool HasWriteAheadLog(const std::string& path) {
  std::error_code none;
  const std::uintmax_t bytes = std::filesystem::file_size(path + "-wal", none);
  return !none && bytes > 0;
}

// Without a log beside it the file is all there is, and may be read as if nobody could write it.
absl::StatusOr<sqlite::Connection> OpenReader(const std::string& path) {
  absl::StatusOr<sqlite::Connection> reader = sqlite::Connection::Open(path, true);
  absl::Status status = reader.status();
  if (status.ok()) status = reader->FirstInteger("SELECT count(*) FROM sqlite_schema").status();
  if (status.ok()) return reader;
  if (!absl::IsUnavailable(status) || HasWriteAheadLog(path)) return status;
  return sqlite::Connection::OpenImmutable(path);
}

}  // namespace

absl::Status CheckNotForeign(const std::string& path) {
  constexpr std::string_view kMagic("SQLite format 3\0", 16);
  std::error_code none;
  if (!std::filesystem::is_regular_file(path, none)) return absl::OkStatus();
  for (const char* suffix : {".lock", "-wal"}) {
    if (std::filesystem::exists(path + suffix, none)) return absl::OkStatus();
  }
  std::string head(kMagic.size(), '\0');
  std::ifstream stream(path, std::ios::binary);
  stream.read(head.data(), static_cast<std::streamsize>(head.size()));
  const auto size = static_cast<size_t>(stream.gcount());
  // Opening reports a file that cannot be read.
  if (!stream.is_open() || size == 0 || head == kMagic) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      path, ": is not a database of eplbd and stays as it is; choose another store.path"));
}

absl::StatusOr<sqlite::Connection> OpenToWrite(const std::string& path) {
  EPLB_ASSIGN_OR_RETURN(sqlite::Connection writer, sqlite::Connection::Open(path, false));
  EPLB_RETURN_IF_ERROR(PrepareDatabase(writer, path));
  EPLB_RETURN_IF_ERROR(CheckEveryRow(writer));
  return writer;
}

absl::StatusOr<sqlite::Connection> OpenToRead(const std::string& path) {
  EPLB_ASSIGN_OR_RETURN(sqlite::Connection reader, OpenReader(path));
  EPLB_RETURN_IF_ERROR(CheckDatabase(reader, path));
  EPLB_RETURN_IF_ERROR(CheckEveryRow(reader));
  return reader;
}

std::optional<absl::Duration> AgeOf(const std::optional<absl::Time>& moved_aside) {
  if (!moved_aside) return std::nullopt;
  return std::max(absl::Now() - *moved_aside, absl::ZeroDuration());
}

std::optional<absl::Time> MovedAsideAt(const std::string& path) {
  const std::filesystem::path database(path);
  const std::string begin = database.filename().string() + kCorrupt;
  const std::filesystem::path folder =
      database.has_parent_path() ? database.parent_path() : std::filesystem::path(".");
  std::optional<absl::Time> newest;
  std::error_code none;
  std::filesystem::directory_iterator entry(folder, none);
  for (; !none && entry != std::filesystem::directory_iterator(); entry.increment(none)) {
    const std::string name = entry->path().filename().string();
    if (!name.starts_with(begin)) continue;
    absl::Time at;
    std::string error;
    const std::string stamp = name.substr(begin.size(), kStampLength);
    if (!absl::ParseTime(kStamp, stamp, absl::UTCTimeZone(), &at, &error)) continue;
    newest = std::max(at, newest.value_or(at));
  }
  return newest;
}

absl::StatusOr<std::string> MoveAside(const std::string& path) {
  const std::string stamp = absl::FormatTime(kStamp, absl::Now(), absl::UTCTimeZone());
  std::string aside = absl::StrCat(path, kCorrupt, stamp);
  std::error_code ignored;
  for (int n = 2; n <= kMaxAside && std::filesystem::exists(aside, ignored); ++n) {
    aside = absl::StrCat(path, kCorrupt, stamp, "-", n);
  }
  for (const char* suffix : {"", "-wal", "-shm"}) {
    const std::string from = path + suffix;
    if (std::rename(from.c_str(), (aside + suffix).c_str()) == 0 || errno == ENOENT) continue;
    return absl::UnavailableError(
        absl::StrCat(from, ": damaged, and cannot be moved aside: ", std::strerror(errno)));
  }
  return aside;
}

}  // namespace eplb
