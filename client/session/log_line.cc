#include "client/session/log_line.h"

#include <unistd.h>

#include <algorithm>

namespace eplb {

void LogLine(std::string_view text) {
  std::string line = "eplb: ";
  line += text;
  std::replace(line.begin(), line.end(), '\n', ' ');
  line += '\n';
  // A stderr that cannot be written leaves nobody to tell.
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
}

void LogOnce::Log(const std::string& text) {
  if (seen_.size() >= kMaxTexts || !seen_.insert(text).second) return;
  LogLine(text);
}

}  // namespace eplb
