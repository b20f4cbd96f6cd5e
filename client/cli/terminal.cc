#include "client/cli/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"

#include "base/files.h"
#include "client/cli/text.h"

namespace eplb::cli {

namespace {

constexpr int kMinWidth = 60;
constexpr int kMaxWidth = 200;

constexpr absl::Duration kQuiet = absl::Seconds(2);
constexpr absl::Duration kBetween = absl::Milliseconds(200);
constexpr char kClearLine[] = "\r\x1b[K";

const char* Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

int DetectWidth() {
  int width = 0;
  if (absl::SimpleAtoi(Environment("COLUMNS"), &width) && width > 0) return width;
  struct winsize size = {};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

bool DetectUnicode() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const std::string value = absl::AsciiStrToLower(Environment(name));
    if (!value.empty())
      return absl::StrContains(value, "utf-8") || absl::StrContains(value, "utf8");
  }
  return false;
}

const char* Sequence(Colour colour) {
  constexpr const char* kSequences[] = {"",         "\x1b[1m",  "\x1b[2m", "\x1b[32m",
                                        "\x1b[33m", "\x1b[31m", "\x1b[36m"};
  static_assert(std::size(kSequences) == static_cast<size_t>(Colour::kCyan) + 1);
  return kSequences[static_cast<size_t>(colour)];
}

ExitCode ExitCodeOf(const absl::Status& error) {
  switch (error.code()) {
    case absl::StatusCode::kInvalidArgument:
      return kUsage;
    case absl::StatusCode::kUnavailable:
      return kUnreachable;
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
      return kDenied;
    case absl::StatusCode::kNotFound:
      return kNotFound;
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kFailedPrecondition:
      return kConflict;
    case absl::StatusCode::kDeadlineExceeded:
      return kTimeout;
    default:
      return kError;
  }
}

}  // namespace

Terminal DetectTerminal() {
  const std::string_view term = Environment("TERM");
  return {.width = std::clamp(DetectWidth(), kMinWidth, kMaxWidth),
          .colour = isatty(STDOUT_FILENO) != 0 && Environment("NO_COLOR")[0] == '\0' &&
                    !term.empty() && term != "dumb",
          .unicode = DetectUnicode()};
}

std::string Paint(const Terminal& terminal, Colour colour, std::string_view text) {
  if (!terminal.colour || colour == Colour::kNone || text.empty()) return std::string(text);
  return absl::StrCat(Sequence(colour), std::string(text), "\x1b[0m");
}

int DisplayWidth(std::string_view text) {
  int width = 0;
  bool in_sequence = false;
  for (const char c : text) {
    if (in_sequence) {
      in_sequence = c != 'm';
    } else if (c == '\x1b') {
      in_sequence = true;
    } else if ((static_cast<unsigned char>(c) & 0xC0) != 0x80) {
      ++width;
    }
  }
  return width;
}

Output::Output(const absl::Status& error)
    : exit_code(ExitCodeOf(error)), message(error.message()) {}

absl::Status AsUsage(const absl::Status& status) {
  return absl::IsInternal(status) ? status : absl::InvalidArgumentError(status.message());
}

absl::Status WriteOutput(const std::string& path, const std::string& content) {
  if (path.empty()) return absl::OkStatus();
  const absl::Status written = WriteFileAtomically(path, content);
  return written.ok() ? written : absl::InternalError(written.message());
}

std::string JoinMessages(const std::vector<std::string>& messages) {
  std::vector<std::string> said;
  std::ranges::copy_if(messages, std::back_inserter(said),
                       [](const std::string& one) { return !one.empty(); });
  return absl::StrJoin(said, "; ");
}

Waiting::Waiting(std::string what, int64_t total) {
  if (isatty(STDERR_FILENO) == 0) return;
  thread_ = std::thread([this, what = std::move(what), total, start = absl::Now()] {
    if (done_.WaitForNotificationWithTimeout(kQuiet)) return;
    do {
      const std::string state =
          total == 0 ? absl::StrCat(", ", Seconds(absl::ToDoubleSeconds(absl::Now() - start)))
                     : absl::StrCat(" ", Grouped(reached_.load()), " of ", Grouped(total));
      (void)std::fprintf(stderr, "%seplbctl: %s%s", kClearLine, what.c_str(), state.c_str());
    } while (!done_.WaitForNotificationWithTimeout(kBetween));
    (void)std::fputs(kClearLine, stderr);
  });
}

Waiting::~Waiting() {
  done_.Notify();
  if (thread_.joinable()) thread_.join();
}

}  // namespace eplb::cli
