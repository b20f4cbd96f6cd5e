// Reads whole files, and writes them through a temporary file and a rename.
#include "base/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

#include "base/errors.h"
#include "base/file_size_signal.h"
#include "base/status_macros.h"

namespace eplb {
namespace {

absl::Status ReadError(const std::string& path, int error) {
  const std::string message = absl::StrCat(path, ": ", std::strerror(error));
  if (error == ENOENT || error == ENOTDIR) return NotFound(message);
  if (error == EACCES || error == EPERM) return PermissionDenied(message);
  return InvalidInput(message);
}

absl::Status NotRegular(const std::string& path, mode_t mode) {
  return InvalidInput(path, ": is ", S_ISDIR(mode) ? "a directory" : "not a regular file");
}

absl::Status SystemError(const std::string& path, const char* what) {
  return Internal(path, ": cannot ", what, ": ", std::strerror(errno));
}

// Returns the target of a link, which is replaced while the link stays; other paths unchanged.
std::string FollowLinks(const std::string& path) {
  struct stat info = {};
  if (lstat(path.c_str(), &info) != 0 || !S_ISLNK(info.st_mode)) return path;
  const std::unique_ptr<char, decltype(&std::free)> target(realpath(path.c_str(), nullptr),
                                                           &std::free);
  return target == nullptr ? path : std::string(target.get());
}

// Returns the mode of the new file. Sets umask, because it cannot be read otherwise.
absl::StatusOr<mode_t> ModeFor(const std::string& path) {
  struct stat info = {};
  if (stat(path.c_str(), &info) == 0) {
    if (S_ISREG(info.st_mode)) return info.st_mode & 07777;
    return NotRegular(path, info.st_mode);
  }
  const mode_t mask = umask(0);
  umask(mask);
  return 0666 & ~mask;
}

absl::Status WriteAll(int file, const std::string& path, std::string_view content) {
  const WithoutFileSizeSignal guard;
  while (!content.empty()) {
    const ssize_t written = write(file, content.data(), content.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return SystemError(path, "write");
    content.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

absl::Status Fill(int file, const std::string& path, mode_t mode, std::string_view content) {
  EPLB_RETURN_IF_ERROR(WriteAll(file, path, content));
  if (fchmod(file, mode) != 0) return SystemError(path, "set the mode");
  if (fsync(file) != 0) return SystemError(path, "flush");
  return absl::OkStatus();
}

// Flushes the directory, which holds the new name. Ignores errors, because some file systems cannot
// flush a directory, and the rename itself has succeeded.
void FlushDirectory(const std::string& directory) {
  const int file = open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (file < 0) return;
  (void)fsync(file);
  (void)close(file);
}

}  // namespace

absl::StatusOr<std::string> ReadRegularFile(const std::string& path, int64_t max_bytes) {
  // O_NONBLOCK, because opening a pipe must not wait for its writer.
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return ReadError(path, errno);
  const absl::Cleanup close_file = [file] { (void)close(file); };
  struct stat info = {};
  if (fstat(file, &info) != 0) return ReadError(path, errno);
  if (!S_ISREG(info.st_mode)) return NotRegular(path, info.st_mode);
  if (info.st_size > max_bytes) {
    return InvalidInput(path, ": has ", static_cast<int64_t>(info.st_size), " bytes, at most ",
                        max_bytes, " are read");
  }
  std::string bytes(static_cast<size_t>(info.st_size), '\0');
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got = read(file, bytes.data() + done, bytes.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ReadError(path, errno);
    if (got == 0) break;  // the file has become shorter
    done += static_cast<size_t>(got);
  }
  bytes.resize(done);
  return bytes;
}

std::vector<TextLine> SplitLines(std::string_view text) {
  std::vector<TextLine> lines;
  int64_t number = 0;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    TextLine line{.number = ++number,
                  .text = text.substr(0, end),
                  .has_newline = end != std::string_view::npos};
    text.remove_prefix(line.has_newline ? end + 1 : text.size());
    if (line.text.ends_with('\r')) line.text.remove_suffix(1);
    if (line.text.find_first_not_of(" \t\r") != std::string_view::npos) lines.push_back(line);
  }
  return lines;
}

absl::Status InFile(const std::string& path, const absl::Status& status) {
  return {status.code(), absl::StrCat(path, ": ", status.message())};
}

absl::Status InLine(const std::string& path, int64_t line, const absl::Status& status) {
  absl::string_view message = status.message();
  absl::ConsumePrefix(&message, "line 1, ");
  return {status.code(), absl::StrCat(path, ": line ", line, ": ", message)};
}

absl::Status WriteFileAtomically(const std::string& name, std::string_view content) {
  const std::string path = FollowLinks(name);
  EPLB_ASSIGN_OR_RETURN(const mode_t mode, ModeFor(path));
  const size_t slash = path.rfind('/');
  const std::string directory = slash == std::string::npos ? "./" : path.substr(0, slash + 1);
  std::string temporary = absl::StrCat(directory, ".eplb-write.XXXXXX");
  const int file = mkostemp(temporary.data(), O_CLOEXEC);
  if (file < 0) return SystemError(path, "create a file beside it");
  absl::Status status = Fill(file, path, mode, content);
  if (close(file) != 0 && status.ok()) status = SystemError(path, "close");
  if (status.ok() && rename(temporary.c_str(), path.c_str()) != 0) {
    status = SystemError(path, "rename");
  }
  if (!status.ok()) {
    (void)unlink(temporary.c_str());
    return status;
  }
  FlushDirectory(directory);
  return absl::OkStatus();
}

}  // namespace eplb
