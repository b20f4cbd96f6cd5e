#include "client/session/log_line.h"

#include <unistd.h>

#include "base/foreign_text.h"

namespace eplb {

void LogLine(std::string_view text) {
  const std::string line = "eplb: " + Printable(text) + "\n";
  // If stderr cannot be written, the line is lost.
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
}

void LogOnce::Log(const std::string& text) {
  if (seen_.size() >= kMaxTexts || !seen_.insert(text).second) return;
  LogLine(text);
}

}  // namespace eplb
