// The terminal, what a command gives back to it, and how far a long command is.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

namespace eplb::cli {

// The abilities of the terminal on stdout.
struct Terminal {
  int width = 80;        // columns, 60..200
  bool colour = false;   // a terminal, and the user did not ask for none
  bool unicode = false;  // block characters can be shown
};

// Width: COLUMNS, the terminal's width, or 80, in this order. Colour: only on a terminal, not with
// NO_COLOR or TERM=dumb. Unicode: from the first of LC_ALL, LC_CTYPE and LANG that is set.
Terminal DetectTerminal();

enum class Colour { kNone, kBold, kDim, kGreen, kYellow, kRed, kCyan };

// Returns `text` in a colour if the terminal shows colours.
std::string Paint(const Terminal& terminal, Colour colour, std::string_view text);

// Number of columns of a text: its code points without colour sequences.
int DisplayWidth(std::string_view text);

// Scripts rely on these numbers.
enum ExitCode : int {
  kOk = 0,
  kError = 1,
  kUsage = 2,  // wrong flags or unusable input
  kUnreachable = 3,
  kDenied = 4,
  kNotFound = 5,
  kConflict = 6,
  kTimeout = 7,
  kConditionNotMet = 8,
};

// The text for stdout, or the failure that an error is. Like absl::StatusOr it is made from either.
struct Output {
  Output() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): see above
  Output(std::string text) : out(std::move(text)) {}
  Output(int code, std::string text, std::string note)
      : exit_code(code), out(std::move(text)), message(std::move(note)) {}
  // Nothing on stdout, one line on stderr. The exit code is that of an error of the daemon: 2 for
  // InvalidArgument, 5 for NotFound, and so on.
  // NOLINTNEXTLINE(google-explicit-constructor): see above
  Output(const absl::Status& error);

  int exit_code = kOk;
  std::string out;                           // data, for stdout
  std::string message;                       // for stderr, one line without newline; empty: none
  std::optional<absl::Duration> again = {};  // time until the command runs anew (--watch)
  bool lines = false;                        // repeated output is lines for a program, not a screen
  std::function<void()> sort = nullptr;      // key s: the next run has another order
};

enum class Format { kTable, kJson, kTrace };

// An error about files or flags, whose exit code is 2; 1 for Internal, a bug of eplbctl.
absl::Status AsUsage(const absl::Status& status);
template <class Value>
absl::StatusOr<Value> AsUsage(absl::StatusOr<Value> value) {
  if (value.ok()) return value;
  return AsUsage(value.status());
}

// Writes a file unless `path` is empty. The exit code of an error is 1.
absl::Status WriteOutput(const std::string& path, const std::string& content);

// Joins messages, each of which may be empty.
std::string JoinMessages(const std::vector<std::string>& messages);

// Tells what a long command does, in one line on stderr that is overwritten, only on a terminal and
// only after two seconds. The destructor removes it. threads: owns one, which only writes the line.
class Waiting {
 public:
  // "planning", or of a `total` of parts, "window".
  explicit Waiting(std::string what, int64_t total = 0);
  ~Waiting();
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

  void Reached(int64_t done) { reached_ = done; }

 private:
  std::atomic<int64_t> reached_ = 0;
  absl::Notification done_;
  std::thread thread_;
};

}  // namespace eplb::cli
