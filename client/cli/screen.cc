#include "client/cli/screen.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

#include "client/cli/text.h"

namespace eplb::cli {
namespace {

constexpr char kEnter[] = "\x1b[?1049h\x1b[?25l";  // alternate screen, no cursor
constexpr char kLeave[] = "\x1b[?25h\x1b[?1049l";
constexpr char kHome[] = "\x1b[H";        // cursor to the upper left corner
constexpr char kClearToEnd[] = "\x1b[K";  // from the cursor to the end of the line
constexpr char kClearBelow[] = "\x1b[J";  // from the cursor to the end of the screen
constexpr char kRed[] = "\x1b[31m";
constexpr char kPlain[] = "\x1b[0m";

constexpr std::array kSignals = {SIGINT, SIGTERM, SIGHUP, SIGTSTP, SIGCONT, SIGWINCH};

// A signal handler may do little more than write, so the loop reads signals from this pipe.
std::array<int, 2> g_signal_pipe = {-1, -1};

void NoteSignal(int number) {
  const int saved_errno = errno;
  const auto byte = static_cast<unsigned char>(number);
  (void)!write(g_signal_pipe[1], &byte, 1);  // a full pipe wakes the loop, too
  errno = saved_errno;
}

// The first `width` columns of a line. Colour sequences take none and are kept; a cut line ends
// without colour.
std::string CutLine(std::string_view line, int width) {
  if (DisplayWidth(line) <= width) return std::string(line);
  std::string cut;
  bool in_sequence = false;
  bool coloured = false;
  int column = 0;
  for (const char c : line) {
    const bool begins = (static_cast<unsigned char>(c) & 0xC0) != 0x80;
    if (in_sequence) {
      in_sequence = c != 'm';
    } else if (c == '\x1b') {
      in_sequence = coloured = true;
    } else if (begins && ++column > width) {
      break;
    }
    cut += c;
  }
  return coloured ? cut + kPlain : cut;
}

std::vector<std::string> LinesOf(const std::string& text) {
  std::vector<std::string> lines = absl::StrSplit(text, '\n');
  if (!lines.empty() && lines.back().empty()) lines.pop_back();
  return lines;
}

bool WriteAll(std::string_view text) {
  return std::fwrite(text.data(), 1, text.size(), stdout) == text.size() &&
         std::fflush(stdout) == 0;
}

}  // namespace

std::string FitFrame(const std::string& text, const std::string& problem, const Window& window,
                     int& first) {
  constexpr size_t kMostOfProblem = 3;
  std::vector<std::string> lines;
  if (!problem.empty()) {
    lines = LinesOf(Wrapped(Printable(problem), window.width, 0));
    lines.resize(std::min(lines.size(), kMostOfProblem));
    for (std::string& line : lines) line = absl::StrCat(kRed, CutLine(line, window.width), kPlain);
  }
  const std::vector<std::string> all = LinesOf(text);
  const int room = std::max(window.height, 1) - static_cast<int>(lines.size());
  const auto count = static_cast<int>(all.size());
  const int shown = count <= room ? count : std::max(room - 1, 0);
  first = std::clamp(first, 0, count - shown);
  for (int i = first; i < first + shown; ++i) {
    lines.push_back(CutLine(all[static_cast<size_t>(i)], window.width));
  }
  if (const int more = count - first - shown; shown < count) {
    const std::string above = first > 0 ? Counted(first, "line") + " above" : "";
    const std::string below = more > 0 ? Counted(more, "more line") : "";
    lines.push_back(CutLine(absl::StrCat("... ", above, first > 0 && more > 0 ? ", " : "", below),
                            window.width));
  }
  return absl::StrJoin(lines, "\n");
}

struct Screen::Saved {
  struct termios terminal = {};
  std::array<struct sigaction, kSignals.size()> handlers = {};
};

Screen::Screen() : keys_(isatty(STDIN_FILENO) == 1), saved_(std::make_unique<Saved>()) {
  if (pipe2(g_signal_pipe.data(), O_CLOEXEC | O_NONBLOCK) != 0) g_signal_pipe = {-1, -1};
  struct sigaction action = {};
  action.sa_handler = &NoteSignal;
  action.sa_flags = SA_RESTART;  // poll is interrupted nevertheless
  for (size_t i = 0; i < kSignals.size(); ++i) {
    (void)sigaction(kSignals[i], &action, &saved_->handlers[i]);
  }
  Enter();
}

Screen::~Screen() {
  Leave();
  for (size_t i = 0; i < kSignals.size(); ++i) {
    (void)sigaction(kSignals[i], &saved_->handlers[i], nullptr);
  }
  for (int& end : g_signal_pipe) {
    if (end >= 0) close(end);
    end = -1;
  }
}

void Screen::Enter() {
  if (entered_) return;
  entered_ = true;
  if (keys_ && tcgetattr(STDIN_FILENO, &saved_->terminal) == 0) {
    struct termios raw = saved_->terminal;
    raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);  // Ctrl-C and Ctrl-Z stay signals
    raw.c_cc[VMIN] = 0;
    raw.c_cc[VTIME] = 0;
    (void)tcsetattr(STDIN_FILENO, TCSANOW, &raw);
  } else {
    keys_ = false;
  }
  (void)WriteAll(kEnter);
}

void Screen::Leave() {
  if (!entered_) return;
  entered_ = false;
  (void)WriteAll(kLeave);
  if (keys_) (void)tcsetattr(STDIN_FILENO, TCSANOW, &saved_->terminal);
}

Window Screen::window() const {
  struct winsize size = {};
  Window window;
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0) return window;
  if (size.ws_col > 0) window.width = size.ws_col;
  if (size.ws_row > 0) window.height = size.ws_row;
  return window;
}

bool Screen::Draw(const std::string& frame) {
  std::string text = kHome;
  const std::vector<std::string> lines = absl::StrSplit(frame, '\n');
  for (size_t i = 0; i < lines.size(); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : "\r\n", lines[i], kClearToEnd);
  }
  return WriteAll(text + kClearBelow);
}

Screen::Event Screen::TakeSignal(int number) {
  switch (number) {
    case SIGTSTP:
      Leave();
      (void)raise(SIGSTOP);  // returns when the process goes on
      Enter();
      return Event::kChanged;
    case SIGCONT:
    case SIGWINCH:
      return Event::kChanged;
    default:
      end_signal_ = number;
      return Event::kEnded;
  }
}

Screen::Event Screen::TakeKey() {
  std::array<char, 8> bytes;  // a key sends its sequence at once
  const ssize_t got = read(STDIN_FILENO, bytes.data(), bytes.size());
  if (got <= 0) {
    if (got == 0) keys_ = false;  // the terminal is gone
    return Event::kNothing;
  }
  constexpr std::pair<std::string_view, Event> kKeys[] = {
      {"q", Event::kQuit},           {"Q", Event::kQuit},
      {"s", Event::kSort},           {"k", Event::kUp},
      {"\x1b[A", Event::kUp},        {"\x1bOA", Event::kUp},
      {"j", Event::kDown},           {"\x1b[B", Event::kDown},
      {"\x1bOB", Event::kDown},      {"b", Event::kPageUp},
      {"\x1b[5~", Event::kPageUp},   {" ", Event::kPageDown},
      {"\x1b[6~", Event::kPageDown}, {"g", Event::kTop},
      {"\x1b[H", Event::kTop},       {"G", Event::kBottom},
      {"\x1b[F", Event::kBottom}};
  const std::string_view pressed(bytes.data(), static_cast<size_t>(got));
  for (const auto& [key, event] : kKeys) {
    if (pressed.starts_with(key)) return event;
  }
  return Event::kNothing;
}

Screen::Event Screen::Wait(absl::Duration timeout) {
  std::array<struct pollfd, 2> sources = {{{g_signal_pipe[0], POLLIN, 0}, {-1, POLLIN, 0}}};
  if (keys_) sources[1].fd = STDIN_FILENO;
  const auto milliseconds =
      static_cast<int>(std::clamp<int64_t>(absl::ToInt64Milliseconds(timeout) + 1, 0, 60'000));
  if (poll(sources.data(), sources.size(), milliseconds) <= 0) return Event::kNothing;
  unsigned char number = 0;
  if (read(g_signal_pipe[0], &number, 1) == 1) return TakeSignal(number);
  return sources[1].revents != 0 ? TakeKey() : Event::kNothing;
}

void Screen::RaiseEnd() {
  Leave();
  (void)std::signal(end_signal_, SIG_DFL);
  (void)raise(end_signal_);
  std::_Exit(128 + end_signal_);  // the signal is blocked
}

}  // namespace eplb::cli
