#include "client/cli/watch.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"

#include "base/invalid_input.h"
#include "base/status_macros.h"
#include "client/cli/flags.h"
#include "client/cli/terminal.h"
#include "client/cli/text.h"

#include <CLI/CLI.hpp>

namespace eplb::cli {

namespace {

constexpr char kEnter[] = "\x1b[?1049h\x1b[?25l";  // alternate screen, no cursor
constexpr char kLeave[] = "\x1b[?25h\x1b[?1049l";
constexpr char kAffine[] = "\x1b[H";
constexpr char kClearToEnd[] = "\x1b[K";  // from the cursor to the end of the line
constexpr char kClearBelow[] = "\x1b[J";  // from the cursor to the end of the screen
constexpr char kRed[] = "\x1b[31m";
constexpr char kPlain[] = "\x1b[0m";

constexpr std::array kSignals = {SIGINT, SIGTERM, SIGHUP, SIGTSTP, SIGCONT, SIGWINCH};

// A handler may do little more than write: the loop reads what has come from this pipe.
std::array<int, 2> g_signal_pipe = {-1, -1};

void NoteSignal(int number) {
  const int saved_errno = errno;
  const auto byte = static_cast<unsigned char>(number);
  (void)!write(g_signal_pipe[1], &byte, 1);  // a full pipe wakes the loop all the same
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

std::string FitFrame(const std::string& text, const std::string& problem, const Window& window) {
  constexpr size_t kMostOfProblem = 3;
  std::vector<std::string> lines;
  if (!problem.empty()) {
    lines = LinesOf(Wrapped(Printable(problem), window.width, 0));
    lines.resize(std::min(lines.size(), kMostOfProblem));
    for (std::string& line : lines) line = absl::StrCat(kRed, CutLine(line, window.width), kPlain);
  }
  for (const std::string& line : LinesOf(text)) lines.push_back(CutLine(line, window.width));
  const auto height = static_cast<size_t>(std::max(window.height, 1));
  if (lines.size() > height) {
    const size_t more = lines.size() - (height - 1);
    lines.resize(height - 1);
    lines.push_back(CutLine(absl::StrCat("... ", Counted(static_cast<int64_t>(more), "more line")),
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
  action.sa_flags = SA_RESTART;  // but poll, which is woken
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
  std::string text = kAffine;
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
  char key = 0;
  const ssize_t got = read(STDIN_FILENO, &key, 1);
  if (got == 0) keys_ = false;  // the terminal is gone
  return got == 1 && (key == 'q' || key == 'Q') ? Event::kQuit : Event::kNothing;
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

namespace {

constexpr absl::Duration kLeastInterval = absl::Milliseconds(100);  // a daemon has more to do

// True for -o json, of a command that has it.
bool WantsJson(const CLI::App& app) {
  const CLI::Option* const format = app.get_option_no_throw("--output");
  return format != nullptr && format->count() > 0 && format->results().back() == "json";
}

// --interval and --count.
std::vector<CLI::Option*> AddIntervalOptions(CLI::App& app, WatchOptions& options,
                                             const std::string& count_help) {
  CLI::Option* const interval =
      app.add_option("--interval", options.interval,
                     "Time between two runs, at least 100ms [" + options.interval + "]")
          ->type_name("DURATION");
  CLI::Option* const count = AddInteger(app, "--count", options.count, count_help)
                                 ->check(&CheckNotNegative)
                                 ->type_name("N");
  return {interval, count};
}

absl::StatusOr<absl::Duration> ParseInterval(const std::string& text) {
  EPLB_ASSIGN_OR_RETURN(const absl::Duration interval, ParseDuration("--interval", text));
  if (interval >= kLeastInterval) return interval;
  return InvalidInput("--interval is \"", text, "\", expected at least ",
                      absl::FormatDuration(kLeastInterval));
}

// One run of a command on a thread of its own: keys are heard while a daemon does not answer.
class Run {
 public:
  explicit Run(const Command& command) : answer_(std::make_shared<Answer>()) {
    std::thread([command, answer = answer_] {
      Output output;
      try {
        output = command(DetectTerminal());
      } catch (const std::exception& error) {  // of a library, e.g. out of memory
        output = {.exit_code = kError, .out = {}, .message = error.what()};
      }
      const absl::MutexLock lock(&answer->mutex);
      answer->output = std::move(output);
    }).detach();
  }

  // None while the command runs.
  std::optional<Output> Take() {
    const absl::MutexLock lock(&answer_->mutex);
    return std::exchange(answer_->output, std::nullopt);
  }

 private:
  struct Answer {
    absl::Mutex mutex;
    std::optional<Output> output ABSL_GUARDED_BY(mutex);
  };
  std::shared_ptr<Answer> answer_;
};

// What the screen shows: the newest frame that came about, and why there is no newer one.
struct ShownScreen {
  Output good;
  absl::Time since;  // of `good`
  std::string problem;
  bool failed = false;

  std::string Problem() const {
    if (!failed) return problem;
    const double age = absl::ToDoubleSeconds(absl::Now() - since);
    return absl::StrCat(problem, "; the last answer is ",
                        age < 1 ? "less than 1 s" : Seconds(std::floor(age)), " old");
  }
};

// The last frame stays on the terminal. A run that is under way is left to the end of the process.
int EndScreen(Screen& screen, const ShownScreen& shown, bool running, int exit_code) {
  screen.Leave();
  const int printed =
      Print({.exit_code = exit_code, .out = shown.good.out, .message = shown.problem});
  if (running) std::_Exit(printed);
  return printed;
}

// Frames over each other until a key, a signal or the command ends it.
int RunOnScreen(const Command& command, Output first) {
  constexpr absl::Duration kLook = absl::Milliseconds(20);  // for the answer of a run
  constexpr absl::Duration kTick = absl::Seconds(1);        // ages are shown in seconds
  absl::Time due = absl::Now() + *first.again;
  ShownScreen shown{.good = std::move(first), .since = absl::Now(), .problem = {}, .failed = false};
  Screen screen;
  std::optional<Run> run;
  std::string drawn;
  while (true) {
    if (std::optional<Output> output = run ? run->Take() : std::nullopt) {
      run.reset();
      due = absl::Now() + output->again.value_or(absl::ZeroDuration());
      shown.problem = output->message;
      const bool last = !output->again.has_value();
      const int exit_code = output->exit_code;
      shown.failed = exit_code != kOk;
      if (exit_code == kOk || !output->out.empty()) {
        shown.good = *std::move(output);
        shown.since = absl::Now();
      }
      if (last) return EndScreen(screen, shown, false, exit_code);
    }
    if (!run && absl::Now() >= due) run.emplace(command);
    std::string frame = FitFrame(shown.good.out, shown.Problem(), screen.window());
    if (frame != drawn && !screen.Draw(frame)) return kError;
    drawn = std::move(frame);
    switch (screen.Wait(run ? kLook : std::min(due - absl::Now(), kTick))) {
      case Screen::Event::kNothing:
        break;
      case Screen::Event::kQuit:
        return EndScreen(screen, shown, run.has_value(), kOk);
      case Screen::Event::kEnded:
        screen.RaiseEnd();
      case Screen::Event::kChanged:
        drawn.clear();
        due = absl::Now();  // the text is made for a width
        break;
    }
  }
}

}  // namespace

void AddWatched(CLI::App& app, Command& command, Command once) {
  const auto options = std::make_shared<WatchOptions>();
  CLI::Option* const watch = app.add_flag("--watch", options->watch, "Ask again and again");
  for (CLI::Option* const option :
       AddIntervalOptions(app, *options, "End after so many runs [0: never]")) {
    option->needs(watch);
  }
  app.callback([options, once = std::move(once), &app, &command] {
    options->lines = WantsJson(app);
    command = Watched(*options, once);
  });
}

void AddLive(CLI::App& app, Command& command, Command once) {
  const auto options = std::make_shared<WatchOptions>();
  const std::vector<CLI::Option*> flags = AddIntervalOptions(
      app, *options,
      "End after so many runs, 0: never [0; into a pipe 1, unless --interval is given]");
  app.callback([options, flags, once = std::move(once), &app, &command] {
    options->lines = WantsJson(app);
    options->watch =
        isatty(STDOUT_FILENO) == 1 ||
        std::any_of(flags.begin(), flags.end(), [](const auto* flag) { return flag->count() > 0; });
    command = Watched(*options, once);
  });
}

Command Watched(const WatchOptions& options, Command once) {
  if (!options.watch) return once;
  const auto runs = std::make_shared<int64_t>(0);
  return [options, once = std::move(once), runs](const Terminal& terminal) {
    const absl::StatusOr<absl::Duration> interval = ParseInterval(options.interval);
    if (!interval.ok()) return Failure(kUsage, interval.status());
    Output output = once(terminal);
    const bool first = ++*runs == 1;
    const bool last = *runs == options.count || (first && output.exit_code != kOk);
    if (!last) output.again = *interval;
    output.lines = options.lines;
    return output;
  };
}

int Print(const Output& output) {
  if (!output.message.empty()) {
    std::fprintf(stderr, "eplbctl: %s\n", Printable(output.message).c_str());
  }
  const size_t written = std::fwrite(output.out.data(), 1, output.out.size(), stdout);
  if (written == output.out.size() && std::fflush(stdout) == 0) return output.exit_code;
  std::perror("eplbctl: cannot write to stdout");
  return kError;
}

int RunAndPrint(const Command& command) {
  Output output = command(DetectTerminal());
  if (output.again && !output.lines && isatty(STDOUT_FILENO) == 1) {
    return RunOnScreen(command, std::move(output));
  }
  while (true) {
    const int exit_code = Print(output);
    if (!output.again || exit_code == kError) return exit_code;
    absl::SleepFor(*output.again);
    output = command(DetectTerminal());
  }
}

}  // namespace eplb::cli
