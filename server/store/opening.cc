// Opening a database: which file may be opened, how it is checked, and where a damaged one goes.
#include "server/store/opening.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "base/errors.h"
#include "base/status_macros.h"
#include "server/store/schema.h"

namespace eplb {
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

// Without a log beside it the file holds everything, and may be read as if no process could write
// it.
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
  return FailedPrecondition(
      path, ": is not a database of eplbd and stays as it is; choose another store.path");
}

absl::StatusOr<sqlite::Connection> OpenToWrite(const std::string& path) {
  EPLB_ASSIGN_OR_RETURN(sqlite::Connection writer, sqlite::Connection::Open(path, false));
  EPLB_RETURN_IF_ERROR(PrepareDatabase(writer, path));
  return writer;
}

absl::StatusOr<sqlite::Connection> OpenToRead(const std::string& path) {
  EPLB_ASSIGN_OR_RETURN(sqlite::Connection reader, OpenReader(path));
  EPLB_RETURN_IF_ERROR(CheckDatabase(reader, path));
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
    return Unavailable(from, ": damaged, and cannot be moved aside: ", std::strerror(errno));
  }
  return aside;
}

}  // namespace eplb
