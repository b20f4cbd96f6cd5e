// The terminal, what a command gives back to it, and how far a long command is.
#ifndef EPLB_CLIENT_CLI_TERMINAL_H_
#define EPLB_CLIENT_CLI_TERMINAL_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "absl/status/status.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

namespace eplb::cli {

// What the terminal on stdout can show.

struct Terminal {
  int width = 80;        // columns, 60..200
  bool colour = false;   // a terminal, and the user did not ask for none
  bool unicode = false;  // block characters can be shown
};

// Width: COLUMNS, else the terminal's, else 80. Colour: only on a terminal, not with NO_COLOR or
// TERM=dumb. Unicode: from LC_ALL, LC_CTYPE, LANG, in this order.
Terminal DetectTerminal();

enum class Colour { kNone, kBold, kDim, kGreen, kYellow, kRed, kCyan };

// `text` in a colour where the terminal shows colours, else as it is.
std::string Paint(const Terminal& terminal, Colour colour, std::string_view text);

// Columns that a text takes: code points, colour sequences not counted.
int DisplayWidth(std::string_view text);

// What a command did, as a value: commands print nothing themselves.

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

struct Output {
  int exit_code = kOk;
  std::string out;                           // data, for stdout
  std::string message;                       // for stderr, one line without newline; empty: none
  std::optional<absl::Duration> again = {};  // run the command anew after so long (--watch)
  bool lines = false;  // what is printed again and again are lines for a program, not a screen
};

enum class Format { kTable, kJson, kTrace };

// Nothing on stdout, one line on stderr.
Output Failure(int exit_code, const absl::Status& status);
// Of files and flags: everything is exit 2 but Internal, a bug of ours, which is exit 1.
Output UsageFailure(const absl::Status& status);

// Both as one message, of which either may be empty.
std::string JoinMessages(const std::string& first, const std::string& second);

// How far a long command is, on stderr.

// One line that is written over, only on a terminal, only after two seconds; gone at the end.
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

// Likewise for work that cannot say how far it is: the seconds since it began. Threads: has one of
// its own, which only writes the line.
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

#endif  // EPLB_CLIENT_CLI_TERMINAL_H_
