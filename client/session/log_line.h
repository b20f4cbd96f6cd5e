// Messages of the library to the operator of the job: one line on stderr, each text once.
#pragma once

#include <string>
#include <string_view>
#include <unordered_set>

namespace eplb {

// Writes "eplb: <text>\n" to stderr in one write, with the text as Printable makes it.
void LogLine(std::string_view text);

// Logs each distinct text once, at most kMaxTexts of them. Threads: one caller.
class LogOnce {
 public:
  static constexpr size_t kMaxTexts = 64;
  void Log(const std::string& text);

 private:
  std::unordered_set<std::string> seen_;
};

}  // namespace eplb
