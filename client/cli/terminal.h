// The terminal, what a command gives back to it, and how far a long command is.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/status/status.h"
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
};

enum class Format { kTable, kJson, kTrace };

// Nothing on stdout, one line on stderr.
Output Failure(int exit_code, const absl::Status& status);
// The failure of an error about files or flags: exit 1 for Internal, a bug of eplbctl; otherwise 2.
Output UsageFailure(const absl::Status& status);

// Joins two messages, either of which may be empty.
std::string JoinMessages(const std::string& first, const std::string& second);

// The progress of a long command: one line on stderr that is overwritten, only on a terminal and
// only after two seconds; the destructor removes it.
class Progress {
 public:
  // "window 120 of 240".
  Progress(std::string what, int64_t total);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void Reached(int64_t done);

 private:
  using Clock = std::chrono::steady_clock;

  const std::string what_;
  const int64_t total_;
  const bool shown_;
  Clock::time_point next_;
  bool written_ = false;
};

// A line with the seconds since the work began, for work whose progress is not known. threads: owns
// one, which only writes the line.
class Waiting {
 public:
  // "planning".
  explicit Waiting(std::string what);
  ~Waiting();
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  absl::Notification done_;
  std::thread thread_;
};

}  // namespace eplb::cli
