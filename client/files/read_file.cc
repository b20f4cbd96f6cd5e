#include "client/files/read_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace eplb {
namespace {

absl::Status ReadError(const std::string& path, int error) {
  const std::string message = absl::StrCat(path, ": ", std::strerror(error));
  if (error == ENOENT || error == ENOTDIR) return absl::NotFoundError(message);
  if (error == EACCES || error == EPERM) return absl::PermissionDeniedError(message);
  return absl::InvalidArgumentError(message);
}

}  // namespace

absl::StatusOr<std::string> ReadRegularFile(const std::string& path, int64_t max_bytes) {
  // O_NONBLOCK: opening a pipe must not wait for its writer.
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return ReadError(path, errno);
  const absl::Cleanup close_file = [file] { (void)close(file); };
  struct stat info = {};
  if (fstat(file, &info) != 0) return ReadError(path, errno);
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": is ", S_ISDIR(info.st_mode) ? "a directory" : "not a regular file"));
  }
  if (info.st_size > max_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": has ",
                                                   static_cast<int64_t>(info.st_size),
                                                   " bytes, at most ", max_bytes, " are read"));
  }
  std::string bytes(static_cast<size_t>(info.st_size), '\0');
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got = read(file, bytes.data() + done, bytes.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ReadError(path, errno);
    if (got == 0) break;  // the file became shorter meanwhile
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

}  // namespace eplb
