#include "client/line_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

#include "client/session/log_line.h"

namespace eplb {

absl::StatusOr<LineFile> LineFile::Open(const std::string& path) {
  LineFile file;
  file.path_ = path;
  file.descriptor_ = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file.descriptor_ < 0) {
    return absl::UnavailableError(absl::StrCat(path, ": ", std::strerror(errno)));
  }
  return file;
}

LineFile::LineFile(LineFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      told_(other.told_.load()) {}

LineFile& LineFile::operator=(LineFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  told_ = other.told_.load();
  return *this;
}

LineFile::~LineFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

absl::Status LineFile::Clear() {
  if (descriptor_ < 0 || ftruncate(descriptor_, 0) == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(path_, ": ", std::strerror(errno)));
}

void LineFile::Write(std::string line) {
  if (descriptor_ < 0) return;
  line += '\n';
  const ssize_t written = write(descriptor_, line.data(), line.size());
  if (written == static_cast<ssize_t>(line.size()) || told_.exchange(true)) return;
  LogLine(absl::StrCat(path_, ": a line could not be written: ",
                       written < 0 ? std::strerror(errno) : "the file system is full"));
}

}  // namespace eplb
